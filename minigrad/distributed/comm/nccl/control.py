"""What ranks on GPUs tell each other beside NCCL: host data, how far each is, failures. Bytes, never pickle.

The connections of a Rendezvous form a star: each rank sends to rank 0, which collects what ranks gather, and how far
they are, and sends all of it to each in one message: 2(W - 1) in all. Failures it passes on at once. The thread of a
rank hears messages as they come, so a failure reaches a rank that waits inside NCCL, and it looks after the work under
way a few times within a timeout.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from minigrad.distributed.comm.calls import Trail
from minigrad.distributed.comm.nccl.gatherings import Gatherings
from minigrad.distributed.comm.nccl.meetings import Meetings
from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.nccl.partings import Partings
from minigrad.distributed.comm.nccl.progress import Progress
from minigrad.distributed.comm.nccl.star import Star
from minigrad.distributed.comm.nccl.world import World
from minigrad.distributed.comm.where import user_line
from minigrad.errors import DistributedError

_AT_ONCE = (Kind.LEFT, Kind.FAILED, Kind.GAVE_UP)  # what rank 0 passes on as it comes
_LOOKS = 8  # how often the thread looks after the work within a timeout, at least
_TICK_S = 0.25


class Control:
    """One rank's side of it: the parts, and what the star's thread does in each turn. The rank's own thread makes it.

    Args:
        star: The connections, whose thread is started.
        timeout_s: How long a call waits for a rank.
        watch: Called by the thread at each look, while nothing has failed.
        on_failure: Called by the thread, once, when this or another rank has failed.
    """

    def __init__(
        self,
        star: Star,
        timeout_s: float,
        watch: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        tick_s, self._watch = min(_TICK_S, timeout_s / _LOOKS), watch
        line = functools.partial(user_line, threading.get_ident())
        self.star, self.world = star, World(star, timeout_s, line, on_failure)
        world = self.world
        self.trail = trail = Trail()
        self.progress = Progress(world, star, trail, tick_s)
        self.gatherings, self.meetings = Gatherings(world, star), Meetings(world, star)
        self.partings = Partings(world, star, trail, self.progress, self.meetings)
        self._takers: dict[Kind, Callable[[Message], None]] = {
            Kind.ITEM: self.gatherings.take,
            Kind.STATE: self._take_state,
            Kind.LEFT: self._take_state,
            Kind.FAILED: world.take_failure,
            Kind.GAVE_UP: world.take_given_up,
            Kind.CALLS: self.partings.take_calls,
            Kind.TELL: self.partings.take_tell,
            Kind.SAME: self.partings.take_same,
            Kind.MEET: self.meetings.take_meet,
            Kind.PASS: self.meetings.take_pass,
            Kind.MEET_AT: self.meetings.take_place,
        }
        star.start(tick_s, self._hear, world.lose, self._turn)

    def leave(self) -> None:
        """Make no more calls; the others hear of it. The thread ends when the other ranks have left as well."""
        if self.world.failure is not None:
            self.world.flush()  # this rank alone may know of it, and can't tell any more
        self.star.leave(self.progress.state(self.trail.end(), kind=Kind.LEFT))

    def _hear(self, message: Message, source: int) -> None:
        if self.star.rank == 0 and message.kind in _AT_ONCE:
            self.star.broadcast(message, source)  # first: who has what it waits for may end the process
        if self.star.rank == 0 and message.kind == Kind.ITEM:
            self.gatherings.collect(message)
            return
        with self.world.changed:
            self._takers[message.kind](message)
            self.world.changed.notify_all()

    def _take_state(self, message: Message) -> None:
        self.partings.hear(message.rank, self.progress.take(message))

    def _turn(self) -> None:
        if self.world.failure is None or self.star.has_left:  # the others may wait for what is found here
            self._look()
        if self.world.failure is not None:
            self.world.deal_with_failure()

    def _look(self) -> None:
        if not self.star.has_left:
            try:
                self._watch()
            except Exception as error:
                self.world.fail(DistributedError(f"rank {self.star.rank}: watchdog: {error!r}"))
            self.world.check_given_up()
        self.partings.look()
        self.progress.tell()
