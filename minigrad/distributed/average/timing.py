"""How long each rank takes from one combination to the next, for policies that go by it."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from typing import Any

from minigrad.distributed.average.policies import RoundTime
from minigrad.distributed.balance.divergence import Divergence
from minigrad.distributed.balance.meter import Metered, StepTimes
from minigrad.distributed.comm.protocol import Communicator

Round = tuple[list[RoundTime], Divergence | None]


class RoundTimes:
    """Times the rounds of a rank, and tells all ranks those of all: one small message a round.

    Args:
        who: For messages.
        comm: The ranks.

    Attributes:
        comm: What combinations have to go through, so that waiting is told from computing.
    """

    def __init__(self, who: str, comm: Communicator) -> None:
        self.comm = Metered(comm)
        self._times = StepTimes(who, self.comm)
        self._made = deque[tuple[int, Divergence | None]]()  # of the rounds that were not read yet, the oldest first
        self._unread: list[list[Any]] = []  # rows that not all ranks have read yet: those of a device come later
        self._divergences = deque[Divergence | None]()  # of the rounds whose rows are there
        self._open = ExitStack()
        self._open.enter_context(self._times.measure(1))

    def forget(self) -> None:
        """Forget what not all ranks have read: a state was loaded that knows nothing of it."""
        self._unread.clear()
        self._divergences.clear()

    def turn(self, batches: int, divergence: Divergence | None) -> list[Round]:
        """A round is over, and the next begins; all ranks call it together.

        Returns:
            The rounds that all ranks have read by now, and that were not returned before.
        """
        self._open.close()
        self._made.append((batches, divergence))
        for time in self._times.read():
            count, apart = self._made.popleft()
            self._divergences.append(apart)
            computed_ms = max(0.0, 1e3 * time.computed_s) if count else 0.0
            self._unread.append([count, computed_ms, 1e3 * time.waited_s])
        gathered = self.comm.inner.all_gather_object(self._unread)
        known = list(zip(*gathered))
        self._unread = self._unread[len(known) :]
        self._open.enter_context(self._times.measure(1))
        return [([RoundTime(*row) for row in rows], self._divergences.popleft()) for rows in known]
