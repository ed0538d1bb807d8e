"""What a timeline gets of a wrapper: forward by module, backward by leaf, and the life of each bucket.

All of it is attached from outside, to modules, to leaves and to the lane of the passes, so a wrapper without a
timeline runs what it ran before. A rank's notes of a pass are written once it is over. In a backward that is local only
its leaves are noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minigrad.autograd.tape import Reached
from minigrad.distributed.comm.work import DoneWork
from minigrad.distributed.ddp.account import Account, Note
from minigrad.distributed.ddp.lanes import DeviceLane
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.ddp.passes import Lane
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.distributed.ddp.stats import Stats
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Moment, Track
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.recording import is_grad_enabled, is_recomputing
from minigrad.removal import Removal


def attach(timeline: Timeline, module: Module, reducer: Reducer) -> list[Removal]:
    """Let a timeline hear of a wrapper's module and passes.

    Returns:
        What ends it.

    Raises:
        ArgumentError: it is no timeline.
    """
    if not isinstance(timeline, Timeline):
        raise ArgumentError(f"DistributedDataParallel: expected timeline as a Timeline, got {timeline!r:.100}")
    track = timeline.at(reducer.comm)
    keeper = Timekeeper(track, reducer)
    for param in reducer.layout.params:
        param.listeners = (keeper, *param.listeners)  # before the reducer, which launches what is complete
    lane = TimedLane(reducer.comm) if type(reducer.lane) is Lane else TimedDeviceLane(reducer.comm)
    lane.keeper, reducer.lane = keeper, lane
    removals = [Removal(lambda: _silence(keeper, reducer))]
    for name, each in module.named_modules():
        if not name or name.count(".") < timeline.depth:
            removals += Forward(track, name or type(module).__name__, lane, is_whole=not name).hooks(each)
    return removals


def _silence(keeper: Timekeeper, reducer: Reducer) -> None:
    for param in reducer.layout.params:
        param.listeners = tuple(kept for kept in param.listeners if kept is not keeper)


class Forward:
    """Notes the calls of one module in which gradients are recorded."""

    def __init__(self, track: Track, name: str, lane: Lane, is_whole: bool) -> None:
        self._track, self._name, self._lane, self._is_whole = track, name, lane, is_whole
        self._began_s: Moment | None = None

    def hooks(self, module: Module) -> list[Removal]:
        """Begin to listen."""
        return [module.register_forward_pre_hook(self._begin), module.register_forward_hook(self._end)]

    def _begin(self, module: Module, args: Any) -> None:
        began_s: Moment | None = None
        if self._is_whole:
            began_s, self._lane.called_s = self._lane.called_s, None
        noted = is_grad_enabled() and not is_recomputing()
        self._began_s = (self._track.now_s() if began_s is None else began_s) if noted else None

    def _end(self, module: Module, args: Any, output: Any) -> None:
        if self._began_s is not None:
            ended_s, fields = self._track.now_s(), {}
            if self._is_whole:
                fields = {"forward_s": ended_s - float(self._began_s)}
            self._track.note("forward", self._name, self._began_s, ended_s, fields)
            self._began_s = None


class Timekeeper:
    """A backward listener that notes when the gradient of each leaf was complete.

    Args:
        track: Where that is written.
        reducer: What combines the gradients.

    Attributes:
        launches: Of each bucket that went out in this pass: the number of the logbook's first call for it, that of the
            first one after it, when its launch began, and when it was over.
    """

    def __init__(self, track: Track, reducer: Reducer) -> None:
        self.track, self._reducer = track, reducer
        self.now_s = track.now_s
        self.launches: list[tuple[int, int, float, float]] = []
        self._leaves: list[tuple[Any, float]] = []
        self._began_s, self._is_local, self._passes, self._sent = 0.0, False, 0, (0, 0)
        self._name = f"{reducer.name} of ranks {list(reducer.comm.global_ranks)}"

    def begin(self, leaves: Reached) -> None:
        """Backward starts."""
        self._leaves, self.launches = [], []
        self._is_local, self._began_s = not self._reducer.syncing, self.now_s()

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete."""
        self._leaves.append((leaf, self.now_s()))

    def end(self, error: BaseException | None) -> None:
        """Backward is over; what was synchronised ends with its pass."""
        if error is not None:
            self._leaves, self.launches = [], []
        elif self._is_local:
            ended_s = self.now_s()
            fields = {"of": self._name, "backward_s": ended_s - self._began_s}
            self.track.note("backward", "local", self._began_s, ended_s, fields)
            self._note_leaves()

    def _note_leaves(self) -> dict[int, float]:
        """Note each leaf; when the last of each bucket was complete."""
        layout, of = self._reducer.layout, self._reducer.buckets.of
        last_s, ready, at, launches = self._began_s, dict[int, float](), 0, self.launches
        for leaf, moment_s in self._leaves:
            number = layout.number[id(leaf)]
            while at < len(launches) and launches[at][2] < moment_s:
                last_s = max(last_s, min(launches[at][3], moment_s))
                at += 1
            self.track.note("backward", layout.names[number], last_s, moment_s)
            last_s = moment_s
            if number in of:
                ready[of[number]] = moment_s
        self._leaves = []
        return ready

    def add(self, stats: Stats, fresh: Stats) -> dict[str, float]:
        """Add to the statistics what a pass took; what it came to, which are the same figures to the last bit."""
        sums = {"backward_s": fresh.backward_s, "idle_s": fresh.idle_s}
        sums |= {"exposed_s": fresh.exposed_s, "hidden_s": fresh.hidden_s}
        for name, value in sums.items():
            setattr(stats, name, getattr(stats, name) + value)
        sent, calls = self._sent
        if stats.calls < calls:
            sent = calls = 0  # it was reset meanwhile
        self._sent = stats.bytes_sent, stats.calls
        return {**sums, "bytes_sent": stats.bytes_sent - sent, "calls": stats.calls - calls}

    def note_pass(
        self, logbook: Logbook, account: Account | None, began_s: float, sums: dict[str, float]
    ) -> None:
        """Write what a pass came to, which is over."""
        track, number, ready = self.track, self._passes, self._note_leaves()
        names: list[tuple[str, dict[str, Any]]] = [("samples", {"of": self._name, "pass": number})]
        for bucket, (first, last, launch_s, over_s) in enumerate(self.launches):
            each = {**names[0][1], "bucket": bucket}
            each["nbytes"] = self._reducer.buckets.plan.buckets[bucket].nbytes
            if bucket in ready:
                track.event_at("ready", ready[bucket], each)
            track.note("weighted", f"bucket {bucket}", launch_s, over_s, each)
            names += [(f"bucket {bucket}", each)] * (last - first)
        names += [("after the gradients", names[0][1])] * (len(logbook.calls) - len(names))
        if account is not None:
            self._note_wire(logbook, account, names)
        track.note("pass", self._name, began_s, self.now_s(), {**names[0][1], **sums})
        track.end_step()
        self._passes, self.launches = number + 1, []

    def _note_wire(self, logbook: Logbook, account: Account, names: list[tuple[str, dict[str, Any]]]) -> None:
        """Write what the wire did for each call, one after the other, and what this rank waited for."""
        note, reached_s, over_s = self.track.note, -1.0, dict[int, float]()
        which = {}
        for (work, began_s, called_s), named in zip(logbook.calls, names):
            started_s, done_s = account.spans[id(work)]
            begin_s = max(started_s, reached_s)
            note("wire", named[0], min(begin_s, done_s), done_s, named[1])
            reached_s, which[id(work)] = max(reached_s, done_s), named
            if isinstance(work, DoneWork) and work.span is not None and started_s > began_s:
                note("idle", named[0], began_s, min(started_s, called_s), named[1])
        for work, began_s, ended_s in logbook.waits:
            started_s, done_s = account.spans.get(id(work), (began_s, ended_s))
            name, fields = which.get(id(work), names[-1])
            over_s[id(work)] = ended_s
            if began_s < done_s:
                late_s = min(max(0.0, started_s - began_s), ended_s - began_s)
                if late_s > 0.0:
                    note("idle", name, began_s, began_s + late_s, fields)
                if ended_s - began_s > late_s:
                    note("exposed", name, began_s + late_s, ended_s, fields)
        self._meet(logbook.calls, which, over_s)

    def _meet(self, calls: list[Note], which: dict[int, Any], over_s: dict[int, float]) -> None:
        """Note when this rank called, and was through with, what all ranks called."""
        for number, (work, began_s, called_s) in enumerate(calls):
            fields = which[id(work)][1]
            self.track.met(f"{self._name}: {fields['pass']}.{number}", began_s, over_s.get(id(work), called_s))


