"""In which pass ranks meet that else wait for nobody: there all of them stop, and tell each other their marks.

Marks of passes may differ and mean nothing, so where some do the ranks meet: each says in which pass it is, and the
latest of these is the one. It is the threads of the ranks that settle this, so nobody has to be anywhere; a rank that
comes to the end of the pass that it said waits there until the pass in which they meet is known.
"""

from __future__ import annotations

from collections.abc import Collection

from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.nccl.world import World
from minigrad.errors import CollectiveTimeoutError


class Meetings:
    """One rank's side of it. `meets` is the caller's; the rest is the thread's, which holds `Failure.changed` then.

    Args:
        world: What is known, and its connections.

    Attributes:
        is_on: Whether ranks meet in the pass that has ended last.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._passes = 0  # ends of passes so far
        self._from: list[int] = []  # passes from which on each wrapper meets once
        self._met: dict[str, int] = {}  # by wrapper, the last of those for which it has
        self._has_said = self.is_on = False  # a pass was said, and where ranks meet is not known
        self._passes_said: dict[int, int] = {}  # at rank 0, by rank

    def meets(self, who: str, news: bool) -> bool:
        """At the end of a pass: whether all ranks tell each other their marks here. Waits only while that is settled.

        Args:
            who: Whose pass it is, alike on all ranks.
            news: Whether something has come up on this rank that may not be alike.
        """
        world, number = self._world, self._passes
        with world.failure.changed:
            if news:
                self._ask(number)
            if not world.failure.changed.wait_for(self._knows_where, world.timeout_s):
                limit = f"within {world.timeout_s:g} s"
                world.fail(CollectiveTimeoutError(f"the end of a pass: expected to hear {limit} where ranks meet"))
            world.failure.raise_on(world.rank)
            start = max((at for at in self._from if at <= number), default=-1)
            self._from = [at for at in self._from if at >= start]
            self._passes += 1
            self.is_on = start > self._met.get(who, -1)
            self._met[who] = max(start, self._met.get(who, -1))
        return self.is_on

    def _knows_where(self) -> bool:
        return not self._has_said or self._world.is_alone or self._world.failure.error is not None

    def call(self) -> None:
        """At rank 0: let ranks meet."""
        if not self.is_on:
            self._ask(self._passes)

    def _ask(self, number: int) -> None:
        """Let ranks meet in this pass or later, where they do not yet."""
        if any(at >= number for at in self._from) or self._passes_said:
            return
        self._has_said = True
        if self._world.rank == 0:
            self._passes_said, number = {0: self._passes}, 0
        self._world.star.post(Message(Kind.MEET, self._world.rank, number))

    def take_meet(self, message: Message) -> None:
        """Rank 0 asks in which pass this rank is; or, at rank 0, a rank asks to meet."""
        if self._world.rank == 0:
            self._ask(message.number)
        else:
            self._has_said = True
            self._world.star.post(Message(Kind.PASS, self._world.rank, self._passes))

    def take_pass(self, message: Message) -> None:
        """At rank 0: another one says in which pass it is."""
        if self._passes_said:
            self._passes_said[message.rank] = message.number

    def look(self, here: Collection[int]) -> None:
        """At rank 0: say where ranks meet, once those that are here have said in which pass they are."""
        if self._passes_said and all(rank in self._passes_said for rank in here):
            number, self._passes_said = max(self._passes_said.values()), {}
            self._settle(number)

    def _settle(self, number: int) -> None:
        message = Message(Kind.MEET_AT, 0, number)
        self._world.star.post(message)
        self.take_place(message)

    def take_place(self, message: Message) -> None:
        """Rank 0 says in which pass they meet."""
        self._from.append(message.number)
        self._has_said = False
        self._world.failure.changed.notify_all()
