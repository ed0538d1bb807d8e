"""Choosing by a condition: where, masked_fill, masked_scatter, tril, triu."""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np

from minigrad.arguments import is_integer, is_number
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module, to_device
from minigrad.backend.dtypes import Array
from minigrad.backend.flags import check_range
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.arithmetic import broadcast_error
from minigrad.ops.axes import unbroadcast
from minigrad.ops.counting import nonzero
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, as_truth, masked, operands, same_device
from minigrad.ops.shape import MOST_ELEMENTS
from minigrad.tensor import Tensor, record

__all__ = ["masked_fill", "masked_scatter", "tril", "triu", "where"]


def _check_mask(who: str, mask: TensorLike) -> Tensor:
    """A mask as a bool tensor.

    Raises:
        DtypeError: it is not of bools.
    """
    found = as_operand(who, mask)
    if found.data.dtype.kind != "b":
        raise DtypeError(f"{who}: expected a bool mask, got {found.dtype.name} {found.shape}: compare, as in x != 0")
    return found


@overload
def where(condition: TensorLike) -> tuple[Tensor, ...]: ...


@overload
def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor: ...


def where(condition: TensorLike, x: TensorLike = None, y: TensorLike = None) -> Tensor | tuple[Tensor, ...]:
    """x where condition holds, else y, all three broadcasting. dx = g·condition, dy = g·(not condition).

    With the condition alone, which may then be of numbers too, `nonzero(condition, as_tuple=True)`.

    Raises:
        ArgumentError: one of x and y alone.
        DtypeError: a condition that is not bool, or two different float dtypes.
        ShapeError: the shapes do not broadcast.
        DeviceError: tensors on different devices.
    """
    if (x is None) != (y is None):
        raise ArgumentError(f"where: expected x and y, or neither, got {'y' if x is None else 'x'} alone")
    if x is None:
        return nonzero(condition, as_tuple=True)
    condition = _check_mask("where", condition)
    if is_number(x) and is_number(y):
        x = Tensor(to_device(as_operand("where", x).data, condition.device))
    x, y = operands("where", x, y)
    same_device("where", condition, x, y)
    try:
        data = array_module(x.data).where(condition.data, x.data, y.data)
    except ValueError as error:
        raise broadcast_error("where", condition, x, y) from error
    return record(data, _where_backward, (x, y, condition), (condition, x.data.shape, y.data.shape))


def _where_backward(node: Node, grad: Array) -> None:
    condition, x_shape, y_shape = node.saved
    dx, dy, _ = node.inputs
    if dx is not None:
        accumulate(dx, unbroadcast(masked(grad, condition.data), x_shape))
    if dy is not None:
        accumulate(dy, unbroadcast(masked(grad, ~condition.data), y_shape))


@method
def masked_fill(x: TensorLike, mask: TensorLike, value: TensorLike) -> Tensor:
    """x with value where mask holds, broadcasting. dx = g·(not mask), dvalue = the sum of g·mask.

    Args:
        value: A number, or a tensor of no axes.

    Raises:
        DtypeError: a mask that is not bool, or a value whose dtype does not fit into x's.
        ShapeError: the shapes do not broadcast, or value has axes.
    """
    x, mask = as_operand("masked_fill", x), _check_mask("masked_fill", mask)
    wide, value = operands("masked_fill", x, as_truth(x, value))
    same_device("masked_fill", x, mask, value)
    if wide.dtype != x.dtype:
        raise DtypeError(f"masked_fill: expected a value that fits into {x.dtype.name}, got {value.dtype.name}")
    if value.ndim:
        raise ShapeError(f"masked_fill: expected a value of no axes, got shape {value.shape}")
    xp = array_module(x.data)
    try:
        shape = np.broadcast_shapes(x.data.shape, mask.data.shape)
    except ValueError as error:
        raise broadcast_error("masked_fill", x, mask) from error
    data = x.data.copy() if shape == x.data.shape else xp.broadcast_to(x.data, shape).copy()
    xp.copyto(data, value.data, where=mask.data)
    return record(data, _masked_fill_backward, (x, value, mask), (mask, x.data.shape))


def _masked_fill_backward(node: Node, grad: Array) -> None:
    mask, shape = node.saved
    dx, dvalue, _ = node.inputs
    if dx is not None:
        accumulate(dx, unbroadcast(masked(grad, ~mask.data), shape))
    if dvalue is not None:
        accumulate(dvalue, masked(grad, mask.data).sum(dtype=grad.dtype))


