"""Reductions over axes: sums, moments, norms, products, truth. The largest and smallest elements are in extremum.py.

In all of them dim is None (all axes), an axis or a tuple of axes, and keepdim keeps the reduced axes with length 1.
Half precision is accumulated in float32 and returned in the dtype of the input, or in the one that was asked for.
Squares are taken in the dtype that is accumulated: in float32 those of numbers beyond 1e19 are infinite, and those of
numbers below 1e-19 lose their digits, as in PyTorch on a GPU (on a CPU it takes them in float64).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_switch
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, DtypeLike, accumulator_dtype, is_float, widened
from minigrad.backend.special import sign
from minigrad.bound import Dim
from minigrad.errors import ArgumentError
from minigrad.ops.axes import (
    axis_argument,
    count_of,
    kept_shape,
    max_axes,
    nearest_finite,
    normalize_axis,
    reduced_axes,
    reduced_shape,
    spread,
    spread_over,
    sum_axes,
)
from minigrad.ops.elementwise import abs
from minigrad.ops.extremum import extreme
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, check_float, in_dtype, promote_to_float
from minigrad.ops.pixels import are_pixels, mean_of_pixels
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["all", "any", "cumsum", "logsumexp", "mean", "norm", "prod", "std", "sum", "var"]


@method
@autocasts("high")
def sum(x: TensorLike, dim: Dim = None, keepdim: bool = False, dtype: DtypeLike = None) -> Tensor:
    """Sum over axes; bools and integers give int64. dx = g, spread over the axes.

    Args:
        dtype: Convert x to it first, which the result has then.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    x = in_dtype("sum", x, dtype)
    axes = reduced_axes("sum", dim, x.data.ndim, keepdim)
    data = sum_axes(x.data, axes, keepdim)
    return record(_narrowed(data, x, dtype), _sum_backward, (x,), spread_over(x.data, axes))


def _sum_backward(node: Node, grad: Array) -> None:
    spread(node.inputs[0], grad, *node.saved)


@method
@autocasts("high")
def mean(x: TensorLike, dim: Dim = None, keepdim: bool = False, dtype: DtypeLike = None) -> Tensor:
    """Mean over axes, NaN of nothing. dx = g/n, spread over the axes.

    Args:
        dtype: Convert x to it first, which the result has then.

    Raises:
        DtypeError: an integer tensor.
        ShapeError: an axis out of range, or named twice.
    """
    x = in_dtype("mean", x, dtype)
    check_float("mean", x)
    axes = reduced_axes("mean", dim, x.data.ndim, keepdim)
    if are_pixels(x.data, axes):
        return mean_of_pixels(x, axes, keepdim)
    n = count_of(x.data.shape, axes)
    total = sum_axes(x.data, axes, keepdim)
    return record(_narrowed(total / (n or math.nan), x), _mean_backward, (x,), (*spread_over(x.data, axes), n))


def _mean_backward(node: Node, grad: Array) -> None:
    *shapes, n = node.saved
    spread(node.inputs[0], grad / (n or 1), *shapes)


def _narrowed(data: Array, x: Tensor, asked: DtypeLike = None) -> Array:
    """A result in the dtype of the float tensor that it was computed from; that of integers only where asked for."""
    dtype = x.data.dtype
    return data.astype(dtype) if data.dtype != dtype and (is_float(dtype) or asked is not None) else data


# -------------------------------------------------------------------------------------------------------- moments


