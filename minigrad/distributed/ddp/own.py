"""A rank's own gradients, which were not combined yet: what they weigh, and which ones they are."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from minigrad.distributed.ddp.layout import Layout
from minigrad.distributed.ddp.refusals import uncounted, unweighed
from minigrad.kept import drop_gradient
from minigrad.nn.parameter import Parameter
from minigrad.stamp import next_number

_MOST_FORWARDS = 65536  # remembered at once: those that no backward has reached, evaluations say, never go else


class OwnGradients:
    """What is known of the gradients of one rank.

    Attributes:
        mean: Whether gradients are weighted by samples; else they are added up.
        samples: Those behind the gradients that there are, since the last synchronisation.
        weighed: Whether a forward, or anybody, has said what those gradients weigh; it may be nothing.
        said: What somebody says that they weigh, in place of the forwards; None where nobody does.
        combined: Whether those that there are were combined, but for those set by hand.
        spoilt: Whether a backward failed that may have left or weighted some.
    """

    def __init__(self, layout: Layout, mean: bool, rank: int) -> None:
        self._layout, self.mean, self._rank = layout, mean, rank
        self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, False, False
        self.said: float | None = None
        self._forwards = deque[tuple[int, int, float]](maxlen=_MOST_FORWARDS)  # first and last number, samples
        self._pending = 0.0  # samples of the forwards since the last backward

    def add_forward(self, samples: float, began: int) -> None:
        """A forward is over that took so many samples; before it, `next_number` gave began."""
        self._forwards.append((began, next_number(), samples))
        self._pending += samples

    @contextmanager
    def saying(self, samples: float | None) -> Iterator[None]:
        """Inside, gradients weigh this, whatever the forwards behind them."""
        before, self.said = self.said, samples
        try:
            yield
        finally:
            self.said = before

    def take_backward(self, numbers: list[int]) -> None:
        """The gradients of a backward, which has nodes of these numbers, in ascending order, join those that there are.

        The samples of each forward that recorded some of them count; where there is none, that is an AutogradError.
        """
        found = [] if self.said is None else [self.said]
        for began, ended, samples in reversed(self._forwards) if self.said is None else ():
            if not numbers or ended < numbers[0]:
                break
            after = bisect_right(numbers, began)
            if after < len(numbers) and numbers[after] < ended:
                found.append(samples)
        if self.mean and not found:
            raise uncounted(self._rank)
        self._take(found)

    def take_present(self, numbers: Iterable[int], has_data: bool, weighted: bool) -> None:
        """What is there is to be combined, with no backward before.

        Args:
            numbers: Of the parameters that are.
            has_data: Whether this rank still has any: losses that reach nothing have samples too.
            weighted: The gradients are weighted already, and none of them is a combined one.

        Raises:
            AutogradError: nobody has said what some of them weigh.
        """
        pending, said = self._pending, self.said if has_data else None
        self._take([] if said is None else [said])
        self.combined = self.combined and not weighted
        if self.mean and not self.weighed:
            own = [self._layout.names[i] for i in numbers if self._holds(self._layout.params[i])]
            if own:
                raise unweighed(self._rank, own)
        if self.said is None and has_data and pending:
            self._add([pending])

    def _take(self, samples: list[float]) -> None:
        """Samples join those since the last synchronisation, unless the gradients of these are gone."""
        if self.weighed or self.spoilt or not self.mean or not any(samples):
            if all(param.grad_array is None for param in self._layout.params):
                self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, False, False
        self._add(samples)

    def _add(self, samples: list[float]) -> None:
        self.samples += sum(samples)
        self.weighed = self.weighed or bool(samples)
        self._pending = 0.0

    def settle(self) -> None:
        """All are combined now."""
        self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, True, False

    def _holds(self, param: Parameter) -> bool:
        """Whether there is a gradient, and it is not a combined one: it was set by hand, or none was combined since."""
        return param.grad_array is not None and (param.grad_by_hand or self.spoilt or not self.combined)

    def drop(self, params: Iterable[Parameter]) -> None:
        """Drop those of these parameters; combined ones stay."""
        for param in params:
            if self._holds(param):
                drop_gradient(param)

    def drop_weightless(self, params: Iterable[Parameter], has_data: bool) -> None:
        """Without samples: drop what may not be sent; in a sum those are combined ones of who has no data any more."""
        for param in params:
            if self._holds(param) if self.mean else self.combined and not has_data and not param.grad_by_hand:
                drop_gradient(param)
