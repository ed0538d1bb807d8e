"""What ranks on GPUs tell each other beside NCCL: host data, how far each is, failures. Bytes, never pickle.

The connections of a Rendezvous form a star: each rank sends to rank 0, which collects what ranks gather, and how far
they are, and sends all of it to each in one message: 2(W - 1) in all. Failures it passes on at once. The thread of a
rank hears messages as they come, so a failure reaches a rank that waits inside NCCL, and it looks after the work under
way a few times within a timeout.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from minigrad.distributed.comm.calls import Kept
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.headers import mismatch
from minigrad.distributed.comm.nccl.gatherings import Gatherings
from minigrad.distributed.comm.nccl.meetings import Meetings
from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.nccl.partings import Partings
from minigrad.distributed.comm.nccl.progress import Progress
from minigrad.distributed.comm.nccl.sightings import look_at
from minigrad.distributed.comm.nccl.star import Star
from minigrad.distributed.comm.nccl.trail import WAYPOINT_BYTES, Waypoint
from minigrad.distributed.comm.nccl.world import World
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.errors import DistributedError, ReplicaMismatchError

_AT_ONCE = (Kind.LEFT, Kind.FAILED, Kind.GAVE_UP)  # what rank 0 passes on as it comes
_LOOKS = 8  # how often the thread looks after the work within a timeout, at least
_TICK_S = 0.25


class Control:
    """One rank's side of it: the parts, and what the thread does in each turn. The rank's own thread makes it.

    Args:
        meeting: The rendezvous, whose connections it takes over.
        failure: What made this world fail.
        calls: The last ones of this rank, the latest first.
        timeout_s: How long a call waits for a rank.
        on_failure: Called by the thread, once, when this or another rank has failed.

    Attributes:
        world, trail, progress, meetings: What is known; all that this rank has called; what it tells of that; where
            passes meet.
        gather: See `Gatherings.gather`.
    """

    def __init__(
        self,
        meeting: Rendezvous,
        failure: Failure,
        calls: deque[Kept],
        timeout_s: float,
        on_failure: Callable[[], None],
    ) -> None:
        self._tick_s = min(_TICK_S, timeout_s / _LOOKS)
        self.star = Star(meeting)
        self.world = world = World(self.star, failure, timeout_s, on_failure)
        self.progress, self.meetings = Progress(world, calls, self._tick_s), Meetings(world)
        self.trail = self.progress.trail
        look_at(world, calls)
        self._gatherings, self._partings = Gatherings(world), Partings(world, self.progress, self.meetings)
        self.gather = self._gatherings.gather
        self._takers: dict[Kind, Callable[[Message], None]] = {
            Kind.ITEM: self._gatherings.take,
            Kind.STATE: self._take_state,
            Kind.LEFT: self._take_state,
            Kind.FAILED: world.take_failure,
            Kind.GAVE_UP: world.take_given_up,
            Kind.CALLS: self._partings.take_calls,
            Kind.TELL: self._partings.take_tell,
            Kind.SAME: self._partings.take_same,
            Kind.MEET: self.meetings.take_meet,
            Kind.PASS: self.meetings.take_pass,
            Kind.MEET_AT: self.meetings.take_place,
        }

    def listen(self, takers: Mapping[Kind, Callable[[Message], None]]) -> None:
        """Let others take messages of more kinds."""
        self._takers.update(takers)

    def start(self, watch: Callable[[], None]) -> None:
        """Start the thread.

        Args:
            watch: Called by it at each look, while nothing has failed.
        """
        self._watch = watch
        self.star.start(self._tick_s, self._hear, self.world.lose, self._turn)

    # ------------------------------------------------------------------------------------------------ for the caller

    def agree(self, text: str, data: bytes = b"") -> list[bytes]:
        """Return when all ranks have come here, with the same text and the same calls before: the data of each.

        Raises:
            CollectiveMismatchError: they differ; on all ranks. Or what `gather` raises.
        """
        world, trail, count = self.world, self.trail, self.trail.end().done
        before = trail.at(count - 1) or trail.end()
        gathered = self.gather(text, before.packed() + data)
        points = [Waypoint.unpacked(part[:WAYPOINT_BYTES]) for _, part in gathered]
        first_rank = {text: rank for rank, (text, _) in reversed(list(enumerate(gathered)))}
        if len(first_rank) > 1 or any(point.calls != before.calls for point in points):
            world.check_given_up(all_came=True)
            if any(point[:2] != before[:2] for point in points):
                self._partings.name(points)
            calls = sorted((rank, text) for text, rank in first_rank.items())
            world.fail(mismatch(*calls, advice=": debug=True names the first that differs"))
            world.failure.raise_on(world.rank)
        self._partings.met(count, points)
        return [part[WAYPOINT_BYTES:] for _, part in gathered]

    def check_same(self, who: str, limit_s: float) -> None:
        """Return when all ranks that are there are found to have called what this one has so far; they need not come.

        Args:
            limit_s: How long that may take; where it takes longer than a call may, this rank fails.

        Raises:
            CollectiveMismatchError: they have called something else; on all ranks.
            ReplicaMismatchError: what is beside the model differs, and no pass has looked into it yet.
            CollectiveTimeoutError: a rank did not come so far in time. Or what made this world fail.
        """
        world = self.world
        apart = self._partings.await_same(limit_s)
        if apart is None and limit_s >= world.timeout_s:
            posted = world.peers[world.rank].posted
            world.fail(world.absence(who, [rank for rank, peer in enumerate(world.peers) if peer.posted < posted]))
            world.failure.raise_on(world.rank)
        if apart:
            raise ReplicaMismatchError(
                f"rank {world.rank}: {who}: expected all ranks to be alike beside the model too, got {apart}: "
                "the next pass names it, or finds them alike; another call takes this rank as it is"
            )

    def leave(self) -> None:
        """Make no more calls; the others hear of it. The thread ends when the other ranks have left as well."""
        if self.world.failure.error is not None:
            self.world.flush()  # this rank alone may know of it, and can't tell any more
        self.star.leave(self.progress.state(self.trail.end(), kind=Kind.LEFT))

    # ------------------------------------------------------------------------------------------------ for the thread

    def _hear(self, message: Message, source: int) -> None:
        if self.star.rank == 0 and message.kind in _AT_ONCE:
            self.star.broadcast(message, source)  # first: who has what it waits for may end the process
        if self.star.rank == 0 and message.kind == Kind.ITEM:
            self._gatherings.collect(message)
            return
        with self.world.failure.changed:
            self._takers[message.kind](message)
            self.world.failure.changed.notify_all()

    def _take_state(self, message: Message) -> None:
        self._partings.hear(message.rank, self.progress.take(message))

    def _turn(self) -> None:
        if self.world.failure.error is None or self.star.has_left:  # the others may wait for what is found here
            self._look()
        if self.world.has_failed:
            self.world.deal_with_failure()

    def _look(self) -> None:
        if not self.star.has_left:
            try:
                self._watch()
            except Exception as error:
                self.world.fail(DistributedError(f"rank {self.star.rank}: watchdog: {error!r}"))
            self.world.check_given_up()
        self._partings.look()
        self.progress.tell()
