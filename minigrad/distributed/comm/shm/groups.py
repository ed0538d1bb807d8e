"""Groups of the processes of one host: each has segments and a board of its own, set up over those of its parent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from minigrad.distributed.comm.groups import Exchange, Group, Groups
from minigrad.distributed.comm.shm.board import Board
from minigrad.distributed.comm.shm.mailbox import Mailbox
from minigrad.errors import DistributedError


class ShmGroups(Groups):
    """What a `ShmCommunicator` has of groups.

    Attributes:
        board: Where its ranks see each other.
        mail: The messages of this rank.
        thread: The one that called last.
    """

    board: Board
    mail: Mailbox
    thread: int

    def advance(self) -> None:
        """Do this rank's share of what all have posted; never waits."""
        raise NotImplementedError

    def help_relatives(self) -> None:
        """Do this rank's share in groups, and in what this is a group of, for others may wait there; never waits.

        What fails there is raised by its own calls. What another thread has called there is left to that one.
        """
        if self.parent is None and not self.groups:
            return
        me = threading.get_ident()
        for other in below(top(self)):
            if other is not self and other.thread == me and other.failure.error is None:
                try:
                    other.advance()
                    if other.mail.asked:
                        other.mail.advance()
                except DistributedError:
                    pass

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


def top(comm: Groups) -> Groups:
    """What a group was split off, and that one was, and so on."""
    while comm.parent is not None:
        comm = comm.parent
    return comm


def below(comm: Any) -> Iterator[Any]:
    """A communicator, its groups, and theirs."""
    yield comm
    for group in comm.groups:
        yield from below(group)
