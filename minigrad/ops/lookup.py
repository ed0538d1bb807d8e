"""Elements of a flattened tensor, and values among others: take, isin, searchsorted, bucketize."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import check_choice, check_switch
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import widened
from minigrad.backend.flags import check_range
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.index import check_index, getitem
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, operands, same_device
from minigrad.ops.shape import reshape
from minigrad.tensor import Tensor

__all__ = ["bucketize", "isin", "searchsorted", "take"]


@method
def take(x: TensorLike, index: TensorLike) -> Tensor:
    """The elements of the flattened x that an integer tensor names; dx adds up g for each.

    Shapes:
        x: any, index: (...) -> (...)

    Raises:
        DtypeError: index is not of integers. DeviceError: it is on another device.
        IndexRangeError: an index outside [-x.numel(), x.numel()); on a GPU when the host next reads from it.
    """
    x = as_operand("take", x)
    index = check_index("take", index, x)
    check_range("take", "indexes", index.data, -x.numel(), x.numel())
    return getitem(reshape(x, -1), index)


def isin(
    elements: TensorLike, test_elements: TensorLike, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """Whether each element is among others; NaN is among none. Nothing flows back.

    Args:
        assume_unique: A promise that nothing is made of.
        invert: Whether it is not among them.

    Raises:
        ArgumentError: a switch that is no bool.
        DtypeError: two different float dtypes. DeviceError: tensors on different devices.
    """
    x, others = operands("isin", elements, test_elements)
    check_switch("isin", assume_unique=assume_unique, invert=invert)
    found = array_module(x.data).isin(widened(x.data), widened(others.data).reshape(-1), invert=invert)
    return Tensor(found.reshape(x.data.shape))


def searchsorted(
    sorted_sequence: TensorLike,
    input: TensorLike,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
) -> Tensor:
    """Where each value belongs in an ascending line: before equal elements, or behind them. NaN belongs at the end.

    Args:
        out_int32: int32 instead of int64.
        right: Behind equal elements.
        side: "left" or "right", in other words.

    Shapes:
        sorted_sequence: (N,), input: (...) -> (...), each in [0, N]; or (..., N), (..., M) -> (..., M)

    Raises:
        ShapeError: other shapes.
        ArgumentError: a switch that is no bool, side is another word, or contradicts right.
        DtypeError: two different float dtypes. DeviceError: tensors on different devices.
    """
    check_switch("searchsorted", right=right)
    check_choice("searchsorted", ("left", "right"), side=side or "left")
    if side == "left" and right:
        raise ArgumentError("searchsorted: expected right=False with side='left', got right=True")
    return _searched("searchsorted", sorted_sequence, input, out_int32, right or side == "right")


@method
def bucketize(x: TensorLike, boundaries: TensorLike, *, out_int32: bool = False, right: bool = False) -> Tensor:
    """Between which of ascending boundaries each element lies: `searchsorted(boundaries, x)`.

    Args:
        out_int32: int32 instead of int64.
        right: An element that equals a boundary lies behind it.

    Raises:
        ShapeError: boundaries are no vector. ArgumentError: a switch that is no bool.
        DtypeError: two different float dtypes. DeviceError: tensors on different devices.
    """
    check_switch("bucketize", right=right)
    line = as_operand("bucketize", boundaries)
    if line.ndim != 1:
        raise ShapeError(f"bucketize: expected boundaries (N,), got {line.shape}")
    return _searched("bucketize", line, x, out_int32, right)


def _searched(who: str, line: TensorLike, values: TensorLike, narrow: bool, right: bool) -> Tensor:
    check_switch(who, out_int32=narrow)
    line, values = operands(who, line, values)
    same_device(who, line, values)
    sorted_, sought = widened(line.data), widened(values.data)
    dtype = np.int32 if narrow else np.int64
    if line.ndim == 1:
        found = array_module(sorted_).searchsorted(sorted_, sought.reshape(-1), side="right" if right else "left")
        return Tensor(found.astype(dtype, copy=False).reshape(sought.shape))
    if not line.ndim or line.shape[:-1] != values.shape[:-1]:
        got = f"{line.shape} and {values.shape}"
        raise ShapeError(f"{who}: expected shapes (N,) and (...), or (..., N) and (..., M), got {got}")
    rows, columns = sorted_[..., None, :], sought[..., None]
    behind = rows > columns if right else rows >= columns
    return Tensor((~behind).sum(axis=-1, dtype=dtype))
