"""What a timeline gets of a wrapper: forward by module, backward by leaf, and the life of each bucket.

All of it is attached from outside, to modules, to leaves and to the lane of the passes, so a wrapper without a
timeline runs what it ran before. A rank's notes of a pass are written once it is over. In a backward that is local only
its leaves are noted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from typing import Any, cast

from minigrad.autograd.tape import Reached
from minigrad.distributed.comm.work import DoneWork
from minigrad.distributed.ddp.account import Account, Note
from minigrad.distributed.ddp.lanes import DeviceLane
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.ddp.passes import Lane
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.distributed.ddp.stats import Stats
from minigrad.distributed.record.modules import listen_forward
from minigrad.distributed.record.moments import DeviceMoments
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import Moment, Track
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
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
    moments = DeviceMoments.of(track, reducer.comm.device)
    keeper = Timekeeper(track, reducer, moments)
    for param in reducer.layout.params:
        param.listeners = (keeper, *param.listeners)  # before the reducer, which launches what is complete
    lane = TimedLane(reducer.comm) if type(reducer.lane) is Lane else TimedDeviceLane(reducer.comm)
    lane.keeper, reducer.lane = keeper, lane
    return [*listen_forward(track, module, timeline.depth, lane), Removal(lambda: _silence(keeper, reducer))]


def _silence(keeper: Timekeeper, reducer: Reducer) -> None:
    for param in reducer.layout.params:
        param.listeners = tuple(kept for kept in param.listeners if kept is not keeper)


class Timekeeper:
    """A backward listener that notes when the gradient of each leaf was complete.

    Args:
        track: Where that is written.
        reducer: What combines the gradients.
        moments: Of its GPU; None on the host.

    Attributes:
        row: What was summed at the start of the pass under way, the samples of this rank first.
        launches: Of each bucket that went out in this pass: the number of the logbook's first call for it, that of the
            first one after it, when its launch began, and when it was over.
    """

    def __init__(self, track: Track, reducer: Reducer, moments: DeviceMoments | None) -> None:
        self.track, self._reducer, self._moments = track, reducer, moments
        self.now_s, self.mark = track.now_s, track.mark
        self.launches: list[tuple[int, int, Moment, Moment]] = []
        self.row, self._plan_id = [0.0], ""
        self._leaves: list[tuple[Any, Moment]] = []
        self._began: Moment = 0.0
        self._began_s, self._is_local, self._passes, self._sent = 0.0, False, 0, (0, 0)
        self._calls: list[Note] = []
        self._first, self._launch_s = 0, cast(Moment, 0.0)
        self._name = f"{reducer.name} of ranks {list(reducer.comm.global_ranks)}"

    def __enter__(self) -> None:
        """A bucket goes out."""
        logbook = self._reducer.lane.booked.logbook
        self._calls = [] if logbook is None else logbook.calls
        self._first, self._launch_s = len(self._calls), self.mark()

    def __exit__(self, *error: object) -> None:
        self.launches.append((self._first, len(self._calls), self._launch_s, self.mark()))

    def begin(self, leaves: Reached) -> None:
        """Backward starts."""
        self._leaves, self.launches = [], []
        self._is_local, self._began_s = not self._reducer.syncing, self.now_s()
        self._began = self._began_s if self._moments is None else self.mark()

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete."""
        self._leaves.append((leaf, self.mark()))

    def end(self, error: BaseException | None) -> None:
        """Backward is over; what was synchronised ends with its pass."""
        if error is not None:
            self._leaves, self.launches = [], []
        elif self._is_local:
            ended_s = self.now_s()
            fields = {"of": self._name, "backward_s": ended_s - self._began_s}
            self.track.note("backward", "local", self._began_s, ended_s, fields)
            self._note_leaves()

    def _note_leaves(self) -> dict[int, Moment]:
        """Note each leaf; when the last of each bucket was complete."""
        layout, of = self._reducer.layout, self._reducer.buckets.of
        last_s, ready, at = self._began, dict[int, Moment](), 0
        launches = self.launches if self._moments is None else []  # on a GPU they have a stream of their own
        for leaf, moment_s in self._leaves:
            number = layout.number[id(leaf)]
            while at < len(launches) and float(launches[at][2]) < float(moment_s):
                last_s = max(float(last_s), min(float(launches[at][3]), float(moment_s)))
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
        buckets = self._reducer.buckets.plan.buckets
        if self._reducer.buckets.plan.id != self._plan_id:
            self._tell_plan()
        mine = {"of": self._name, "pass": number}
        names: list[tuple[str, dict[str, Any]]] = [("samples", {**mine, **self._counting(logbook)})]
        for bucket, (first, last, launch_s, over_s) in enumerate(self.launches):
            each = {"of": self._name, "pass": number, "bucket": bucket, "nbytes": buckets[bucket].nbytes}
            name = f"bucket {bucket}"
            if bucket in ready:
                track.event_at("ready", ready[bucket], each)
            if self._moments is None:
                track.note("weighted", name, launch_s, over_s, each)
            else:
                sent = [nbytes or 0 for _, nbytes in logbook.handed[first:last]]
                kind = logbook.handed[first][0] if sent else "all_reduce"
                track.note("wire", name, launch_s, over_s, {**each, "collective": kind, "sent_bytes": sum(sent)})
            for _ in range(last - first):
                names.append((name, each))
        for _ in range(len(logbook.calls) - len(names)):
            names.append(("after the gradients", mine))
        if account is not None:
            self._note_wire(logbook, account, names)
        track.note("pass", self._name, began_s, self.now_s(), {**mine, "samples": self.row[0], **sums})
        track.end_step()
        self._passes, self.launches = number + 1, []
        if self._moments is not None:
            self._moments.settle()

    def _counting(self, logbook: Logbook) -> dict[str, float]:
        """What is known of the call for the samples: its bytes, and how long it held this rank, waiting aside."""
        work, began_s, called_s = logbook.calls[0]
        return {"nbytes": 8 * len(self.row), "held_s": 0.0 if isinstance(work, DoneWork) else called_s - began_s}

    def _tell_plan(self) -> None:
        """Keep of which parameters the buckets are, and by which caps."""
        reducer, plan = self._reducer, self._reducer.buckets.plan
        self._plan_id = plan.id
        caps = {"cap_bytes": reducer.options.cap_bytes, "first_cap_bytes": reducer.options.first_cap_bytes}
        entries = [asdict(entry) for entry in reducer.layout.entries()]
        buckets = [bucket.entries for bucket in plan.buckets]
        order = {"in_order": reducer.in_order, "find_unused": reducer.options.find_unused}
        about = {"ranks": reducer.comm.global_ranks, "entries": entries, "buckets": buckets}
        self.track.facts[self._name] = {**about, **caps, **order}

    def _note_wire(self, logbook: Logbook, account: Account, names: list[tuple[str, dict[str, Any]]]) -> None:
        """Write what the wire did for each call, one after the other, and what this rank waited for."""
        note, reached_s, spans, which = self.track.note, -1.0, account.spans, dict[int, int]()
        over_s = [called_s for _, _, called_s in logbook.calls]
        for number, (work, began_s, called_s) in enumerate(logbook.calls):
            started_s, done_s = spans[id(work)]
            name, fields = names[number]
            which[id(work)], (kind, nbytes) = number, logbook.handed[number]
            start_s, sent = min(max(started_s, reached_s), done_s), 8 * len(self.row) if nbytes is None else nbytes
            wire = {**fields, "collective": kind, "sent_bytes": sent, "queued_s": start_s - began_s}
            note("wire", name, start_s, done_s, wire)
            reached_s = max(reached_s, done_s)
            if started_s > began_s and isinstance(work, DoneWork) and work.span is not None:
                note("idle", name, began_s, min(started_s, called_s), fields)
        for work, began_s, ended_s in logbook.waits:
            waited_for = which.get(id(work))
            if waited_for is None:
                continue
            over_s[waited_for] = ended_s
            started_s, done_s = spans[id(work)]
            if began_s < done_s:
                name, fields = names[waited_for]
                come_s = began_s + min(max(0.0, started_s - began_s), ended_s - began_s)
                if come_s > began_s:
                    note("idle", name, began_s, come_s, fields)
                if ended_s > come_s:
                    note("exposed", name, come_s, ended_s, fields)
        met, front = self.track.meetings, f"{self._name}: {self._passes}."
        for number, (_, began_s, _) in enumerate(logbook.calls):
            met[f"{front}{number}"] = began_s, over_s[number]


