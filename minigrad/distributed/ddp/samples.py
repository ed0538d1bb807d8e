"""What a rank's gradients weigh: the samples of the forwards behind them, or what somebody said in their place."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from minigrad.stamp import next_number

_MOST_FORWARDS = 65536  # remembered at once: those that no backward has reached, evaluations say, never go else


class SampleCount:
    """The samples of one rank since the last synchronisation.

    Attributes:
        total: Samples behind the gradients that there are.
        weighed: Whether a forward, or anybody, has said what those gradients weigh; it may be nothing.
    """

    def __init__(self) -> None:
        self.total, self.weighed = 0.0, False
        self._forwards = deque[tuple[int, int, float]](maxlen=_MOST_FORWARDS)  # first and last number, samples
        self._pending = 0.0  # of the forwards since the last backward

    def add_forward(self, samples: float, began: int) -> None:
        """Say how many samples a forward pass took that is over now.

        Args:
            began: What `next_number` gave before it: all nodes that it recorded have higher numbers.
        """
        self._forwards.append((began, next_number(), samples))
        self._pending += samples

    def behind(self, numbers: list[int]) -> list[float]:
        """The samples of each forward of which these nodes, in ascending order, hold a part."""
        found = []
        for began, ended, samples in reversed(self._forwards):
            if not numbers or ended < numbers[0]:
                break
            after = bisect_right(numbers, began)
            if after < len(numbers) and numbers[after] < ended:
                found.append(samples)
        return found

    def pending(self) -> list[float]:
        """The samples of the forwards since the last backward, together; nothing where there are none."""
        return [self._pending] if self._pending else []

    def add(self, samples: list[float]) -> None:
        """Gradients of so many samples, of several forwards, join those that there are; of none says nothing."""
        self.total += sum(samples)
        self.weighed = self.weighed or bool(samples)
        self._pending = 0.0

    def forget(self) -> None:
        """Gradients are combined, or gone."""
        self.total, self.weighed = 0.0, False
