"""Pooling of images in one launch each way. The reference is `minigrad.ops.pooling` on a CPU."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.bias import mean_of_groups
from minigrad.backend.kernels import KernelLoader, int32, int64, kernels_for, launch_of
from minigrad.backend.memory import contiguous

_MOST_TAPS = 255  # whose numbers are bytes; another number stands for none
_IN_A_TURN = 4  # elements of a thread


class Axis(NamedTuple):
    """Windows along one axis of an image; without a kernel they share it out evenly, and the rest means nothing."""

    length: int
    outputs: int
    kernel: int = 0
    stride: int = 1
    dilation: int = 1
    before: int = 0


Axes = tuple[Axis, Axis]  # height and width


def max_pool(x: Array, axes: Axes) -> tuple[Array, Array]:
    """The largest element of each window, and the number of its tap, row by row over the window.

    NaN is larger than all else; of equal elements, and of several NaN, it is the first one.

    Shapes:
        x: (N, H, W, C) -> (N, OH, OW, C) twice
    """
    x, xp = contiguous(x), array_module(x)
    shape = (x.shape[0], axes[0].outputs, axes[1].outputs, x.shape[3])
    taps = axes[0].kernel * axes[1].kernel
    y, winners = xp.empty(shape, x.dtype), xp.empty(shape, np.uint8 if taps <= _MOST_TAPS else np.int32)
    _launch(f"max_forward{_of(winners)}", (x,), _all_lengths(x, axes), (y, winners), y)
    return y, winners


def max_pool_gradient(grad: Array, winners: Array, axes: Axes) -> Array:
    """The gradient of the images: (N, OH, OW, C) -> (N, H, W, C)."""
    grad = contiguous(grad)
    dx = array_module(grad).empty((grad.shape[0], axes[0].length, axes[1].length, grad.shape[3]), grad.dtype)
    _launch(f"max_backward{_of(winners)}", (grad, winners), _all_lengths(grad, axes), (dx,), dx)
    return dx


def mean_pool(x: Array, axes: Axes, counts_padding: bool = False) -> Array:
    """The mean of each window: (N, H, W, C) -> (N, OH, OW, C).

    Args:
        counts_padding: Padding counts as zeros; what hangs over its end never does.
    """
    x = contiguous(x)
    samples, height, width, channels = x.shape
    shape = (samples, axes[0].outputs, axes[1].outputs, channels)
    if axes == (Axis(height, 1), Axis(width, 1)) and height * width:
        return mean_of_groups(x.reshape(samples * height * width, channels), height * width).reshape(shape)
    y = array_module(x).empty(shape, x.dtype)
    _launch("mean_forward", (x,), _mean_lengths(x, axes, counts_padding), (y,), y)
    return y


def mean_pool_gradient(grad: Array, axes: Axes, counts_padding: bool = False) -> Array:
    """The gradient of the images: (N, OH, OW, C) -> (N, H, W, C)."""
    grad = contiguous(grad)
    dx = array_module(grad).empty((grad.shape[0], axes[0].length, axes[1].length, grad.shape[3]), grad.dtype)
    _launch("mean_backward", (grad,), _mean_lengths(grad, axes, counts_padding), (dx,), dx)
    return dx


def _of(winners: Array) -> str:
    return "" if winners.dtype.itemsize == 1 else "_wide"


def _all_lengths(x: Array, axes: Axes) -> tuple[object, ...]:
    return *_windows(axes), int32(x.shape[3]), int64(x.shape[0])


def _mean_lengths(x: Array, axes: Axes, counts_padding: bool) -> tuple[object, ...]:
    return *_windows_of_means(axes), int32(counts_padding), int32(x.shape[3]), int64(x.shape[0])


@functools.lru_cache(maxsize=256)
def _windows(axes: Axes) -> tuple[np.int32, ...]:
    return tuple([np.int32(n) for axis in axes for n in axis])


@functools.lru_cache(maxsize=256)
def _windows_of_means(axes: Axes) -> tuple[np.int32, ...]:
    return tuple([np.int32(n) for axis in axes for n in (*axis[:4], axis.before)])


def _launch(
    name: str, before: tuple[Array, ...], lengths: tuple[object, ...], after: tuple[Array, ...], out: Array
) -> None:
    loader = kernels_for(out)
    assert isinstance(loader, KernelLoader)
    if out.size:
        launch = launch_of(loader, "pool", f"pool_{name}", out.dtype, -(-out.size // _IN_A_TURN))
        loader.launch(*launch, (*before, *lengths, *after))
