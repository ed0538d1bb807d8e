"""Which axes an operation reduces, sums over them, and the way back."""

from __future__ import annotations

import math

import numpy as np

from minigrad.autograd import Edge, accumulate, destination
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype
from minigrad.bound import Dim
from minigrad.errors import ArgumentError
from minigrad.ops.operands import column_sum, is_blas, normalize_axes, row_max, row_sum


def reduced_axes(who: str, dim: Dim, ndim: int, keepdim: bool = False) -> tuple[int, ...]:
    """The axes to reduce, sorted; None and an empty tuple mean all. A scalar has none, though it accepts dim=0.

    Raises:
        ShapeError: an axis out of range, or one named twice.
        ArgumentError: keepdim is no bool: `x.sum(0, 1)` meant `x.sum((0, 1))`.
    """
    if keepdim is not True and keepdim is not False:
        raise ArgumentError(f"{who}: expected keepdim to be True or False, got {keepdim!r}: several axes are a tuple")
    if dim is None or isinstance(dim, (tuple, list)) and not dim:
        return tuple(range(ndim))
    axes = normalize_axes(who, dim, ndim)
    return axes if ndim else ()


def kept_shape(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after a reduction that keeps the reduced axes with length 1."""
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])


def count_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """How many elements are reduced to one."""
    return math.prod([shape[i] for i in axes])


def axis_argument(axes: tuple[int, ...], ndim: int) -> tuple[int, ...] | None:
    """Sorted axes as the axis= of a reduction: None for all of them is the fastest form."""
    return axes if len(axes) < ndim else None


def sum_axes(x: Array, axes: tuple[int, ...], keepdim: bool = False) -> Array:
    """The sum of an array over sorted axes, in the dtype that x is summed in."""
    ndim, n = x.ndim, len(axes)
    if 0 < n < ndim and x.size and x.__class__ is np.ndarray and is_blas(x.dtype) and x.flags.c_contiguous:
        if axes[0] == ndim - n:
            return row_sum(_rows(x, axes)).reshape(reduced_shape(x.shape, axes, keepdim))
        if axes[-1] == n - 1:
            columns = x.reshape(count_of(x.shape, axes), -1)
            return column_sum(columns).reshape(reduced_shape(x.shape, axes, keepdim))
    return x.sum(axis=axis_argument(axes, ndim), dtype=accumulator_dtype(x.dtype), keepdims=keepdim)


def max_axes(x: Array, axes: tuple[int, ...], keepdim: bool = False) -> Array:
    """The largest elements of an array over sorted axes, none of which is empty."""
    ndim, n = x.ndim, len(axes)
    if 0 < n < ndim and x.size and x.__class__ is np.ndarray and x.flags.c_contiguous and axes[0] == ndim - n:
        return row_max(_rows(x, axes)).reshape(reduced_shape(x.shape, axes, keepdim))
    return x.max(axis=axis_argument(axes, ndim), keepdims=keepdim)


def _rows(x: Array, axes: tuple[int, ...]) -> Array:
    """A matrix with one row for each result of a reduction over the last axes."""
    return x.reshape(-1, count_of(x.shape, axes))


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """The shape after a reduction."""
    return kept_shape(shape, axes) if keepdim else tuple([n for i, n in enumerate(shape) if i not in axes])


def spread(edge: Edge, grad: Array, shape: tuple[int, ...], kept: tuple[int, ...]) -> None:
    """Give every element of an edge of this shape the gradient of what it was reduced to."""
    if edge is None:
        return
    dx = destination(edge)
    if dx is None:
        dx = array_module(grad).empty(shape, grad.dtype)
    dx[...] = grad.reshape(kept)
    accumulate(edge, dx)


def nearest_finite(x: Array) -> Array:
    """x where it is finite or NaN, else the finite number next to it: infinity minus that is infinity, not NaN."""
    largest = float(np.finfo(x.dtype).max)
    return array_module(x).clip(x, -largest, largest)
