"""The elements along an axis in order: sort, argsort, topk, median.

Equal elements keep their order, also where they descend. NaN is larger than any number, as in PyTorch.
"""

from __future__ import annotations

from typing import overload

import numpy as np

from minigrad.arguments import as_integer, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float, widened
from minigrad.errors import ShapeError
from minigrad.ops.axes import normalize_axis
from minigrad.ops.extremum import index_along, select_backward, split_backward
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand
from minigrad.tensor import Selection, Tensor, record

__all__ = ["argsort", "median", "sort", "topk"]


@method
def sort(x: TensorLike, dim: int = -1, descending: bool = False, stable: bool = False) -> Selection:
    """The elements along an axis in ascending or descending order, and where each was. dx = g, each back in its place.

    Args:
        stable: Equal elements keep their order, with False too.

    Raises:
        ShapeError: the axis is out of range.
        ArgumentError: descending or stable is no bool.

    Example:
        >>> import minigrad
        >>> minigrad.tensor([2, 3, 1]).sort().indices.tolist()
        [2, 0, 1]
    """
    x = as_operand("sort", x)
    check_switch("sort", descending=descending, stable=stable)
    axis = normalize_axis("sort", dim, x.data.ndim)
    return _taken(x, axis, order_along(x.data, axis, descending))


@method
def argsort(x: TensorLike, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices (int64) that sort along an axis, as those of `sort`. Nothing flows back.

    Raises:
        ShapeError: the axis is out of range.
        ArgumentError: descending or stable is no bool.
    """
    x = as_operand("argsort", x)
    check_switch("argsort", descending=descending, stable=stable)
    return Tensor(order_along(x.data, normalize_axis("argsort", dim, x.data.ndim), descending))


@method
def topk(x: TensorLike, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Selection:
    """The k largest or smallest elements along an axis, the extreme one first, and where each was.

    Of equal ones the first come first, and are those that are taken. dx = g where an element was taken, else 0.

    Args:
        largest: False for the smallest.
        sorted: They are in order with False too.

    Shapes:
        (A, N, B) -> (A, k, B) for dim = 1

    Raises:
        ArgumentError: k outside [0, N], or a switch that is no bool.
        ShapeError: the axis is out of range.

    Example:
        >>> import minigrad
        >>> values, indices = minigrad.tensor([[1, 5, 3], [6, 2, 4]]).topk(2)
        >>> values.tolist(), indices.tolist()
        ([[5, 3], [6, 4]], [[1, 2], [0, 2]])
    """
    x = as_operand("topk", x)
    check_switch("topk", largest=largest, sorted=sorted)
    axis = normalize_axis("topk", dim, x.data.ndim)
    length = x.data.shape[axis] if x.data.ndim else 1
    k = as_integer("topk", "k", k, 0, length + 1)
    if not x.data.ndim:
        return sort(x if k else x.reshape(1)[:0])
    return _taken(x, axis, order_along(x.data, axis, largest)[(slice(None),) * axis + (slice(k),)])


def order_along(x: Array, axis: int, descending: bool) -> Array:
    """The indices that sort along an axis. Descending is ascending from behind, so that equal ones keep their order."""
    xp = array_module(x)
    if not x.ndim:
        return xp.zeros((), np.int64)
    keys = widened(x)  # CuPy sorts no bfloat16
    if not descending:
        return keys.argsort(axis=axis, kind="stable").astype(np.int64, copy=False)
    found = xp.flip(keys, axis).argsort(axis=axis, kind="stable")
    return x.shape[axis] - 1 - xp.flip(found, axis).astype(np.int64, copy=False)


def _taken(x: Tensor, axis: int, places: Array) -> Selection:
    """The elements of x at places along an axis, none of them twice."""
    index = index_along(places, axis, x.data.shape)
    values = x.data[index] if index else x.data.copy()
    return Selection(record(values, select_backward, (x,), (x.data.shape, index)), Tensor(places))


@overload
def median(x: TensorLike, dim: None = None, keepdim: bool = False) -> Tensor: ...


@overload
def median(x: TensorLike, dim: int, keepdim: bool = False) -> Selection: ...


@method
def median(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor | Selection:
    """The middle element in order, the lower of two; along one axis the middle elements and their indices.

    It is NaN where there is one. Without dim the gradient is split evenly between equal elements, with dim one of them
    gets it all.

    Raises:
        ShapeError: the axis is out of range, or nothing to choose from.
        ArgumentError: keepdim is no bool.
    """
    x = as_operand("median", x)
    check_switch("median", keepdim=keepdim)
    if dim is None:
        flat = x.data.reshape(-1)
        found = flat[_middle(x, flat, 0)].reshape(())
        return record(found, split_backward, (x,), (x, tuple(range(x.data.ndim)), found), saves_output=True)
    axis = normalize_axis("median", dim, x.data.ndim)
    selection = _taken(x, axis, _middle(x, x.data, axis) if x.data.ndim else array_module(x.data).zeros((), np.int64))
    if keepdim or not x.data.ndim:
        return selection
    return Selection(*(part.squeeze(axis) for part in selection))


def _middle(x: Tensor, data: Array, axis: int) -> Array:
    """Where the middle element of an array with axes is along one of them, which stays with length 1."""
    length = data.shape[axis]
    if not length:
        raise ShapeError(f"median: expected at least one element to choose from, got shape {x.shape}")
    xp = array_module(data)
    order = order_along(data, axis, descending=False)
    middle = xp.full((), (length - 1) // 2)
    if is_float(data.dtype):
        nans = xp.isnan(data).sum(axis=axis, keepdims=True)
        middle = xp.where(nans > 0, length - nans, middle)
    return order[index_along(middle.reshape(middle.shape or (1,) * data.ndim), axis, data.shape)]
