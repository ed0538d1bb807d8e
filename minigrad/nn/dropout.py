"""Dropout layers; none has parameters."""

from __future__ import annotations

from minigrad.arguments import check_real
from minigrad.nn.activation import Overwriting
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["Dropout", "Dropout2d"]


class _Dropout(Overwriting):
    """What all dropouts share: the probability."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__(inplace)
        check_real(self._who(), 0.0, 1.0, p=p)
        self.p = p

    def options(self) -> str:
        """The probability."""
        return f"p={self.p}"


class Dropout(_Dropout):
    """In training, zero each element with probability p and scale the others by 1 / (1 - p); see `ops.dropout`.

    The noise stream decides, which each rank has its own of. In evaluation it gives back its input.

    Args:
        p: In [0, 1].
        inplace: Whether it writes its output into the memory of its input.

    Raises:
        ArgumentError: p out of range.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The input with some elements dropped."""
        return ops.dropout(x, self.p, self.training, self.inplace)


class Dropout2d(_Dropout):
    """In training, zero whole channels with probability p and scale the others by 1 / (1 - p); see `ops.dropout2d`.

    Shapes:
        x: (N, C, H, W) -> the same

    Args:
        p: In [0, 1].
        inplace: Whether it writes its output into the memory of its input.

    Raises:
        ArgumentError: p out of range.
    """

    def forward(self, x: Tensor) -> Tensor:
        """The input with some channels dropped."""
        return ops.dropout2d(x, self.p, self.training, self.inplace)
