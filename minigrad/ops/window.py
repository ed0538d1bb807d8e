"""Sliding windows along one axis, as convolution and pooling use them."""

from __future__ import annotations

import math
from typing import NamedTuple

from minigrad.errors import ShapeError


class Reach(NamedTuple):
    """Which windows see real input through one of their taps, and which input elements these are, pairwise."""

    windows: slice
    inputs: slice


class Window(NamedTuple):
    """A window of `kernel` taps, `dilation` apart, that moves by `stride` over an axis with padding at both ends."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        """Elements from the first tap to the last, both included."""
        return self.dilation * (self.kernel - 1) + 1

    def count(self, length: int, ceil_mode: bool = False) -> int:
        """How many windows fit on an axis; 0 or less where not even one does.

        With ceil_mode a last window may hang over the end, if it starts inside the input or the padding before it.
        """
        room = length + self.before + self.after - self.extent
        count = room // self.stride + 1
        if ceil_mode and room % self.stride and count * self.stride < length + self.before:
            count += 1
        return count

    def reach(self, offset: int, length: int, stop: int, start: int = 0) -> Reach:
        """What the element `offset` after the beginning of windows start to stop meets on an axis of this length."""
        shift = offset - self.before
        first = max(start, -(shift // self.stride))
        stop = max(first, min(stop, (length - 1 - shift) // self.stride + 1))
        begin = first * self.stride + shift
        return Reach(slice(first, stop), slice(begin, begin + (stop - first) * self.stride, self.stride))


def count_windows(
    who: str, windows: tuple[Window, Window], shape: tuple[int, ...], ceil_mode: bool = False, axes: int = 2
) -> tuple[int, int]:
    """How many windows fit on the last two axes of a shape.

    Args:
        axes: 1 where the user has given rows of pixels, which know of no height.

    Raises:
        ShapeError: on one of them, none does.
    """
    height, width = (window.count(n, ceil_mode) for window, n in zip(windows, shape[-2:]))
    if min(height, width) < 1:
        extents = tuple(window.extent for window in windows)[-axes:]
        room = tuple(n + window.before + window.after for window, n in zip(windows, shape[-2:]))[-axes:]
        what, given = ("images", shape) if axes == 2 else ("rows", (*shape[:-2], shape[-1]))
        raise ShapeError(f"{who}: expected a window {extents} that fits into padded {what} of {room}, got x {given}")
    return height, width


def same_padding(extent: int) -> tuple[int, int]:
    """Padding before and after an axis that keeps its length at stride 1; an odd one goes to the end."""
    return (extent - 1) // 2, math.ceil((extent - 1) / 2)
