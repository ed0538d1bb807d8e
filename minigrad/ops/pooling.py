"""Pooling over windows of images: one elementwise operation for each tap of the window, on strided views.

Memory is (H, N, W, C), see image_order. A row of pixels is an image of height 1. On a GPU it is one kernel each way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import Pair, as_pair, check_switch
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.pool import Axes, Axis, max_pool, max_pool_gradient, mean_pool, mean_pool_gradient
from minigrad.backend.kernels import kernels_for
from minigrad.backend.workspace import empty
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.image_order import as_given, as_images, channels_first, channels_last, from_nhwc, to_nhwc
from minigrad.ops.operands import check_float, masked, once
from minigrad.ops.window import Window, count_windows
from minigrad.tensor import Tensor, record

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool2d", "max_pool1d", "max_pool2d",
]


class _Pool(NamedTuple):
    """The windows over both axes, the size of the input and of the output."""

    height: Window
    width: Window
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    axes: int = 2  # 1 where users see rows of pixels

    def pixels(self, x: Array) -> Array:
        """Images as users see them as (H, N, W, C)."""
        return _pixels(x, self.axes)

    def taps(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """For each tap, the windows in which it lies inside the input, and the pixels that they see through it.

        Both index (H, N, W, C).
        """
        columns = [
            self.width.reach(j * self.width.dilation, self.in_size[1], self.out_size[1])
            for j in range(self.width.kernel)
        ]
        for i in range(self.height.kernel):
            row = self.height.reach(i * self.height.dilation, self.in_size[0], self.out_size[0])
            for column in columns:
                yield (row.windows, slice(None), column.windows), (row.inputs, slice(None), column.inputs)

    def out_shape(self, pixels: Array) -> tuple[int, ...]:
        """(OH, N, OW, C) for an input (H, N, W, C)."""
        return self.out_size[0], pixels.shape[1], self.out_size[1], pixels.shape[3]

    @property
    def lengths(self) -> Axes:
        """What kernels are told of the windows."""
        return _lengths(self)

    @property
    def is_partition(self) -> bool:
        """Whether each pixel is seen by exactly one tap of one window."""
        return all(
            window.stride == window.kernel
            and window.dilation == 1
            and window.before == 0
            and outputs * window.stride == inputs
            for window, inputs, outputs in zip((self.height, self.width), self.in_size, self.out_size)
        )


@functools.lru_cache(maxsize=256)
def _lengths(pool: _Pool) -> Axes:
    height, width = (
        Axis(inputs, outputs, window.kernel, window.stride, window.dilation, window.before)
        for window, inputs, outputs in zip((pool.height, pool.width), pool.in_size, pool.out_size)
    )
    return height, width


@once
def _make_pool(
    who: str, tensors: tuple[Tensor], axes: int, kernel_size: Pair, stride: Pair | None, padding: Pair, dilation: Pair,
    ceil_mode: bool,
) -> _Pool:
    (x,) = tensors
    _check_image(who, x, axes)
    check_switch(who, ceil_mode=ceil_mode)
    kernels = as_pair(who, "kernel_size", kernel_size, 1, axes)
    strides = kernels if stride is None else as_pair(who, "stride", stride, 1, axes)
    pads, dilations = as_pair(who, "padding", padding, 0, axes), as_pair(who, "dilation", dilation, 1, axes)
    height, width = (Window(k, s, d, p, p) for k, s, d, p in zip(kernels, strides, dilations, pads))
    if any(pad > kernel // 2 for pad, kernel in zip(pads, kernels)):
        given = kernels[-axes:]
        raise ArgumentError(f"{who}: expected padding of at most half of kernel_size {given}, got {padding!r}")
    shape = x.data.shape if axes == 2 else (*x.data.shape[:-1], 1, x.data.shape[-1])
    out_size = count_windows(who, (height, width), shape, ceil_mode, axes)
    return _Pool(height, width, shape[-2:], out_size, axes)


def _check_image(who: str, x: Tensor, axes: int) -> None:
    if not isinstance(x, Tensor):
        raise DtypeError(f"{who}: expected a tensor, got {type(x).__name__}")
    check_float(who, x)
    if x.ndim not in (axes + 1, axes + 2):
        shapes = "(N, C, H, W) or (C, H, W)" if axes == 2 else "(N, C, L) or (C, L)"
        raise ShapeError(f"{who}: expected x of shape {shapes}, got {x.shape}")


def _pixels(x: Array, axes: int) -> Array:
    """(N, C, H, W) or (C, H, W) as (H, N, W, C); with one axis, (N, C, L) or (C, L) as (1, N, L, C)."""
    return channels_last(as_images(x, axes))


def _image(pixels: Array, axes: int, ndim: int) -> Array:
    """What `_pixels` did, undone: of so many axes."""
    height, batch, width, channels = pixels.shape
    return as_given(channels_first(pixels, (batch, channels, height, width)), axes, ndim)


def _of_kernel(pixels: Array, axes: int, ndim: int) -> Array:
    """The (N, H, W, C) of a kernel as users see it, of so many axes."""
    batch, height, width, channels = pixels.shape
    return as_given(from_nhwc(pixels, (batch, channels, height, width)), axes, ndim)


def _for_kernel(x: Array, axes: int) -> Array:
    return to_nhwc(as_images(x, axes))


# ------------------------------------------------------------------------------------------------------------- max


def max_pool2d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window; padding never wins. The gradient goes to the first of equal elements.

    NaN wins, and of several the last one gets the gradient (on a GPU the first).

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> (N, C, OH, OW) or (C, OH, OW)

    Args:
        kernel_size, dilation: >= 1; an int, or one for height and one for width.
        stride: >= 1; kernel_size by default.
        padding: Elements at each side, at most half of kernel_size.
        ceil_mode: A last window may hang over the end.

    Raises:
        ShapeError: not an image, or no window fits.
        ArgumentError: an argument out of range.
        DtypeError: no float tensor.
    """
    pool = _make_pool("max_pool2d", (x,), 2, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(x, pool, _max_pool2d_backward)


def _max_pool(x: Tensor, pool: _Pool, backward: Callable[[Node, Array], None]) -> Tensor:
    if kernels_for(x.data) is not None:
        y, winners = max_pool(_for_kernel(x.data, pool.axes), pool.lengths)
        return record(_of_kernel(y, pool.axes, x.data.ndim), backward, (x,), (None, winners, pool))
    pixels = pool.pixels(x.data)
    out = empty(pool.out_shape(pixels), pixels.dtype, pixels)
    if pool.is_partition:
        _largest_of_parts(pixels, pool, out)
    else:
        out[...] = -math.inf
        for windows, seen in pool.taps():
            part = out[windows]
            np.maximum(part, pixels[seen], out=part)
    return record(_image(out, pool.axes, x.data.ndim), backward, (x,), (x, out, pool), saves_output=True)


def _largest_of_parts(pixels: Array, pool: _Pool, out: Array) -> None:
    """The largest of each window where these lie side by side: of whole rows first, which are long."""
    high, wide = pool.height.kernel, pool.width.kernel
    for rows, found in zip(pixels.reshape(pool.out_size[0], high, *pixels.shape[1:]), out):
        best = functools.reduce(np.maximum, rows)
        found[...] = best[:, ::wide]
        for j in range(1, wide):
            np.maximum(found, best[:, j::wide], out=found)


def _max_pool2d_backward(node: Node, grad: Array) -> None:
    x, out, pool = node.saved
    if x is None:
        dx = max_pool_gradient(_for_kernel(grad, pool.axes), out, pool.lengths)
        accumulate(node.inputs[0], _of_kernel(dx, pool.axes, grad.ndim))
        return
    pixels, grad = pool.pixels(x.data), pool.pixels(grad)
    if pool.is_partition and not (out.size and math.isnan(out.max())):
        dx = empty(pixels.shape, pixels.dtype, pixels)
        _give_to_largest(pixels, pool, out, grad, dx)
        accumulate(node.inputs[0], _image(dx, pool.axes, x.data.ndim))
        return
    dx = (np.empty if pool.is_partition else np.zeros)(pixels.shape, pixels.dtype)
    found = np.zeros(out.shape, bool)
    for windows, seen in pool.taps():
        wins = pixels[seen] == out[windows]
        wins &= ~found[windows]
        if pool.is_partition:
            masked(grad[windows], wins, dx[seen])
        else:
            dx[seen] += masked(grad[windows], wins)
        found[windows] |= wins
    if not found.all():  # NaN equals nothing
        _add_to_last_nan(dx, pixels, grad, found, pool)
    accumulate(node.inputs[0], _image(dx, pool.axes, x.data.ndim))


def _give_to_largest(pixels: Array, pool: _Pool, out: Array, grad: Array, dx: Array) -> None:
    """dx is the gradient at the first that is largest in its window, and 0 elsewhere, where windows lie side by side.

    First a row of the window is found, then the pixel in it. What one of them does not get goes on to the next: bits
    are multiplied and subtracted, as `masked` does.
    """
    high, wide = pool.height.kernel, pool.width.kernel
    grad, dx = grad.view(f"i{grad.dtype.itemsize}"), dx.view(f"i{dx.dtype.itemsize}")
    for h, (left, largest) in enumerate(zip(grad, out)):
        for i in range(h * high, (h + 1) * high):
            taps, shares = ([array[i, :, j::wide] for j in range(wide)] for array in (pixels, dx))
            best, given = functools.reduce(np.maximum, taps), left
            if i + 1 < (h + 1) * high:
                given = left * (best == largest)
                left = left - given
            for tap, share in zip(taps[:-1], shares):
                share[...] = taken = given * (tap == best)
                given = given - taken
            shares[-1][...] = given


def max_pool1d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window along one axis: `max_pool2d` of images of height 1.

    Shapes:
        x: (N, C, L) or (C, L) -> (N, C, OL) or (C, OL)

    Args:
        kernel_size, stride, padding, dilation, ceil_mode: As in `max_pool2d`, for one axis.

    Raises:
        ShapeError, ArgumentError, DtypeError: see `max_pool2d`.
    """
    pool = _make_pool("max_pool1d", (x,), 1, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(x, pool, _max_pool1d_backward)


def _max_pool1d_backward(node: Node, grad: Array) -> None:
    _max_pool2d_backward(node, grad)


def _add_to_last_nan(dx: Array, pixels: Array, grad: Array, found: Array, pool: _Pool) -> None:
    """Add the gradients of windows that are not found yet at the last NaN of each."""
    for windows, seen in reversed(list(pool.taps())):
        wins = np.isnan(pixels[seen])
        wins &= ~found[windows]
        dx[seen] += masked(grad[windows], wins)
        found[windows] |= wins


# --------------------------------------------------------------------------------------------------------- average


def avg_pool2d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window.

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> (N, C, OH, OW) or (C, OH, OW)

    Args:
        kernel_size, stride, padding, ceil_mode: As in `max_pool2d`; padding with zeros.
        count_include_pad: Divide by the number of elements of the window, padding included; otherwise by those inside.
            What hangs over the end because of ceil_mode never counts.

    Raises:
        ShapeError: not an image, or no window fits.
        ArgumentError: an argument out of range.
        DtypeError: no float tensor.
    """
    pool = _make_pool("avg_pool2d", (x,), 2, kernel_size, stride, padding, 1, ceil_mode)
    check_switch("avg_pool2d", count_include_pad=count_include_pad)
    return _avg_pool(x, pool, count_include_pad, _avg_pool2d_backward)


def _avg_pool(x: Tensor, pool: _Pool, count_include_pad: bool, backward: Callable[[Node, Array], None]) -> Tensor:
    if kernels_for(x.data) is not None:
        y = mean_pool(_for_kernel(x.data, pool.axes), pool.lengths, count_include_pad)
        return record(_of_kernel(y, pool.axes, x.data.ndim), backward, (x,), (pool, count_include_pad))
    pixels = pool.pixels(x.data)
    total = array_module(pixels).zeros(pool.out_shape(pixels), _wide(pixels))
    for windows, seen in pool.taps():
        total[windows] += pixels[seen]
    scale = _inverse_counts(pool, count_include_pad, total.dtype)
    total *= scale
    out = _image(total.astype(pixels.dtype, copy=False), pool.axes, x.data.ndim)
    return record(out, backward, (x,), (pool, scale))


def _avg_pool2d_backward(node: Node, grad: Array) -> None:
    pool, scale = node.saved
    if kernels_for(grad) is not None:
        dx = mean_pool_gradient(_for_kernel(grad, pool.axes), pool.lengths, scale)
        accumulate(node.inputs[0], _of_kernel(dx, pool.axes, grad.ndim))
        return
    share = pool.pixels(grad) * scale
    dx = array_module(grad).zeros((pool.in_size[0], share.shape[1], pool.in_size[1], share.shape[3]), share.dtype)
    for windows, seen in pool.taps():
        dx[seen] += share[windows]
    accumulate(node.inputs[0], _image(dx.astype(grad.dtype, copy=False), pool.axes, grad.ndim))


def avg_pool1d(
    x: Tensor,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window along one axis: `avg_pool2d` of images of height 1.

    Shapes:
        x: (N, C, L) or (C, L) -> (N, C, OL) or (C, OL)

    Args:
        kernel_size, stride, padding, ceil_mode, count_include_pad: As in `avg_pool2d`, for one axis.

    Raises:
        ShapeError, ArgumentError, DtypeError: see `avg_pool2d`.
    """
    pool = _make_pool("avg_pool1d", (x,), 1, kernel_size, stride, padding, 1, ceil_mode)
    check_switch("avg_pool1d", count_include_pad=count_include_pad)
    return _avg_pool(x, pool, count_include_pad, _avg_pool1d_backward)


def _avg_pool1d_backward(node: Node, grad: Array) -> None:
    _avg_pool2d_backward(node, grad)


def _wide(pixels: Array) -> np.dtype[Any]:
    """The dtype to sum in: halves are summed as float32."""
    return np.dtype(np.float32) if pixels.dtype.itemsize == 2 else pixels.dtype


@functools.lru_cache(maxsize=64)
def _inverse_counts(pool: _Pool, include_pad: bool, dtype: np.dtype[Any]) -> Array:
    """1 / the number of elements of each window, of shape (OH, 1, OW, 1)."""
    counts = [
        _counts(window, length, outputs, include_pad)
        for window, length, outputs in zip((pool.height, pool.width), pool.in_size, pool.out_size)
    ]
    inverse = 1.0 / np.multiply.outer(*counts)
    return inverse[:, None, :, None].astype(dtype)


def _counts(window: Window, length: int, outputs: int, include_pad: bool) -> Array:
    starts = np.arange(outputs) * window.stride - window.before
    stops = np.minimum(starts + window.kernel, length + window.after)
    if not include_pad:
        starts, stops = np.maximum(starts, 0), np.minimum(stops, length)
    return stops - starts


# -------------------------------------------------------------------------------------------------------- adaptive


def adaptive_avg_pool2d(x: Tensor, output_size: Pair) -> Tensor:
    """The mean of each of OH x OW regions, which cover the image as evenly as they can.

    Region i of O along an axis of length L is [floor(i·L / O), ceil((i + 1)·L / O)); regions overlap where O does not
    divide L.

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> (N, C, OH, OW) or (C, OH, OW)

    Args:
        output_size: >= 1; an int for both, or (OH, OW); None in place of one keeps that length.

    Raises:
        ShapeError: not an image, or an empty one.
        ArgumentError: output_size out of range.
        DtypeError: no float tensor.
    """
    _check_regions("adaptive_avg_pool2d", x, 2)
    size = x.data.shape[-2:]
    if isinstance(output_size, (tuple, list)) and len(output_size) == 2:
        output_size = tuple(length if n is None else n for n, length in zip(output_size, size))
    outputs = as_pair("adaptive_avg_pool2d", "output_size", output_size, 1)
    return _adaptive_avg_pool(x, 2, outputs, _adaptive_avg_pool2d_backward)


def _check_regions(who: str, x: Tensor, axes: int) -> None:
    _check_image(who, x, axes)
    if not min(x.data.shape[-axes:]):
        raise ShapeError(f"{who}: expected an image with pixels, got {x.shape}")


def _adaptive_avg_pool(
    x: Tensor, axes: int, outputs: tuple[int, int], backward: Callable[[Node, Array], None]
) -> Tensor:
    if kernels_for(x.data) is not None:
        images = _for_kernel(x.data, axes)
        lengths = Axis(images.shape[1], outputs[0]), Axis(images.shape[2], outputs[1])
        return record(_of_kernel(mean_pool(images, lengths), axes, x.data.ndim), backward, (x,), (lengths, axes))
    pixels = _pixels(x.data, axes)
    size = (pixels.shape[0], pixels.shape[2])
    rows, columns = _regions(size[0], outputs[0]), _regions(size[1], outputs[1])
    xp, wide = array_module(pixels), _wide(pixels)
    strips = xp.stack([pixels[part].sum(axis=0, dtype=wide) / (part.stop - part.start) for part in rows])
    cells = [strips[:, :, part].sum(axis=2) / (part.stop - part.start) for part in columns]
    out = xp.stack(cells, axis=2).astype(pixels.dtype, copy=False)
    return record(_image(out, axes, x.data.ndim), backward, (x,), (rows, columns, size, axes))


def _adaptive_avg_pool2d_backward(node: Node, grad: Array) -> None:
    if kernels_for(grad) is not None:
        lengths, axes = node.saved
        dx = mean_pool_gradient(_for_kernel(grad, axes), lengths)
        accumulate(node.inputs[0], _of_kernel(dx, axes, grad.ndim))
        return
    rows, columns, (height, width), axes = node.saved
    pixels = _pixels(grad, axes)
    xp, wide = array_module(grad), _wide(pixels)
    outputs, batch, _, channels = pixels.shape
    strips = xp.zeros((outputs, batch, width, channels), wide)
    for j, part in enumerate(columns):
        strips[:, :, part] += pixels[:, :, j, None] / (part.stop - part.start)
    dx = xp.zeros((height, batch, width, channels), wide)
    for i, part in enumerate(rows):
        dx[part] += strips[i] / (part.stop - part.start)
    accumulate(node.inputs[0], _image(dx.astype(grad.dtype, copy=False), axes, grad.ndim))


def adaptive_avg_pool1d(x: Tensor, output_size: Pair) -> Tensor:
    """The mean of each of OL regions along one axis: `adaptive_avg_pool2d` of images of height 1.

    Shapes:
        x: (N, C, L) or (C, L) -> (N, C, OL) or (C, OL)

    Args:
        output_size: >= 1.

    Raises:
        ShapeError, ArgumentError, DtypeError: see `adaptive_avg_pool2d`.
    """
    _check_regions("adaptive_avg_pool1d", x, 1)
    outputs = as_pair("adaptive_avg_pool1d", "output_size", output_size, 1, 1)
    return _adaptive_avg_pool(x, 1, outputs, _adaptive_avg_pool1d_backward)


def _adaptive_avg_pool1d_backward(node: Node, grad: Array) -> None:
    _adaptive_avg_pool2d_backward(node, grad)


def _regions(length: int, outputs: int) -> list[slice]:
    return [slice(i * length // outputs, -(-(i + 1) * length // outputs)) for i in range(outputs)]
