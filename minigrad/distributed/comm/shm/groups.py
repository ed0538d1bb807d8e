"""Groups of the processes of one host: each has segments and a board of its own, set up over those of its parent."""

from __future__ import annotations

from typing import Any

from minigrad.distributed.comm.groups import Exchange, Group, Groups
from minigrad.distributed.comm.shm.board import Board


class ShmGroups(Groups):
    """What a `ShmCommunicator` has of groups.

    Attributes:
        board: Where its ranks see each other.
    """

    board: Board

    def listen(self) -> None:
        """Fail of what others tell, here or in what this is a group of; raises nothing.

        It is looked for there too, since nobody else would in a wait.
        """
        told = self.board.told_failure()
        if told is not None:
            self.failure.set(told)
        if self.parent is not None:
            self.parent.listen()

    def _split(self, group: Group | None, exchange: Exchange) -> Any:
        if group is None:
            return None
        kind: Any = type(self)
        made = kind(group.rank, len(group.ranks), exchange, timeout_s=self.timeout_s, clock=self.clock)
        made.board.group = group.name
        return made
