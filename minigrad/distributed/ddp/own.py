"""A rank's own gradients, which were not combined yet: what they weigh, which ones they are, and what is refused."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from minigrad.distributed.ddp.layout import Layout
from minigrad.errors import AutogradError
from minigrad.kept import drop_gradient
from minigrad.nn.parameter import Parameter
from minigrad.stamp import next_number

_MOST_FORWARDS = 65536  # remembered at once: those that no backward has reached, evaluations say, never go else


class OwnGradients:
    """What is known of the gradients of one rank.

    Args:
        layout: The parameters.
        mean: Whether gradients are weighted by samples; else they are added up.
        rank: For messages.

    Attributes:
        samples: Those behind the gradients that there are, since the last synchronisation.
        weighed: Whether a forward, or anybody, has said what those gradients weigh; it may be nothing.
        said: What somebody says that they weigh, in place of the forwards; None where nobody does.
        combined: Whether those that there are were combined, but for those set by hand.
        spoilt: Whether a backward failed that may have left or weighted some.
    """

    def __init__(self, layout: Layout, mean: bool, rank: int) -> None:
        self._layout, self.mean = layout, mean
        self._who = f"rank {rank}: DistributedDataParallel"
        self.samples, self.weighed, self.combined, self.spoilt = 0.0, False, False, False
        self.said: float | None = None
        self._forwards = deque[tuple[int, int, float]](maxlen=_MOST_FORWARDS)  # first and last number, samples
        self._pending = 0.0  # samples of the forwards since the last backward

    # ------------------------------------------------------------------------------------------- what they weigh

    def add_forward(self, samples: float, began: int) -> None:
        """Say how many samples a forward pass took that is over now.

        Args:
            began: What `next_number` gave before it: all nodes that it recorded have higher numbers.
        """
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
        """The gradients of a backward join those that there are.

        Args:
            numbers: Of its nodes, in ascending order: the samples of each forward that recorded some of them count.

        Raises:
            AutogradError: there is none: they would have a wrong weight, or stay local.
        """
        if self.said is not None:
            self._take([self.said])
            return
        found = []
        for began, ended, samples in reversed(self._forwards):
            if not numbers or ended < numbers[0]:
                break
            after = bisect_right(numbers, began)
            if after < len(numbers) and numbers[after] < ended:
                found.append(samples)
        if self.mean and not found:
            raise AutogradError(
                f"{self._who}: expected a forward through the wrapper before backward, got none: call the wrapper, "
                "not its module, or say with samples(n) what the loss counts"
            )
        self._take(found)

    def take_present(self, numbers: Iterable[int], has_data: bool, weighted: bool) -> None:
        """What is there is to be combined, with no backward before.

        Args:
            numbers: Of the parameters that are.
            has_data: Whether this rank still has any: losses that reach nothing have samples too.
            weighted: The gradients are weighted already, and none of them is a combined one.

        Raises:
            AutogradError: nobody has said what some of them weigh: they would be dropped, or stay this rank's own.
        """
        pending = [self._pending] if self._pending else []
        said = self.said if has_data else None
        self._take([] if said is None else [said])
        self.combined = self.combined and not weighted
        if self.mean and not self.weighed:
            own = [self._layout.names[i] for i in numbers if self._holds(self._layout.params[i])]
            if own:
                raise AutogradError(
                    f"{self._who}: expected gradients that a backward through the wrapper made since the last "
                    f"synchronisation, got others, such as set by hand, of {', '.join(own)}: say what they weigh, "
                    "with samples(n) around this call, change combined ones in place, or zero_grad()"
                )
        if self.said is None and has_data:
            self._add(pending)

    def _take(self, samples: list[float]) -> None:
        """Samples join those since the last synchronisation, unless the gradients of these are gone."""
        if self.weighed or self.spoilt or not self.mean or not any(samples):
            if all(param.grad_array is None for param in self._layout.params):
                self.combined = self.spoilt = False
                self._forget()
        self._add(samples)

    def _add(self, samples: list[float]) -> None:
        self.samples += sum(samples)
        self.weighed = self.weighed or bool(samples)
        self._pending = 0.0

    def _forget(self) -> None:
        self.samples, self.weighed = 0.0, False

    def settle(self) -> None:
        """All are combined now."""
        self.combined, self.spoilt = True, False
        self._forget()

    # ------------------------------------------------------------------------------------------- which ones they are

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
        if self.mean:
            self.drop(params)
        elif not has_data and self.combined:
            for param in params:
                if not param.grad_by_hand:
                    drop_gradient(param)

    # ------------------------------------------------------------------------------------------------ what is refused

    def check_frozen(self, trained: Sequence[bool], weighed: bool) -> None:
        """Refuse a parameter that was frozen with a gradient that was not combined: it would stay this rank's own.

        Args:
            trained: Which parameters got a gradient before.
            weighed: Whether there were counted gradients before the pass under way.

        Raises:
            AutogradError: there is one.
        """
        own = [
            name
            for name, param, was_trained in zip(self._layout.names, self._layout.params, trained)
            if was_trained and not param.requires_grad and param.grad_array is not None
            if weighed or param.grad_by_hand
        ]
        if own:
            raise AutogradError(
                f"{self._who}: expected gradients to be combined before their parameters are frozen, got accumulated "
                f"ones of {', '.join(own)}: call flush() or zero_grad() first"
            )

    def check_not_combined_twice(self) -> None:
        """Refuse to add up combined gradients once more; AutogradError."""
        if self.mean or not self.combined:
            return
        if not all(param.grad_by_hand for param in self._layout.params if param.grad_array is not None):
            raise AutogradError(
                "DistributedDataParallel: expected no combined gradients before a backward with reduce='sum', "
                "got some, which would be added up again: call zero_grad() first"
            )
