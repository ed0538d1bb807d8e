"""Threads that go one after the other, in order of rank, so that what they hold together is the same in every run."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from minigrad.errors import CollectiveTimeoutError


class RankTurns:
    """Between two stops of a rank, no other rank runs. One that waits for another stops until that is there.

    Args:
        world_size: Number of ranks.
        timeout_s: How long a rank waits for its turn.
    """

    def __init__(self, world_size: int, timeout_s: float) -> None:
        self._changed = threading.Condition()
        self._stops = [0.0] * world_size  # that each rank has come to
        self._told = Counter[Hashable]()
        self._timeout_s = timeout_s

    def begin(self, rank: int) -> None:
        """Wait for the first turn."""
        self.go_on(rank)

    def pass_on(self, rank: int) -> None:
        """Come to a stop, and wait for the next turn."""
        self.leave_off(rank)
        self.go_on(rank)

    def leave_off(self, rank: int) -> None:
        """Come to a stop."""
        with self._changed:
            self._stops[rank] += 1
            self._changed.notify_all()

    def go_on(self, rank: int) -> None:
        """Wait for the turn.

        Raises:
            CollectiveTimeoutError: it does not come: another rank makes other stops.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_next(rank), self._timeout_s):
                raise CollectiveTimeoutError(
                    f"rank {rank}: expected all ranks to make as many calls, got ranks that came to {self._stops} stops"
                )

    def end(self, rank: int) -> None:
        """Come to no more stops."""
        with self._changed:
            self._stops[rank] = math.inf
            self._changed.notify_all()

    def tell(self, what: Hashable) -> int:
        """Count what a rank has done; how often that was."""
        with self._changed:
            self._told[what] += 1
            return self._told[what]

    def is_there(self, whats: Iterable[Hashable], times: int) -> bool:
        """Whether each of these was told so often."""
        with self._changed:
            return all(self._told[what] >= times for what in whats)

    def wait_for(self, rank: int, whats: Sequence[Hashable], times: int) -> None:
        """Come to stops until each of these was told so often.

        Raises:
            CollectiveTimeoutError: it is not.
        """
        until_s = time.monotonic() + self._timeout_s
        while not self.is_there(whats, times):
            if time.monotonic() > until_s:
                told = ", ".join(f"{what}: {self._told[what]}" for what in whats)
                raise CollectiveTimeoutError(
                    f"rank {rank}: expected others to come to call {times} within {self._timeout_s:g} s, got {told}"
                )
            self.pass_on(rank)

    def _is_next(self, rank: int) -> bool:
        before, ahead = self._stops[rank - 1], 0 if rank == 0 else 1
        return before >= self._stops[rank] + ahead
