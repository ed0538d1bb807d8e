"""Diagonals of matrices: diagonal, diag, diag_embed, trace."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import is_integer
from minigrad.autograd.tape import Node, lend, own_gradient
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.axes import normalize_axis
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand
from minigrad.ops.reduce import sum
from minigrad.ops.shape import MOST_ELEMENTS
from minigrad.tensor import Tensor, record

__all__ = ["diag", "diag_embed", "diagonal", "trace"]


@method
def diagonal(x: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """The diagonals of the matrices that two axes span, along a new last axis, as a view. dx = g there, else 0.

    Args:
        offset: 0 for the main one, positive above it, negative below.

    Shapes:
        (A, N, M) -> (A, min(N, M)) for dim1 = 1, dim2 = 2

    Raises:
        ShapeError: an axis out of range, or the same one twice.
        DtypeError: offset is no integer.
    """
    return _diagonal("diagonal", as_operand("diagonal", x), offset, dim1, dim2)


def _diagonal(who: str, x: Tensor, offset: int, dim1: int, dim2: int) -> Tensor:
    first, second = normalize_axis(who, dim1, x.ndim), normalize_axis(who, dim2, x.ndim)
    if first == second:
        raise ShapeError(f"{who}: expected two different axes of {x.shape}, got {dim1} and {dim2}")
    _check_offset(who, "offset", offset)
    data = array_module(x.data).diagonal(x.data, offset, first, second)
    saved = (x.data.shape, offset, first, second)
    if who == "diag":  # no view
        return record(data.copy(), _diagonal_backward, (x,), saved)
    return record(data, _diagonal_backward, (x,), saved, view_of=x)


def _check_offset(who: str, name: str, offset: Any) -> None:
    if not is_integer(offset) or not -MOST_ELEMENTS < offset < MOST_ELEMENTS:
        raise DtypeError(f"{who}: expected an integer {name} of less than 2**48, got {offset!r}")


def _diagonal_backward(node: Node, grad: Array) -> None:
    shape, offset, first, second = node.saved
    xp, (edge,) = array_module(grad), node.inputs
    if edge is not None:
        steps = xp.arange(grad.shape[-1])
        matrices = xp.moveaxis(own_gradient(edge, shape, grad), (first, second), (-2, -1))
        matrices[..., steps + max(-offset, 0), steps + max(offset, 0)] += grad


@method
def diag(x: TensorLike, diagonal: int = 0) -> Tensor:
    """A square matrix with a vector on its diagonal, and zeros elsewhere; of a matrix the diagonal, as a copy.

    dx = g on the diagonal; of a matrix, 0 elsewhere.

    Args:
        diagonal: 0 for the main one, positive above it, negative below.

    Shapes:
        (N,) -> (N + |diagonal|, N + |diagonal|); (N, M) -> (min(N, M),)

    Raises:
        ShapeError: another number of axes.
        DtypeError: diagonal is no integer.
    """
    x = as_operand("diag", x)
    if x.ndim not in (1, 2):
        raise ShapeError(f"diag: expected a vector or a matrix, got shape {x.shape}")
    _check_offset("diag", "diagonal", diagonal)
    if x.ndim == 2:
        return _diagonal("diag", x, diagonal, 0, 1)
    return record(array_module(x.data).diag(x.data, diagonal), _diag_backward, (x,), (diagonal,))


def _diag_backward(node: Node, grad: Array) -> None:
    lend(node.inputs[0], array_module(grad).diagonal(grad, node.saved[0]))


@method
def diag_embed(x: TensorLike, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Square matrices with the vectors of the last axis on their diagonals, and zeros elsewhere. dx = g there.

    Args:
        offset: 0 for the main diagonal, positive above it, negative below.
        dim1, dim2: Where the axes of the matrices are in the result.

    Shapes:
        (A, N) -> (A, M, M) with M = N + |offset|

    Raises:
        ShapeError: x has no axes, an axis out of range, or the same one twice.
        DtypeError: offset is no integer.
    """
    x = as_operand("diag_embed", x)
    if not x.ndim:
        raise ShapeError("diag_embed: expected at least one axis, got shape ()")
    first, second = (normalize_axis("diag_embed", dim, x.ndim + 1) for dim in (dim1, dim2))
    if first == second:
        raise ShapeError(f"diag_embed: expected two different axes of the result of {x.shape}, got {dim1} and {dim2}")
    _check_offset("diag_embed", "offset", offset)
    xp, length = array_module(x.data), x.data.shape[-1]
    matrices = xp.zeros((*x.data.shape[:-1], *(length + abs(offset),) * 2), x.data.dtype)
    steps = xp.arange(length)
    matrices[..., steps + max(-offset, 0), steps + max(offset, 0)] = x.data
    data = xp.moveaxis(matrices, (-2, -1), (first, second))
    return record(data, _diag_embed_backward, (x,), (offset, first, second))


def _diag_embed_backward(node: Node, grad: Array) -> None:
    lend(node.inputs[0], array_module(grad).diagonal(grad, *node.saved))


@method
def trace(x: TensorLike) -> Tensor:
    """The sum of a matrix's diagonal; integers give int64. dx = g on the diagonal, else 0.

    Shapes:
        (N, M) -> ()

    Raises:
        ShapeError: another number of axes.
    """
    x = as_operand("trace", x)
    if x.ndim != 2:
        raise ShapeError(f"trace: expected a matrix, got shape {x.shape}")
    return sum(_diagonal("trace", x, 0, 0, 1))
