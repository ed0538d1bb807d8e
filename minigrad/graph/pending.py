"""What gradients have come since the last step, and what they weigh."""

from __future__ import annotations

from dataclasses import dataclass

from minigrad.errors import AutogradError


@dataclass
class Pending:
    """Gradients that wait for a step.

    Attributes:
        combined: Whether they are combined over the replicas already.
        in_batch: Whether `backward_batch` is under way.
    """

    combined: bool = False
    in_batch: bool = False
    _kind: str = ""  # how they came
    _first: int = 0  # samples of the first batch: weights stay near 1, whatever comes
    _samples: int = 0  # of all

    def __bool__(self) -> bool:
        return self.combined or bool(self._kind)

    def begin(self) -> None:
        """A backward begins.

        Raises:
            AutogradError: gradients are combined, or came in another way: they can't be weighed together.
        """
        if self.combined:
            raise AutogradError(
                "Graph: expected step() or zero_grad() once gradients are combined, got another backward"
            )
        kind = "backward_batch()" if self.in_batch else "backward()"
        if self._kind not in ("", kind):
            raise AutogradError(
                f"Graph: expected {self._kind} alone between two steps, got {kind} too: the first weighs by samples"
            )
        self._kind = kind

    def weigh(self, samples: int, total: int) -> float:
        """The weight of a mean over some samples, one of several batches of `total` together."""
        self._first = self._first or total
        self._samples += samples
        return samples / self._first

    @property
    def factor(self) -> float:
        """What makes the weights add up to 1."""
        return self._first / self._samples if self._samples else 1.0

    def forget(self) -> None:
        """There are no gradients any more."""
        self.combined, self._kind = False, ""
        self._first = self._samples = 0
