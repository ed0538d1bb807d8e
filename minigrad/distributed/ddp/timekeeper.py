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
from minigrad.distributed.ddp.account import Account, Note
from minigrad.distributed.ddp.lanes import DeviceLane
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.ddp.pass_notes import BucketNotes, numbers_of, told, told_locally
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
    lane.keeper, reducer.lane, keeper.booked = keeper, lane, lane.booked
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
        booked: Whose logbook is that of the pass under way.
        row: What was summed at the start of the pass under way, the samples of this rank first.
        launches: Of each bucket that went out in this pass: the number of the logbook's first call for it, that of the
            first one after it, when its launch began, and when it was over.
    """

    def __init__(self, track: Track, reducer: Reducer, moments: DeviceMoments | None) -> None:
        self.track, self._reducer, self._moments = track, reducer, moments
        self.now_s, self.mark = track.now_s, track.mark
        self.launches: list[tuple[int, int, Moment, Moment]] = []
        self.row, self.booked, self._fresh = [0.0], reducer.lane.booked, Stats()
        self._leaves: list[tuple[int, Moment]] = []
        self._began: Moment = 0.0
        self._began_s, self._is_local, self._passes, self._sent = 0.0, False, 0, (0, 0)
        self._calls: list[Note] = []
        self._first, self._launch_s = 0, cast(Moment, 0.0)
        self._name = f"{reducer.name} of ranks {list(reducer.comm.global_ranks)}"
        self._plan: Any = None  # of the last pass
        self._notes = BucketNotes(self._name, {}, (), moments is not None)

    def __enter__(self) -> None:
        """A bucket goes out."""
        logbook = self.booked.logbook
        self._calls = calls = [] if logbook is None else logbook.calls
        self._first, self._launch_s = len(calls), self.mark()

    def __exit__(self, *error: object) -> None:
        self.launches.append((self._first, len(self._calls), self._launch_s, self.mark()))

    def begin(self, leaves: Reached) -> None:
        """Backward starts."""
        if self.track.backward[0] is not leaves:
            self.track.backward = leaves, []
        self._leaves, self.launches = self.track.backward[1], []
        self._is_local, self._began_s = not self._reducer.syncing, self.now_s()
        self._began = self._began_s if self._moments is None else self.mark()

    def leaf(self, leaf: Any) -> None:
        """A gradient is complete."""
        self._leaves.append((id(leaf), self.mark()))

    def end(self, error: BaseException | None) -> None:
        """Backward is over; what was synchronised ends with its pass."""
        self.track.backward = None, []
        if error is not None:
            self._leaves, self.launches = [], []
        elif self._is_local:
            ended_s = self.now_s()
            fields = {"of": self._name, "backward_s": ended_s - self._began_s}
            self.track.note("backward", "local", self._began_s, ended_s, fields)
            self.track.later(told_locally, self._of_plan(), self._began, self._leaves)

    def fresh(self) -> Stats:
        """Statistics of the next pass alone, which has taken no time yet."""
        fresh = self._fresh
        fresh.backward_s = fresh.idle_s = fresh.exposed_s = fresh.hidden_s = 0.0
        return fresh

    def add(self, stats: Stats, fresh: Stats) -> dict[str, float]:
        """Add to the statistics what a pass took; what it came to, which are the same figures to the last bit."""
        stats.backward_s += fresh.backward_s
        stats.idle_s += fresh.idle_s
        stats.exposed_s += fresh.exposed_s
        stats.hidden_s += fresh.hidden_s
        sent, calls = self._sent if stats.passes > 1 else (0, 0)  # else the first, or it was reset meanwhile
        self._sent = stats.bytes_sent, stats.calls
        return {
            "samples": self.row[0],
            "backward_s": fresh.backward_s,
            "idle_s": fresh.idle_s,
            "exposed_s": fresh.exposed_s,
            "hidden_s": fresh.hidden_s,
            "bytes_sent": stats.bytes_sent - sent,
            "calls": stats.calls - calls,
        }

    def note_pass(
        self, logbook: Logbook, account: Account | None, began_s: float, sums: dict[str, float]
    ) -> None:
        """Write what a pass came to, which is over; numbers alone, which become spans when somebody reads them."""
        track = self.track
        lived = (self._of_plan(), self._passes, self._began, self._leaves, self.launches)
        sent = numbers_of(logbook, account)
        track.later(told, *lived, *sent, 8 * len(self.row), began_s, self.now_s(), sums, self._is_local)
        track.end_step()
        self._passes, self.launches, self._leaves = self._passes + 1, [], []
        if self._moments is not None:
            self._moments.settle()

    def _of_plan(self) -> BucketNotes:
        """What passes by the plan in force have in common; where it is new, its buckets are kept as a fact."""
        reducer, plan = self._reducer, self._reducer.buckets.plan
        if plan is not self._plan:
            layout, of = reducer.layout, reducer.buckets.of
            leaves = {id(p): (name, of.get(layout.number[id(p)])) for p, name in zip(layout.params, layout.names)}
            nbytes = [bucket.nbytes for bucket in plan.buckets]
            self._plan, self._notes = plan, self._notes._replace(leaves=leaves, nbytes=nbytes)
            caps = {"cap_bytes": reducer.options.cap_bytes, "first_cap_bytes": reducer.options.first_cap_bytes}
            entries = [asdict(entry) for entry in layout.entries()]
            order = {"in_order": reducer.in_order, "find_unused": reducer.options.find_unused}
            about = {"ranks": reducer.comm.global_ranks, "entries": entries}
            buckets = [bucket.entries for bucket in plan.buckets]
            self.track.facts[self._name] = {**about, "buckets": buckets, **caps, **order}
        return self._notes


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
        fresh = self.keeper.fresh()
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
        fresh = self.keeper.fresh()
        super().add_times(fresh, logbook, began_s, over_s, company)
        self.keeper.note_pass(logbook, None, began_s, self.keeper.add(stats, fresh))
