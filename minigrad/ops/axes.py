"""Axes: which of them an operation names, sums and maxima over them, and the way back."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from minigrad.arguments import is_integer
from minigrad.autograd.tape import Edge, accumulate, destination
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted, is_float, is_half
from minigrad.backend.fused.bias import column_sum as fused_column_sum
from minigrad.backend.kernels import kernels_for
from minigrad.backend.workspace import empty_in_order, memory_order
from minigrad.bound import Dim
from minigrad.errors import ArgumentError, ShapeError


def normalize_axes(who: str, dim: Dim, ndim: int) -> tuple[int, ...]:
    """Axes as a sorted tuple of numbers in [0, ndim); None means all of them.

    Raises:
        ShapeError: an axis out of range, or one named twice.
    """
    if dim is None:
        return tuple(range(ndim))
    dims = dim if isinstance(dim, (tuple, list)) else (dim,)
    axes = tuple(sorted(normalize_axis(who, d, ndim) for d in dims))
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{who}: expected different axes, got {dim}")
    return axes


def normalize_axis(who: str, dim: int, ndim: int) -> int:
    """One axis as a number in [0, ndim). A scalar takes 0 and -1, and gives 0.

    Raises:
        ShapeError: the axis is out of range.
    """
    count = max(ndim, 1)
    if not is_integer(dim) or not -count <= dim < count:
        raise ShapeError(f"{who}: expected an axis in [{-count}, {count}), got {dim!r}")
    return int(dim) % ndim if ndim else 0


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
    if 0 < n < ndim and x.size and x.__class__ is np.ndarray and _is_blas(x.dtype) and x.flags.c_contiguous:
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
        return _row_max(_rows(x, axes)).reshape(reduced_shape(x.shape, axes, keepdim))
    return x.max(axis=axis_argument(axes, ndim), keepdims=keepdim)


def _rows(x: Array, axes: tuple[int, ...]) -> Array:
    """A matrix with one row for each result of a reduction over the last axes."""
    return x.reshape(-1, count_of(x.shape, axes))


def reduced_shape(shape: tuple[int, ...], axes: tuple[int, ...], keepdim: bool) -> tuple[int, ...]:
    """The shape after a reduction."""
    return kept_shape(shape, axes) if keepdim else tuple([n for i, n in enumerate(shape) if i not in axes])


def spread(
    edge: Edge, grad: Array, shape: tuple[int, ...], kept: tuple[int, ...], order: tuple[int, ...] | None = None
) -> None:
    """Give every element of an edge of this shape, and order in memory, the gradient of what it was reduced to."""
    if edge is None:
        return
    dx = destination(edge)
    if dx is None:
        dx = empty_in_order(array_module(grad), shape, order, grad.dtype)
    dx[...] = grad.reshape(kept)
    accumulate(edge, dx)


def spread_over(x: Array, axes: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]:
    """What `spread` needs of an array that is reduced over sorted axes."""
    return x.shape, kept_shape(x.shape, axes), memory_order(x)


def nearest_finite(x: Array) -> Array:
    """x where it is finite or NaN, else the finite number next to it: infinity minus that is infinity, not NaN."""
    largest = float(np.finfo(x.dtype).max)
    return array_module(x).clip(x, -largest, largest)


def column_sum(x: Array, out: Array | None = None) -> Array:
    """Sum of the rows of a matrix: (N, D) -> (D,). As a product with ones, which is faster than a reduction."""
    if x.__class__ is np.ndarray and _is_blas(x.dtype):
        return np.dot(_ones(x.shape[0], x.dtype), x, out)
    if kernels_for(x) is not None and is_float(x.dtype):
        return fused_column_sum(x, out)
    if not is_half(x.dtype):
        return x.sum(axis=0, dtype=x.dtype, out=out)
    total = x.sum(axis=0, dtype=np.float32)
    if out is None:
        return converted(total, x.dtype)
    out[...] = converted(total, x.dtype)
    return out


def row_sum(x: Array) -> Array:
    """Sum of each row of a matrix: (N, D) -> (N,)."""
    if x.__class__ is np.ndarray and _is_blas(x.dtype):
        return np.dot(x, _ones(x.shape[1], x.dtype))
    return x.sum(axis=1, dtype=x.dtype)


def row_dot(x: Array, y: Array) -> Array:
    """Scalar product of each pair of rows: (N, D) -> (N,)."""
    return np.einsum("ij,ij->i", x, y) if x.__class__ is np.ndarray else (x * y).sum(axis=1)


def _row_max(x: Array) -> Array:
    """Largest element of each row of a matrix: (N, D) -> (N,). By argmax, which NumPy runs two to five times faster."""
    if x.__class__ is np.ndarray:
        return x[np.arange(x.shape[0]), x.argmax(axis=1)]
    return x.max(axis=1)


def _is_blas(dtype: np.dtype[Any]) -> bool:
    """Whether BLAS multiplies this dtype; other products run in slow loops."""
    return dtype.char in "fd"


@functools.lru_cache(maxsize=64)
def _ones(n: int, dtype: np.dtype[Any]) -> Array:
    ones = np.ones(n, dtype)
    ones.flags.writeable = False
    return ones


def unbroadcast(grad: Array, shape: tuple[int, ...], out: Array | None = None) -> Array:
    """Sum a gradient over the axes along which an operand of this shape was broadcast.

    Args:
        out: Where the sum may go; that is the result if it is there.

    Returns grad itself where nothing was broadcast.
    """
    if grad.shape == shape:
        return grad
    extra = grad.ndim - len(shape)
    if len(shape) == 1 and grad.size and shape[0] == grad.shape[-1] and grad.flags.c_contiguous:
        return column_sum(grad.reshape(-1, shape[0]), out)
    stretched = tuple(i for i, n in enumerate(shape) if n == 1 and grad.shape[extra + i] != 1)
    summed = grad.sum(axis=tuple(range(extra)), out=None if stretched else out) if extra else grad
    return summed.sum(axis=stretched, keepdims=True) if stretched else summed