class TimedLane(Lane):
    """A lane of the host whose passes are noted."""

    keeper: Timekeeper

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Around everything that launches one bucket."""
        with _launch(self, super().launching):
            yield

    def add_times(self, stats: Stats, logbook: Logbook, began_s: float, over_s: float, company: list[Logbook]) -> None:
        """Add what a pass took, and note it."""
        fresh = Stats()
        account = super().add_times(fresh, logbook, began_s, over_s, company)
        self.keeper.note_pass(logbook, account, began_s, self.keeper.add(stats, fresh))


class TimedDeviceLane(DeviceLane):
    """A lane of a GPU whose passes are noted, by the host's clock."""

    keeper: Timekeeper

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Around everything that launches one bucket."""
        with _launch(self, super().launching):
            yield

    def add_times(self, stats: Stats, logbook: Logbook, began_s: float, over_s: float, company: list[Logbook]) -> None:
        """Add what a pass took, and note it."""
        fresh = Stats()
        super().add_times(fresh, logbook, began_s, over_s, company)
        self.keeper.note_pass(logbook, None, began_s, self.keeper.add(stats, fresh))


@contextmanager
def _launch(lane: TimedLane | TimedDeviceLane, launching: Callable[[], Any]) -> Iterator[None]:
    with launching():
        keeper, calls = lane.keeper, lane.booked.logbook.calls if lane.booked.logbook is not None else []
        first, began_s = len(calls), keeper.now_s()
        try:
            yield
        finally:
            keeper.launches.append((first, len(calls), began_s, keeper.now_s()))
