"""Along an axis, each element with those beside it: cumprod, diff. Running sums are in reduce.py."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import as_integer
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, DtypeLike, accumulator_dtype, as_dtype, converted, is_float, widened
from minigrad.errors import ShapeError
from minigrad.ops.arithmetic import sub
from minigrad.ops.axes import normalize_axis
from minigrad.ops.compare import ne
from minigrad.ops.convert import clone
from minigrad.ops.join import cat, narrow
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, cast
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["cumprod", "diff"]


@method
@autocasts("high")
def cumprod(x: TensorLike, dim: int, dtype: DtypeLike = None) -> Tensor:
    """Product of each element and those before it along an axis; bools and integers give int64.

    dx_i = (Σ_{j >= i} g_j·y_j) / x_i before the first zero. There y_j without that zero takes the place of y_j / x_i;
    behind it nothing flows back.

    Args:
        dtype: Convert x to it first, and give it back.

    Raises:
        ShapeError: the axis is out of range.
    """
    x = as_operand("cumprod", x)
    if dtype is not None:
        x = cast(x, as_dtype(dtype))
    axis = normalize_axis("cumprod", dim, x.data.ndim)
    products = _products(x.data, axis)
    if is_float(x.data.dtype) or dtype is not None:
        products = products if products.dtype == x.data.dtype else converted(products, x.data.dtype)
    return record(products, _cumprod_backward, (x,), (x, axis))


def _products(x: Array, axis: int) -> Array:
    lines = x if x.ndim else x.reshape(1)
    return array_module(x).cumprod(lines, axis=axis, dtype=accumulator_dtype(x.dtype)).reshape(x.shape)


def _cumprod_backward(node: Node, grad: Array) -> None:
    x, axis = node.saved
    if not x.data.ndim or x.data.shape[axis] == 1:
        accumulate(node.inputs[0], grad.copy())
        return
    xp, factors, wide = array_module(grad), widened(x.data), widened(grad)
    zeros = factors == 0
    seen = _sums(zeros.astype(np.int64), axis)  # zeros up to here
    nothing, one = xp.zeros((), wide.dtype), xp.ones((), wide.dtype)
    before = xp.where(seen == 0, wide * _products(factors, axis), nothing)
    there = xp.where(seen == 1, wide * _products(xp.where(zeros & (seen == 1), one, factors), axis), nothing)
    dx = _sums_from_behind(before, axis) / xp.where(zeros, one, factors)
    dx = xp.where(seen == 0, dx, xp.where(zeros & (seen == 1), _sums_from_behind(there, axis), nothing))
    accumulate(node.inputs[0], dx.astype(grad.dtype, copy=False))


def _sums(x: Array, axis: int) -> Array:
    return array_module(x).cumsum(x if x.ndim else x.reshape(1), axis=axis).reshape(x.shape)


def _sums_from_behind(x: Array, axis: int) -> Array:
    flip = array_module(x).flip
    return flip(_sums(flip(x, axis), axis), axis) if x.ndim else x


@method
def diff(
    x: TensorLike,
    n: int = 1,
    dim: int = -1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Tensor:
    """The difference of each element and the one before it along an axis, n times; of bools whether they differ.

    For n = 0 a copy of x, whatever is to be put before or after it.

    Args:
        prepend, append: Tensors that are put before and after x first.

    Shapes:
        (A, N, B) -> (A, max(N - n, 0), B) for dim = 1

    Raises:
        ShapeError: the axis is out of range, or a tensor of no axes.
        ArgumentError: n is negative.
    """
    x = as_operand("diff", x)
    n, axis = as_integer("diff", "n", n, 0), normalize_axis("diff", dim, x.ndim)
    if not x.ndim:
        raise ShapeError("diff: expected a tensor with at least one axis, got shape ()")
    if n == 0:
        return clone(x)
    parts = [part for part in (prepend, x, append) if part is not None]
    out = cat(parts, axis) if len(parts) > 1 else x
    for _ in range(min(n, out.shape[axis])):
        length = out.shape[axis] - 1
        after, before = narrow(out, axis, 1, length), narrow(out, axis, 0, length)
        out = ne(after, before) if out.data.dtype.kind == "b" else sub(after, before)
    return out
