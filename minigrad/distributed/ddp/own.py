"""A rank's own gradients, which were not combined yet: which ones they are, what they weigh, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minigrad.distributed.ddp.layout import Layout
from minigrad.distributed.ddp.samples import SampleCount
from minigrad.errors import AutogradError
from minigrad.kept import drop_gradient
from minigrad.nn.parameter import Parameter


class OwnGradients:
    """What is known of the gradients of one rank.

    Args:
        layout: The parameters.
        mean: Whether gradients are weighted by samples; else they are added up.
        rank: For messages.

    Attributes:
        samples: What they weigh.
        combined: Whether those that there are were combined, but for those set by hand.
        spoilt: Whether a backward failed that may have left or weighted some.
    """

    def __init__(self, layout: Layout, mean: bool, rank: int) -> None:
        self._layout, self._mean = layout, mean
        self._who = f"rank {rank}: DistributedDataParallel"
        self.samples = SampleCount()
        self.combined = self.spoilt = False

    def counted(self, numbers: list[int]) -> list[float]:
        """The samples of the forwards behind a backward, by the numbers of its nodes.

        Raises:
            AutogradError: there are none: its gradients would have a wrong weight, or stay local.
        """
        samples = self.samples.behind(numbers)
        if self._mean and not samples:
            raise AutogradError(
                f"{self._who}: expected a forward through the wrapper before backward, got none: call the wrapper, "
                "not its module, or say with samples(n) what the loss counts"
            )
        return samples

    def take(self, samples: list[float]) -> None:
        """The samples of what comes now join those since the last synchronisation, unless their gradients are gone."""
        if self.samples.weighed or self.spoilt or not self._mean or not any(samples):
            if all(param.grad_array is None for param in self._layout.params):
                self.combined = self.spoilt = False
                self.samples.forget()
        self.samples.add(samples)

    def settle(self) -> None:
        """All are combined now."""
        self.combined, self.spoilt = True, False
        self.samples.forget()

    def holds(self, param: Parameter) -> bool:
        """Whether there is a gradient, and it is not a combined one: it was set by hand, or none was combined since."""
        return param.grad_array is not None and (param.grad_by_hand or self.spoilt or not self.combined)

    def drop(self, params: Iterable[Parameter]) -> None:
        """Drop those of these parameters; combined ones stay."""
        for param in params:
            if self.holds(param):
                drop_gradient(param)

    def drop_weightless(self, params: Iterable[Parameter], active: bool) -> None:
        """Without samples: drop what may not be sent; in a sum those are combined ones of who has no data any more."""
        if self._mean:
            self.drop(params)
        elif not active and self.combined:
            for param in params:
                if not param.grad_by_hand:
                    drop_gradient(param)

    # ------------------------------------------------------------------------------------------------ what is refused

    def check_weights(self, numbers: Iterable[int]) -> None:
        """Refuse gradients of which nobody has said what they weigh: they would be dropped, or stay this rank's own."""
        if self.samples.weighed or not self._mean:
            return
        own = [self._layout.names[i] for i in numbers if self.holds(self._layout.params[i])]
        if own:
            raise AutogradError(
                f"{self._who}: expected gradients that a backward through the wrapper made since the last "
                f"synchronisation, got others, such as set by hand, of {', '.join(own)}: "
                "say what they weigh, with samples(n) around this call, change combined ones in place, or zero_grad()"
            )

    def check_frozen(self, trained: Sequence[bool], weighed: bool) -> None:
        """Refuse a parameter that was frozen with a gradient that was not combined: it would stay this rank's own.

        Args:
            trained: Which parameters got a gradient before.
            weighed: Whether there were counted gradients before the pass under way.
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
        """Refuse to add up combined gradients once more."""
        if self._mean or not self.combined:
            return
        if not all(param.grad_by_hand for param in self._layout.params if param.grad_array is not None):
            raise AutogradError(
                "DistributedDataParallel: expected no combined gradients before a backward with reduce='sum', "
                "got some, which would be added up again: call zero_grad() first"
            )
