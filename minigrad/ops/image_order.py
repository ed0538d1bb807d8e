"""How images lie in memory: users see (N, C, H, W), operations work on (H, N, W, C), on a GPU on (N, H, W, C).

With the channels last, a convolution is a matrix product and a sum over pixels is one too; with the height first, a
shift by one row is a plain offset, which a CPU gains by and kernels do not. The outputs of convolution, pooling and
normalization are (N, C, H, W) views of such memory, elementwise operations keep the order, so between these operations
nothing is ever transposed.
"""

from __future__ import annotations

import math

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import contiguous


def channels_last(x: Array) -> Array:
    """(N, C, ...) as contiguous (H, N, W, C): x's own memory where it lies so already, otherwise a copy.

    H is the first spatial axis, W all the others as one; an axis that x does not have is of length 1.
    """
    if x.ndim < 3:
        return array_module(x).ascontiguousarray(x)[None, :, None]
    moved = array_module(x).ascontiguousarray(x.transpose(2, 0, *range(3, x.ndim), 1))
    return moved.reshape(moved.shape[0], moved.shape[1], math.prod(x.shape[3:]), moved.shape[-1])


def is_channels_last(x: Array) -> bool:
    """Whether images (N, C, H, ...) lie in memory as `channels_last` or `to_nhwc` wants them."""
    rest = (*range(3, x.ndim), 1)
    return x.ndim > 3 and any(x.transpose(*axes, *rest).flags.c_contiguous for axes in ((2, 0), (0, 2)))


def channels_first(y: Array, shape: tuple[int, ...]) -> Array:
    """(H, N, W, C) as a view of the given shape (N, C, ...): what `channels_last` does, undone."""
    if len(shape) < 3:
        return y[0, :, 0]
    back = (1, len(shape) - 1, 0, *range(2, len(shape) - 1))
    return y.reshape(shape[2], shape[0], *shape[3:], shape[1]).transpose(back)


def to_nhwc(x: Array) -> Array:
    """(N, C, ...) as contiguous (N, H, W, C), for kernels: x's own memory where it lies so already, otherwise a copy.

    H is the first spatial axis, W all the others as one; an axis that x does not have is of length 1.
    """
    if x.ndim == 4:
        return contiguous(x.transpose(0, 2, 3, 1))
    moved = contiguous(x.transpose(0, *range(2, x.ndim), 1))
    height = x.shape[2] if x.ndim > 2 else 1
    return moved.reshape(x.shape[0], height, math.prod(x.shape[3:]), x.shape[1])


def from_nhwc(y: Array, shape: tuple[int, ...]) -> Array:
    """(N, H, W, C) as a view of the given shape (N, C, ...): what `to_nhwc` does, undone."""
    if y.ndim == len(shape) == 4:
        return y.transpose(0, 3, 1, 2)
    return y.reshape(shape[0], *shape[2:], shape[1]).transpose(0, len(shape) - 1, *range(1, len(shape) - 1))


def as_images(x: Array, axes: int) -> Array:
    """Images or rows of pixels, one or many, as (N, C, H, W): a row is an image of height 1.

    Args:
        axes: How many there are beside samples and channels, 1 or 2.
    """
    images = x if axes == 2 else x[..., None, :]
    return images if images.ndim == 4 else images[None]


def as_given(images: Array, axes: int, ndim: int) -> Array:
    """(N, C, H, W) with as many axes as were given to `as_images`, which it undoes."""
    given = images if ndim == axes + 2 else images[0]
    return given if axes == 2 else given[..., 0, :]
