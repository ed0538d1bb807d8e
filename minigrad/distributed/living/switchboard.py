"""The launcher's part: it passes on what its ranks post to each other, and tells all who live that one is dead."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable

from minigrad.distributed.living.lifeline import OUTSIDE, ParcelKind
from minigrad.distributed.living.pipes import Frame, Pipes

EVERY_SESSION = -1  # whom a death is told


class Switchboard:
    """A socket to each of the processes that a launcher starts.

    Args:
        world_size: How many there are.
        kill: Ends one of them, which another has dropped; from a thread of this.

    Attributes:
        opened: The ranks that hold, or held, a lifeline: they hear of deaths, and end by themselves.
        dropped: Why ranks were dropped.
    """

    def __init__(self, world_size: int, kill: Callable[[int], None]) -> None:
        pairs = [socket.socketpair() for _ in range(world_size)]
        self._theirs = [theirs for _, theirs in pairs]
        self._kill = kill
        self.opened: set[int] = set()
        self.dropped: dict[int, str] = {}
        self._dead: set[int] = set()
        self._pipes = Pipes({rank: ours for rank, (ours, _) in enumerate(pairs)}, self._hear, lambda rank: None)
        self._is_started = False

    def descriptor_for(self, rank: int) -> int:
        """The end that a rank's process inherits."""
        return self._theirs[rank].fileno()

    def start(self) -> None:
        """Start to pass on; after all processes were started: a fork must not meet a thread."""
        self._close_theirs()
        self._is_started = True
        self._pipes.start()

    def tell_death(self, rank: int, how: str) -> None:
        """A rank's process has ended; all others hear of it, after what it had posted.

        Args:
            how: In words.
        """
        self._pipes.call(functools.partial(self._tell_death, rank, how))

    def close(self) -> None:
        """End the thread, and close all sockets; idempotent."""
        self._close_theirs()
        self._pipes.close() if self._is_started else self._pipes.forked()

    def _close_theirs(self) -> None:
        for end in self._theirs:
            end.close()

    # -------------------------------------------------------------------------------------------------- in its thread

    def _hear(self, source: int, frame: Frame) -> None:
        if frame.kind is ParcelKind.OPENED:
            self.opened.add(source)
        elif frame.kind is ParcelKind.DROP:
            if frame.address not in self._dead:
                self.dropped.setdefault(frame.address, f"rank {source} dropped it: {frame.data.decode()}")
                self._kill(frame.address)
        elif frame.address != OUTSIDE:
            self._pipes.send(frame.address, frame._replace(address=source))

    def _tell_death(self, rank: int, how: str) -> None:
        self._pipes.read(rank)  # its last words first
        self._dead.add(rank)
        told = Frame(EVERY_SESSION, rank, ParcelKind.DEATH, self.dropped.get(rank, how).encode())
        for other in range(len(self._theirs)):
            if other != rank:
                self._pipes.send(other, told)
