"""How a rank that a coordinator directs hears of its commands, and answers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Clock, Communicator
from minigrad.distributed.living.lifeline import OUTSIDE, Death, Letter
from minigrad.train import coordinator as c
from minigrad.train.run.virtual import VirtualLine

_LONG_S = 60.0
_EON = 10**9  # communicators of one coordinator


class Letters(Protocol):
    """A rank's way to the coordinator, and to the other ranks that live."""

    def next(self, timeout_s: float | None) -> c.Order | None:
        """The next command; None where none comes in time. Without a time it waits as long as it takes."""

    def say(self, message: c.CoordinatorMessage) -> None:
        """Tell the coordinator."""

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """A communicator of the living, which all of them call for."""

    def together(self, members: Sequence[int]) -> AbstractContextManager[None]:
        """Around what these do in collectives."""

    def now_s(self) -> float:
        """The time, in seconds."""

    @property
    def clock(self) -> Clock:
        """What tells it."""


def generation_of(order: c.Order) -> int:
    """The number of the communicator that begins after this command; above all before."""
    return order.term * _EON + order.ask


class Line(Protocol):
    """One end of the way between ranks: a `Lifeline`, or one in virtual time."""

    def post(self, rank: int, data: Any) -> None:
        """Let a rank have data."""

    def take(self, timeout_s: float) -> Letter | Death | None:
        """The next letter or death."""


class RankLine(Line, Protocol):
    """That of a rank."""

    def regroup(self, living: Sequence[int], generation: int) -> Any:
        """A communicator of the living."""


class LineLetters:
    """The commands of a coordinator at one end of the way between ranks, for a rank at another.

    Args:
        line: Of this rank.
        coordinator: Where it is.
    """

    def __init__(self, line: RankLine, coordinator: int = OUTSIDE) -> None:
        self._line, self._coordinator, self._term = line, coordinator, 0

    def next(self, timeout_s: float | None) -> c.Order | None:
        """See `Letters`; commands of a coordinator before the last are none."""
        while True:
            found = self._line.take(_LONG_S if timeout_s is None else timeout_s)
            if isinstance(found, Letter):
                order: c.Order = c.from_data(found.data)
                if order.term >= self._term:
                    self._term = order.term
                    return order
            elif found is None and timeout_s is not None:
                return None

    def say(self, message: c.CoordinatorMessage) -> None:
        """See `Letters`."""
        self._line.post(self._coordinator, c.to_data(message))

    def regroup(self, living: Sequence[int], generation: int) -> Communicator:
        """See `Letters`."""
        comm: Communicator = self._line.regroup(living, generation)
        return comm

    def together(self, members: Sequence[int]) -> AbstractContextManager[None]:
        """See `Letters`."""
        return self._line.together(members) if isinstance(self._line, VirtualLine) else nullcontext()

    def now_s(self) -> float:
        """See `Letters`."""
        return self._line.now_s() if isinstance(self._line, VirtualLine) else time.monotonic()

    @property
    def clock(self) -> Clock:
        """See `Letters`."""
        virtual = self._line.clock if isinstance(self._line, VirtualLine) else None
        return HostClock() if virtual is None else virtual