class TimedLane(Lane):
    """A lane of the host whose passes are noted."""

    keeper: Timekeeper

    def count(self, row: list[float], layout: str) -> Any:
        """Launch the sum over the ranks of a row of numbers, the samples first."""
        self.keeper.row = row
        return super().count(row, layout)

    def launching(self) -> AbstractContextManager[None]:
        """Around everything that launches one bucket."""
        return self.keeper

    def add_times(self, stats: Stats, logbook: Logbook, began_s: float, over_s: float, company: list[Logbook]) -> None:
        """Add what a pass took, and note it."""
        fresh = Stats()
        account = super().add_times(fresh, logbook, began_s, over_s, company)
        self.keeper.note_pass(logbook, account, began_s, self.keeper.add(stats, fresh))


class TimedDeviceLane(DeviceLane):
    """A lane of a GPU whose passes are noted: what a bucket takes on the communication stream is on the wire."""

    keeper: Timekeeper
    _stands: Moment | None = None

    def count(self, row: list[float], layout: str) -> Any:
        """Launch the sum over the ranks of a row of numbers, the samples first."""
        self.keeper.row = row
        return super().count(row, layout)

    def stand(self, still: bool) -> None:
        """From here on the caller's stream has nothing to do but wait; or that is over."""
        super().stand(still)
        if still and self._stands is None:
            self._stands = self.keeper.mark()
        elif not still and self._stands is not None:
            self.keeper.track.note("exposed", "", self._stands, self.keeper.mark())
            self._stands = None

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Around everything that launches one bucket."""
        with super().launching(), self.keeper:
            yield

    def add_times(self, stats: Stats, logbook: Logbook, began_s: float, over_s: float, company: list[Logbook]) -> None:
        """Add what a pass took, and note it."""
        fresh = Stats()
        super().add_times(fresh, logbook, began_s, over_s, company)
        self.keeper.note_pass(logbook, None, began_s, self.keeper.add(stats, fresh))
