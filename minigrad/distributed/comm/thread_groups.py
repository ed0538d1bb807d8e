"""Groups of thread ranks: each is a world of its own, which the last rank that comes to the split makes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from minigrad.distributed.comm.groups import WHAT, Exchange, Group, Groups


class Leavable(Protocol):
    """A world that a rank leaves."""

    def leave(self, rank: int, why: str) -> None:
        """A rank makes no more calls."""


def leave_groups(groups: Sequence[tuple[tuple[int, ...], Leavable]], rank: int, why: str) -> None:
    """Let a rank leave the worlds of all groups that it is in.

    Args:
        groups: The ranks of each, and its world.
    """
    for ranks, world in groups:
        if rank in ranks:
            world.leave(ranks.index(rank), why)


class ThreadGroups(Groups):
    """What a `ThreadCommunicator` has of groups."""

    def _split(self, group: Group | None, exchange: Exchange) -> Any:
        comm: Any = self  # a ThreadCommunicator
        world = comm.world

        def make(asked: list[Group | None]) -> dict[tuple[int, ...], Any]:
            parts = {each.ranks for each in asked if each is not None}
            made = {ranks: type(world)(len(ranks), timeout_s=self.timeout_s) for ranks in parts}
            for ranks, part in made.items():
                part.parent = ranks, weakref.ref(world)
                threads = world._threads
                part._threads.update((i, threads[rank]) for i, rank in enumerate(ranks) if rank in threads)
            world.groups = [each for each in world.groups if len(each[1]._left) < len(each[0])] + list(made.items())
            return made

        worlds = world.wait(self.rank, comm._post(WHAT, None, group, make))
        if group is None:
            return None
        return type(comm)(worlds[group.ranks], group.rank, self.device, clock=self.clock)
