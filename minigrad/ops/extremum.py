"""The largest and the smallest elements over axes, and where they are. NaN counts as larger and as smaller than all."""

from __future__ import annotations

import math
from typing import overload

import numpy as np

from minigrad.arguments import check_switch
from minigrad.autograd.tape import Node, accumulate, accumulate_at
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.bound import Dim
from minigrad.errors import ShapeError
from minigrad.ops.arithmetic import maximum, minimum
from minigrad.ops.axes import axis_argument, count_of, kept_shape, max_axes, normalize_axis, reduced_axes
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, masked
from minigrad.tensor import Selection, Tensor, record

__all__ = ["amax", "amin", "argmax", "argmin", "max", "min"]


@overload
def max(x: TensorLike, dim: None = None, keepdim: bool = False) -> Tensor: ...


@overload
def max(x: TensorLike, dim: int, keepdim: bool = False) -> Selection: ...


@overload
def max(x: TensorLike, dim: Tensor, keepdim: bool = False) -> Tensor: ...


@method
def max(x: TensorLike, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | Selection:
    """The largest element, as a tensor; along one axis the largest elements and their indices.

    In the place of dim it takes a second tensor, for the larger of each pair: see `maximum`.

    Without dim the gradient is split evenly between equal elements, NaN with NaN; with dim the first gets it all.

    Raises:
        ShapeError: the axis is out of range, or nothing to choose from.
    """
    if dim is None:
        return extreme("max", "max", x, None, keepdim)
    return maximum(x, dim) if isinstance(dim, Tensor) else _select("max", x, dim, keepdim)


@overload
def min(x: TensorLike, dim: None = None, keepdim: bool = False) -> Tensor: ...


@overload
def min(x: TensorLike, dim: int, keepdim: bool = False) -> Selection: ...


@overload
def min(x: TensorLike, dim: Tensor, keepdim: bool = False) -> Tensor: ...


@method
def min(x: TensorLike, dim: int | Tensor | None = None, keepdim: bool = False) -> Tensor | Selection:
    """The smallest element, as a tensor; along one axis the smallest elements and their indices.

    In the place of dim it takes a second tensor, for the smaller of each pair: see `minimum`.

    Without dim the gradient is split evenly between equal elements, NaN with NaN; with dim the first gets it all.

    Raises:
        ShapeError: the axis is out of range, or nothing to choose from.
    """
    if dim is None:
        return extreme("min", "min", x, None, keepdim)
    return minimum(x, dim) if isinstance(dim, Tensor) else _select("min", x, dim, keepdim)


@method
def amax(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The largest element over axes. The gradient is split evenly between equal elements, and NaN where that is NaN.

    Raises:
        ShapeError: an axis out of range or named twice, or nothing to choose from.
    """
    return extreme("amax", "max", x, dim, keepdim, spoils=True)


@method
def amin(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The smallest element over axes. The gradient is split evenly between equal elements, and NaN where that is NaN.

    Raises:
        ShapeError: an axis out of range or named twice, or nothing to choose from.
    """
    return extreme("amin", "min", x, dim, keepdim, spoils=True)


def extreme(who: str, function: str, x: TensorLike, dim: Dim, keepdim: bool, spoils: bool = False) -> Tensor:
    """The largest or the smallest element over axes; see `max` and, where NaN spoils the gradient, `amax`."""
    x = as_operand(who, x)
    axes = reduced_axes(who, dim, x.data.ndim, keepdim)
    _check_choice(who, x, axes)
    if function == "max":
        data = max_axes(x.data, axes, keepdim)
    else:
        data = x.data.min(axis=axis_argument(axes, x.data.ndim), keepdims=keepdim)
    if spoils:
        return record(data, _spoilt_backward, (x,), (x, axes, data, function), saves_output=True)
    return record(data, split_backward, (x,), (x, axes, data), saves_output=True)


def split_backward(node: Node, grad: Array) -> None:
    """Backward of choosing one value, which all elements that equal it share; where it is NaN, all that are NaN."""
    x, axes, found = node.saved
    kept = kept_shape(x.data.shape, axes)
    chosen = x.data == found.reshape(kept)
    chosen |= x.data != x.data
    count = chosen.sum(axis=axes, keepdims=True).astype(grad.dtype)
    accumulate(node.inputs[0], masked(grad.reshape(kept) / count, chosen))


def _spoilt_backward(node: Node, grad: Array) -> None:
    x, axes, found, function = node.saved
    kept, xp = kept_shape(x.data.shape, axes), array_module(grad)
    found = found.reshape(kept)
    chosen = ~(x.data < found if function == "max" else x.data > found)  # all, where the result is NaN
    count = chosen.sum(axis=axes, keepdims=True).astype(grad.dtype)
    share = xp.where(found == found, grad.reshape(kept) / count, grad.dtype.type(math.nan))
    accumulate(node.inputs[0], masked(share, chosen))


def _select(who: str, x: TensorLike, dim: int, keepdim: bool) -> Selection:
    x = as_operand(who, x)
    axis = normalize_axis(who, dim, x.data.ndim)
    check_switch(who, keepdim=keepdim)
    places = _places(who, x, axis)
    index = index_along(places, axis, x.data.shape)
    if not keepdim and x.data.ndim:
        index, places = tuple([part.squeeze(axis) for part in index]), places.squeeze(axis)
    values = x.data[index] if index else x.data.copy()
    return Selection(record(values, select_backward, (x,), (x.data.shape, index)), Tensor(places))


def select_backward(node: Node, grad: Array) -> None:
    """Backward of taking elements along an axis, none of them twice: node.saved is x's shape and their index."""
    shape, index = node.saved
    accumulate_at(node.inputs[0], shape, index, grad)


def _places(who: str, x: Tensor, axis: int) -> Array:
    """The index of the first extremum along an axis, which is kept."""
    _check_choice(who, x, (axis,) if x.data.ndim else ())
    if not x.data.ndim:
        return array_module(x.data).zeros((), np.int64)
    places = getattr(x.data, f"arg{who.removeprefix('arg')}")(axis=axis, keepdims=True)
    return places.astype(np.int64, copy=False)


def index_along(places: Array, axis: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """The arrays with which x[index] takes x[..., places, ...] along an axis."""
    arange, ndim = array_module(places).arange, len(shape)
    return tuple(
        [places if i == axis else arange(n).reshape([-1 if j == i else 1 for j in range(ndim)])
         for i, n in enumerate(shape)]
    )


@method
def argmax(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index (int64) of the first largest element along an axis, or in the flattened tensor. Nothing flows back.

    Raises:
        ShapeError: the axis is out of range, or nothing to choose from.
    """
    return _argument("argmax", x, dim, keepdim)


@method
def argmin(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index (int64) of the first smallest element along an axis, or in the flattened tensor. Nothing flows back.

    Raises:
        ShapeError: the axis is out of range, or nothing to choose from.
    """
    return _argument("argmin", x, dim, keepdim)


def _argument(who: str, x: TensorLike, dim: int | None, keepdim: bool) -> Tensor:
    x = as_operand(who, x)
    check_switch(who, keepdim=keepdim)
    if dim is None:
        flat = Tensor(x.data.reshape(-1))
        return Tensor(_places(who, flat, 0).reshape((1,) * x.data.ndim if keepdim else ()))
    axis = normalize_axis(who, dim, x.data.ndim)
    places = _places(who, x, axis)
    return Tensor(places if keepdim or not x.data.ndim else places.squeeze(axis))


def _check_choice(who: str, x: Tensor, axes: tuple[int, ...]) -> None:
    if count_of(x.data.shape, axes) == 0:
        raise ShapeError(f"{who}: expected at least one element to choose from, got shape {x.shape} over axes {axes}")
