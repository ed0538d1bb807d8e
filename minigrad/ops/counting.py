"""What and how much there is: nonzero, count_nonzero, masked_select, unique, bincount.

The length of most of these is known from the data alone, so a GPU is waited for. Nothing flows back, but through
masked_select.
"""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from minigrad.arguments import as_integer, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_half, widened
from minigrad.backend.flags import check_range
from minigrad.bound import Dim
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.arithmetic import broadcast_error
from minigrad.ops.axes import axis_argument, normalize_axis, reduced_axes
from minigrad.ops.index import getitem
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, same_device
from minigrad.ops.shape import broadcast_to
from minigrad.tensor import Tensor

__all__ = ["argwhere", "bincount", "count_nonzero", "masked_select", "nonzero", "unique"]


@overload
def nonzero(x: TensorLike, *, as_tuple: Literal[False] = False) -> Tensor: ...


@overload
def nonzero(x: TensorLike, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]: ...


@method
def nonzero(x: TensorLike, *, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """The indices (int64) of the elements that are other than zero, in row order: one row each.

    Args:
        as_tuple: A vector for each axis instead, with which x can be indexed; one where x has no axes.

    Shapes:
        (A, B, C) -> (N, 3), or three times (N,)

    Raises:
        ArgumentError: as_tuple is no bool.
    """
    x = as_operand("nonzero", x)
    check_switch("nonzero", as_tuple=as_tuple)
    found = [axis.astype(np.int64, copy=False) for axis in (x.data if x.ndim else x.data.reshape(1)).nonzero()]
    if as_tuple:
        return tuple(Tensor(axis) for axis in found)
    xp = array_module(x.data)
    return Tensor(xp.stack(found, 1) if x.ndim else xp.zeros((found[0].size, 0), np.int64))


@method
def argwhere(x: TensorLike) -> Tensor:
    """`nonzero` as a matrix: the index of each element that is other than zero."""
    return nonzero(as_operand("argwhere", x))


@method
def count_nonzero(x: TensorLike, dim: Dim = None) -> Tensor:
    """How many elements over axes are other than zero, as int64.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    x = as_operand("count_nonzero", x)
    axes = axis_argument(reduced_axes("count_nonzero", dim, x.ndim), x.ndim)
    return Tensor((x.data != 0).sum(axis=axes, dtype=np.int64))


@method
def masked_select(x: TensorLike, mask: TensorLike) -> Tensor:
    """The elements of x where a mask holds, in row order; both broadcast. dx = g there, else 0.

    Raises:
        DtypeError: a mask that is not bool.
        ShapeError: the shapes do not broadcast.
        DeviceError: tensors on different devices.
    """
    x, mask = as_operand("masked_select", x), as_operand("masked_select", mask)
    same_device("masked_select", x, mask)
    if mask.data.dtype.kind != "b":
        got = f"{mask.dtype.name} {mask.shape}"
        raise DtypeError(f"masked_select: expected a bool mask, got {got}: compare, as in x != 0")
    try:
        shape = np.broadcast_shapes(x.data.shape, mask.data.shape)
    except ValueError as error:
        raise broadcast_error("masked_select", x, mask) from error
    return getitem(broadcast_to(x, shape), broadcast_to(mask, shape))


@method
def unique(
    x: TensorLike,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Any:
    """The different elements in ascending order, or the different slices along an axis. Each NaN is one of its own.

    Args:
        sorted: They are in order with False too.
        return_inverse: Where each element of x is among them, too: of the shape of x, or of an axis.
        return_counts: How often each occurs, too.
        dim: None looks at the elements.

    Returns:
        A tensor, or a tuple of it and what else was asked for, in the order of the arguments.

    Raises:
        ShapeError: the axis is out of range.
        ArgumentError: a switch that is no bool.

    Example:
        >>> import minigrad
        >>> values, counts = minigrad.tensor([3, 1, 3]).unique(return_counts=True)
        >>> values.tolist(), counts.tolist()
        ([1, 3], [1, 2])
    """
    x = as_operand("unique", x)
    check_switch("unique", sorted=sorted, return_inverse=return_inverse, return_counts=return_counts)
    axis = None if dim is None else normalize_axis("unique", dim, x.ndim)
    options = {"return_inverse": return_inverse, "return_counts": return_counts, "equal_nan": False}
    found = array_module(x.data).unique(widened(x.data), axis=axis if x.ndim else None, **options)
    values, *others = found if return_inverse or return_counts else (found,)
    if is_half(x.data.dtype):
        values = values.astype(x.data.dtype)
    if return_inverse:
        others[0] = others[0].reshape(x.data.shape if axis is None else -1)
    tensors = (Tensor(values), *(Tensor(part.astype(np.int64, copy=False)) for part in others))
    return tensors if others else tensors[0]


@method
def bincount(x: TensorLike, weights: TensorLike | None = None, minlength: int = 0) -> Tensor:
    """How often each of 0, 1, ... occurs among integers, as int64; with weights the sum of theirs.

    That is float32 of float32, and of all others float64.

    Shapes:
        x, weights: (N,) -> (max(x.max() + 1, minlength),)

    Raises:
        ShapeError: x has not one axis, or weights another shape.
        DtypeError: x is not of integers.
        IndexRangeError: a negative integer; on a GPU when the host next reads from it.
        ArgumentError: minlength is negative or no integer.
    """
    x = as_operand("bincount", x)
    if x.data.dtype.kind not in "iu":
        raise DtypeError(f"bincount: expected integers, got {x.dtype.name} {x.shape}")
    if x.ndim != 1:
        raise ShapeError(f"bincount: expected a vector, got shape {x.shape}")
    minlength = as_integer("bincount", "minlength", minlength, 0)
    check_range("bincount", "integers", x.data, 0, 2**48)
    count: Any = array_module(x.data).bincount
    if weights is None:
        return Tensor(count(x.data, minlength=minlength).astype(np.int64, copy=False))
    weights = as_operand("bincount", weights)
    same_device("bincount", x, weights)
    if weights.shape != x.shape:
        raise ShapeError(f"bincount: expected weights of shape {x.shape}, got {weights.shape}")
    sums: Array = count(x.data, weights.data.astype(np.float64), minlength)
    return Tensor(sums.astype(np.float32) if weights.data.dtype == np.float32 else sums)