@method
def masked_scatter(x: TensorLike, mask: TensorLike, source: TensorLike) -> Tensor:
    """x with the first elements of source, one after the other, where mask holds.

    dx = g·(not mask), dsource = g where its elements went, else 0.

    Args:
        mask: Bools, which broadcast with x.
        source: As many elements as mask holds, or more.

    Raises:
        DtypeError: a mask that is not bool, or a source of another dtype than x.
        ShapeError: the shapes do not broadcast.
        IndexRangeError: source has too few elements; on a GPU when the host next reads from it.
    """
    x, mask = as_operand("masked_scatter", x), _check_mask("masked_scatter", mask)
    source = as_operand("masked_scatter", source)
    same_device("masked_scatter", x, mask, source)
    if source.data.dtype != x.data.dtype:
        raise DtypeError(f"masked_scatter: expected a source of {x.dtype.name}, got {source.dtype.name}")
    xp = array_module(x.data)
    try:
        shape = np.broadcast_shapes(x.data.shape, mask.data.shape)
    except ValueError as error:
        raise broadcast_error("masked_scatter", x, mask) from error
    there = xp.broadcast_to(mask.data, shape)
    counts = xp.cumsum(there.reshape(-1), dtype=np.int64)  # of elements that went, up to each place
    check_range("masked_scatter", "counts of elements", counts, 0, source.data.size + 1)
    given = source.data.reshape(-1) if source.data.size else xp.zeros(1, x.data.dtype)
    data = xp.where(there, given[xp.clip(counts - 1, 0, given.size - 1)].reshape(shape), x.data)
    return record(data, _masked_scatter_backward, (x, source, mask), (mask, counts, x.data.shape, source.data.shape))


def _masked_scatter_backward(node: Node, grad: Array) -> None:
    mask, counts, shape, source_shape = node.saved
    dx, dsource, _ = node.inputs
    if dx is not None:
        there = array_module(grad).broadcast_to(mask.data, grad.shape)
        accumulate(dx, unbroadcast(masked(grad, ~there), shape))
    if dsource is not None:
        xp, flat = array_module(grad), grad.reshape(-1)
        places = xp.searchsorted(counts, xp.arange(1, math.prod(source_shape) + 1))  # where each went; or the end
        ends = xp.zeros(1, grad.dtype)
        accumulate(dsource, xp.concatenate([flat, ends])[places].reshape(source_shape))


@method
def tril(x: TensorLike, diagonal: int = 0) -> Tensor:
    """The lower triangle of the last two axes, zero above the diagonal. dx = the same of g.

    Args:
        diagonal: 0 the main one, positive above it, negative below.

    Shapes:
        (..., N, M) -> (..., N, M)

    Raises:
        ShapeError: fewer than two axes.
    """
    x = _check_matrix("tril", x, diagonal)
    return record(array_module(x.data).tril(x.data, diagonal), _tril_backward, (x,), (diagonal,))


def _tril_backward(node: Node, grad: Array) -> None:
    accumulate(node.inputs[0], array_module(grad).tril(grad, node.saved[0]))


@method
def triu(x: TensorLike, diagonal: int = 0) -> Tensor:
    """The upper triangle of the last two axes, zero below the diagonal. dx = the same of g.

    Args:
        diagonal: 0 the main one, positive above it, negative below.

    Shapes:
        (..., N, M) -> (..., N, M)

    Raises:
        ShapeError: fewer than two axes.
    """
    x = _check_matrix("triu", x, diagonal)
    return record(array_module(x.data).triu(x.data, diagonal), _triu_backward, (x,), (diagonal,))


def _triu_backward(node: Node, grad: Array) -> None:
    accumulate(node.inputs[0], array_module(grad).triu(grad, node.saved[0]))


def _check_matrix(who: str, x: TensorLike, diagonal: Any) -> Tensor:
    matrix = as_operand(who, x)
    if matrix.ndim < 2:
        raise ShapeError(f"{who}: expected a tensor (..., N, M), got {matrix.shape}")
    if not is_integer(diagonal) or not -MOST_ELEMENTS < diagonal < MOST_ELEMENTS:
        raise DtypeError(f"{who}: expected an integer diagonal of less than 2**48, got {diagonal!r}")
    return matrix
