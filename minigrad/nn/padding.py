"""Layers that put a border around sequences and images."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import as_real, is_integer, kind_of
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = [
    "CircularPad1d", "CircularPad2d", "ConstantPad1d", "ConstantPad2d", "ReflectionPad1d", "ReflectionPad2d",
    "ReplicationPad1d", "ReplicationPad2d", "ZeroPad1d", "ZeroPad2d",
]


class Border(Module):
    """What all borders share; a subclass says along how many axes they go, and what they hold.

    Args:
        padding: The width at all sides, or one for each: left, right, and in images top, bottom; a negative one cuts.

    Raises:
        ArgumentError: another number of widths, or other than integers.
    """

    axes: int
    mode = "constant"
    value: float | None = None

    def __init__(self, padding: int | tuple[int, ...]) -> None:
        super().__init__()
        widths: Any = tuple(padding) if isinstance(padding, (tuple, list)) else (padding,) * (2 * self.axes)
        if len(widths) != 2 * self.axes or not all(is_integer(width) for width in widths):
            raise ArgumentError(
                f"{self._who()}: expected padding of an integer or {2 * self.axes} of them, got {padding!r:.100}"
            )
        self.padding: tuple[int, ...] = widths

    def forward(self, x: Tensor) -> Tensor:
        """x with its border."""
        if not isinstance(x, Tensor):
            raise DtypeError(f"{self._who()}: expected a tensor, got {kind_of(x)}")
        if x.ndim not in (self.axes + 1, self.axes + 2):
            shapes = "(N, C, H, W) or (C, H, W)" if self.axes == 2 else "(N, C, L) or (C, L)"
            raise ShapeError(f"{self._who()}: expected x of shape {shapes}, got {x.shape}")
        return ops.pad(x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        """The widths."""
        return f"{self.padding}"


class ConstantBorder(Border):
    """What both borders of a number share."""

    def __init__(self, padding: int | tuple[int, ...], value: float) -> None:
        super().__init__(padding)
        as_real(self._who(), "value", value)  # -inf too, as before a maximum
        self.value = value

    def extra_repr(self) -> str:
        """The widths and the number."""
        return f"padding={self.padding}, value={self.value}"


class ZeroPad1d(Border):
    """A sequence with zeros at its ends; see `ops.pad`."""

    axes = 1


class ZeroPad2d(Border):
    """An image with a border of zeros; see `ops.pad`."""

    axes = 2


class ConstantPad1d(ConstantBorder):
    """A sequence with a number at its ends; see `ops.pad`."""

    axes = 1


class ConstantPad2d(ConstantBorder):
    """An image with a border of a number; see `ops.pad`."""

    axes = 2


class ReflectionPad1d(Border):
    """A sequence mirrored in its first and last element, which are not repeated; see `ops.pad`."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(Border):
    """An image mirrored in its outermost pixels, which are not repeated; see `ops.pad`."""

    axes, mode = 2, "reflect"


class ReplicationPad1d(Border):
    """A sequence with its first and last element repeated; see `ops.pad`."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(Border):
    """An image with its outermost pixels repeated; see `ops.pad`."""

    axes, mode = 2, "replicate"


class CircularPad1d(Border):
    """A sequence as if its ends met; see `ops.pad`."""

    axes, mode = 1, "circular"


class CircularPad2d(Border):
    """An image as if its opposite sides met; see `ops.pad`."""

    axes, mode = 2, "circular"