@method
@autocasts("high")
def var(
    x: TensorLike,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Variance over axes: Σ(x - mean)² / (n - correction), NaN where n <= correction.

    dx = g·2(x - mean)/(n - correction).

    Args:
        unbiased: True for correction=1, False for 0; may stand in the place of dim, for all axes.
        correction: Degrees of freedom that the mean took, 1 by default.

    Raises:
        ArgumentError: both unbiased and correction were given, or one of another type.
        DtypeError: an integer tensor.
        ShapeError: an axis out of range, or named twice.
    """
    x, axes, freedom = _var_arguments("var", x, dim, unbiased, keepdim, correction)
    mean, variance = _moments(x, axes, freedom)
    return record(_reduced(variance, x, axes, keepdim), _var_backward, (x,), (x, mean, freedom))


def _var_backward(node: Node, grad: Array) -> None:
    x, mean, freedom = node.saved
    accumulate(node.inputs[0], _from_variance(grad, x, mean, freedom))


@method
@autocasts("high")
def std(
    x: TensorLike,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """Standard deviation over axes, the root of `var`. dx = g·(x - mean)/(std·(n - correction)), 0 where std is 0.

    Args:
        unbiased: True for correction=1, False for 0; may stand in the place of dim, for all axes.
        correction: Degrees of freedom that the mean took, 1 by default.

    Raises:
        ArgumentError: both unbiased and correction were given, or one of another type.
        DtypeError: an integer tensor.
        ShapeError: an axis out of range, or named twice.
    """
    x, axes, freedom = _var_arguments("std", x, dim, unbiased, keepdim, correction)
    mean, variance = _moments(x, axes, freedom)
    deviation = array_module(variance).sqrt(variance)
    saved = (x, mean, freedom, deviation)
    return record(_reduced(deviation, x, axes, keepdim), _std_backward, (x,), saved, saves_output=True)


def _std_backward(node: Node, grad: Array) -> None:
    x, mean, freedom, deviation = node.saved
    twice = (deviation + (deviation == 0)) * 2
    accumulate(node.inputs[0], _from_variance(widened(grad).reshape(twice.shape) / twice, x, mean, freedom))


def _var_arguments(
    who: str, x: TensorLike, dim: Dim, unbiased: bool | None, keepdim: bool, correction: float | None
) -> tuple[Tensor, tuple[int, ...], float]:
    """The tensor, the axes, and the degrees of freedom, NaN where there are none. A bool for dim is unbiased."""
    if unbiased is None and isinstance(dim, bool):
        unbiased, dim = dim, None
    if unbiased is not None and correction is not None:
        raise ArgumentError(f"{who}: expected unbiased or correction, got both: {unbiased} and {correction}")
    if correction is None:
        unbiased = True if unbiased is None else unbiased
        check_switch(who, unbiased=unbiased)
        correction = float(unbiased)
    correction = as_real(who, "correction", correction)
    x = as_operand(who, x)
    check_float(who, x)
    axes = reduced_axes(who, dim, x.data.ndim, keepdim)
    freedom = count_of(x.data.shape, axes) - correction
    return x, axes, freedom if freedom > 0 else math.nan


def _moments(x: Tensor, axes: tuple[int, ...], freedom: float) -> tuple[Array, Array]:
    """Mean and variance over axes that are kept, half precision in float32.

    Far from zero the mean is rounded coarsely, which would add its error squared: so it is centred twice.
    """
    count = count_of(x.data.shape, axes) or math.nan
    mean = sum_axes(x.data, axes, keepdim=True) / count
    centred = widened(x.data) - mean
    centred -= sum_axes(centred, axes, keepdim=True) / count
    centred *= centred
    return mean, sum_axes(centred, axes, keepdim=True) / freedom


def _reduced(kept: Array, x: Tensor, axes: tuple[int, ...], keepdim: bool) -> Array:
    """A result that was computed with its axes kept, as the caller wants it."""
    return _narrowed(kept.reshape(reduced_shape(x.data.shape, axes, keepdim)), x)


def _from_variance(grad: Array, x: Tensor, mean: Array, freedom: float) -> Array:
    dx = widened(x.data) - mean
    dx *= widened(grad).reshape(mean.shape) * (2 / freedom)
    return _narrowed(dx, x)


# ------------------------------------------------------------------------------------------------ norm, logsumexp


@method
@autocasts("high")
def norm(x: TensorLike, p: float | str = "fro", dim: Dim = None, keepdim: bool = False) -> Tensor:
    """The p-norm over axes, (Σ|x|ᵖ)^(1/p). dx = g·sign(x)·(|x|/norm)^(p-1), 0 where the norm is 0.

    Args:
        p: A number, or "fro" for 2; inf is the largest magnitude, -inf the smallest, 0 counts what is not zero.

    Raises:
        ArgumentError: p is something else.
        DtypeError: an integer tensor.
        ShapeError: an axis out of range, or named twice; inf or -inf of nothing.
    """
    x = as_operand("norm", x)
    check_float("norm", x)
    power = 2.0 if isinstance(p, str) and p == "fro" else as_real("norm", "p other than 'fro'", p)
    if math.isinf(power):
        return extreme("norm", "max" if power > 0 else "min", abs(x), dim, keepdim)
    axes = reduced_axes("norm", dim, x.data.ndim, keepdim)
    size = _finite_norm(widened(x.data), power, axes)
    return record(_reduced(size, x, axes, keepdim), _norm_backward, (x,), (x, size, power), saves_output=True)


def _finite_norm(x: Array, power: float, axes: tuple[int, ...]) -> Array:
    xp = array_module(x)
    if power == 2:
        return xp.sqrt(sum_axes(x * x, axes, keepdim=True))
    if power == 0:
        return sum_axes((x != 0).astype(x.dtype), axes, keepdim=True)
    if power == 1:
        return sum_axes(xp.abs(x), axes, keepdim=True)
    return sum_axes(xp.abs(x) ** power, axes, keepdim=True) ** (1 / power)


def _norm_backward(node: Node, grad: Array) -> None:
    x, size, power = node.saved
    wide, xp = widened(x.data), array_module(grad)
    grad = widened(grad).reshape(size.shape)
    positive = size + (size == 0)
    if power == 2:
        dx = wide * (grad / positive)
    elif power == 0:
        dx = xp.zeros_like(wide)
    else:
        share = xp.abs(wide) / positive + (wide == 0)  # where x is 0 any share will do: its sign is 0
        dx = sign(wide) * share ** (power - 1) * (grad * (size != 0))  # a zero makes the norm of negative power 0
    accumulate(node.inputs[0], _narrowed(dx, x))


@method
@autocasts("high")
def logsumexp(x: TensorLike, dim: Dim, keepdim: bool = False) -> Tensor:
    """ln Σ eˣ over axes, without overflow; -inf where all x are -inf, or none.

    dx = g·e^(x - logsumexp), 0 where x is -inf.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    x = promote_to_float("logsumexp", x)
    axes = reduced_axes("logsumexp", dim, x.data.ndim, keepdim)
    kept = kept_shape(x.data.shape, axes)
    wide, xp = widened(x.data), array_module(x.data)
    if count_of(x.data.shape, axes):
        largest = max_axes(wide, axes, keepdim=True)
        total = sum_axes(xp.exp(wide - nearest_finite(largest)), axes, keepdim=True)
        data = largest + xp.log(total + (total == 0))
    else:
        data = xp.full(kept, -math.inf, wide.dtype)
    return record(_reduced(data, x, axes, keepdim), _logsumexp_backward, (x,), (x, data), saves_output=True)


@np.errstate(invalid="ignore")  # NaN for infinity, as in PyTorch
def _logsumexp_backward(node: Node, grad: Array) -> None:
    x, data = node.saved
    lowest = float(np.finfo(data.dtype).min)  # of -inf alone, which gets 0
    xp = array_module(grad)
    dx = xp.exp(widened(x.data) - xp.maximum(data, lowest))
    dx *= widened(grad).reshape(data.shape)
    accumulate(node.inputs[0], _narrowed(dx, x))


# ------------------------------------------------------------------------------------------------ products, prefixes


@method
@autocasts("high")
def prod(x: TensorLike, dim: int | None = None, keepdim: bool = False, dtype: DtypeLike = None) -> Tensor:
    """Product over one axis or all; bools and integers give int64. dx = g times the product of the other elements.

    Args:
        dtype: Convert x to it first, which the result has then.

    Raises:
        ShapeError: the axis is out of range.
    """
    x = in_dtype("prod", x, dtype)
    axes = reduced_axes("prod", None if dim is None else normalize_axis("prod", dim, x.data.ndim), x.data.ndim, keepdim)
    data = x.data.prod(axis=axis_argument(axes, x.data.ndim), dtype=accumulator_dtype(x.data.dtype), keepdims=True)
    data = _narrowed(data, x, dtype)
    return record(_reduced(data, x, axes, keepdim), _prod_backward, (x,), (x, dim, data.shape))


def _prod_backward(node: Node, grad: Array) -> None:
    x, dim, kept = node.saved
    axis = 0 if dim is None else dim
    factors = widened(x.data.reshape(-1) if dim is None or not x.data.ndim else x.data)
    left = _products_before(factors, axis)
    right = array_module(grad).flip(_products_before(array_module(grad).flip(factors, axis), axis), axis)
    dx = (left * right).reshape(x.data.shape) * widened(grad).reshape(kept)
    accumulate(node.inputs[0], _narrowed(dx, x))


def _products_before(x: Array, axis: int) -> Array:
    """For each element the product of those before it, 1 for the first."""
    xp = array_module(x)
    shifted = xp.ones_like(x)
    first, last = [slice(None)] * x.ndim, [slice(None)] * x.ndim
    first[axis], last[axis] = slice(1, None), slice(None, -1)
    shifted[tuple(first)] = x[tuple(last)]
    return xp.cumprod(shifted, axis=axis)


@method
@autocasts("high")
def cumsum(x: TensorLike, dim: int, dtype: DtypeLike = None) -> Tensor:
    """Sum of each element and those before it along an axis; bools and integers give int64. dx = sums of g from behind.

    Args:
        dtype: Convert x to it first, which the result has then.

    Raises:
        ShapeError: the axis is out of range.
    """
    x = in_dtype("cumsum", x, dtype)
    axis = normalize_axis("cumsum", dim, x.data.ndim)
    return record(_narrowed(_prefix_sums(x.data, axis), x, dtype), _cumsum_backward, (x,), (axis,))


def _prefix_sums(x: Array, axis: int) -> Array:
    sums = array_module(x).cumsum(x if x.ndim else x.reshape(1), axis=axis, dtype=accumulator_dtype(x.dtype))
    return sums.reshape(x.shape)


def _cumsum_backward(node: Node, grad: Array) -> None:
    (axis,) = node.saved
    xp = array_module(grad)
    if not grad.ndim:
        accumulate(node.inputs[0], grad.copy())
        return
    sums = xp.flip(_prefix_sums(xp.flip(grad, axis), axis), axis)
    accumulate(node.inputs[0], sums.astype(grad.dtype, copy=False))


# ---------------------------------------------------------------------------------------------------------- truth


@method
def any(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether an element over the axes is other than zero; False of nothing. Nothing flows back.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    return _truth("any", x, dim, keepdim)


@method
def all(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all elements over the axes are other than zero; True of nothing. Nothing flows back.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    return _truth("all", x, dim, keepdim)


def _truth(who: str, x: TensorLike, dim: Dim, keepdim: bool) -> Tensor:
    x = as_operand(who, x)
    axes = axis_argument(reduced_axes(who, dim, x.data.ndim, keepdim), x.data.ndim)
    found: Any = getattr(x.data, who)(axis=axes, keepdims=keepdim)
    return Tensor(found)
