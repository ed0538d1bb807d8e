"""Reductions that are made of others: var_mean, std_mean, aminmax, nansum, nanmean, cov, corrcoef."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from minigrad.arguments import as_integer
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.dtypes import Array, DtypeLike, converted, is_float, widened
from minigrad.bound import Dim
from minigrad.errors import ShapeError
from minigrad.ops.axes import normalize_axes
from minigrad.ops.compare import isnan
from minigrad.ops.extremum import amax, amin
from minigrad.ops.linalg import product
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, check_float, float_operand, in_dtype
from minigrad.ops.precision import autocasts
from minigrad.ops.reduce import mean, std, sum, var
from minigrad.ops.shape import reshape, unsqueeze
from minigrad.tensor import Tensor, record

__all__ = ["aminmax", "corrcoef", "cov", "nanmean", "nansum", "std_mean", "var_mean"]


class Range(NamedTuple):
    """What `aminmax` finds: the smallest and the largest elements."""

    min: Tensor
    max: Tensor


@method
def aminmax(x: TensorLike, *, dim: int | None = None, keepdim: bool = False) -> Range:
    """The smallest and the largest elements over an axis, or all. Gradients are split evenly between equal elements.

    Raises:
        ShapeError: the axis is out of range, or nothing to choose from.
    """
    x = as_operand("aminmax", x)
    return Range(amin(x, dim, keepdim), amax(x, dim, keepdim))


def var_mean(
    x: TensorLike,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`var` and `mean` over the same axes.

    Raises:
        ArgumentError, DtypeError, ShapeError: as `var`.
    """
    x = as_operand("var_mean", x)
    return var(x, dim, unbiased, keepdim, correction=correction), mean(x, _axes(dim), keepdim)


def std_mean(
    x: TensorLike,
    dim: Dim = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`std` and `mean` over the same axes.

    Raises:
        ArgumentError, DtypeError, ShapeError: as `std`.
    """
    x = as_operand("std_mean", x)
    return std(x, dim, unbiased, keepdim, correction=correction), mean(x, _axes(dim), keepdim)


def _axes(dim: Dim) -> Dim:
    """dim, in the place of which `unbiased` may stand."""
    return None if isinstance(dim, bool) else dim


# --------------------------------------------------------------------------------------------------- without NaN


@method
@autocasts("high")
def nansum(x: TensorLike, dim: Dim = None, keepdim: bool = False, dtype: DtypeLike = None) -> Tensor:
    """`sum` of what is not NaN; 0 of nothing. dx = g, 0 for NaN.

    Raises:
        ShapeError: an axis out of range, or named twice.
    """
    x = in_dtype("nansum", x, dtype)
    normalize_axes("nansum", dim, x.ndim)
    return sum(x.masked_fill(isnan(x), 0) if is_float(x.data.dtype) else x, dim, keepdim)


@method
@autocasts("high")
def nanmean(x: TensorLike, dim: Dim = None, keepdim: bool = False, *, dtype: DtypeLike = None) -> Tensor:
    """`mean` of what is not NaN; NaN of nothing. dx = g/n, 0 for NaN.

    Raises:
        DtypeError: an integer tensor.
        ShapeError: an axis out of range, or named twice.
    """
    x = in_dtype("nanmean", x, dtype)
    check_float("nanmean", x)
    counts = sum(~isnan(x), dim, keepdim)
    return (nansum(x, dim, keepdim) / counts.clamp(min=1)).masked_fill(counts == 0, math.nan)


# ---------------------------------------------------------------------------------------- how variables vary together


@autocasts("high")
def cov(x: TensorLike, *, correction: int = 1) -> Tensor:
    """The covariances of the rows of x: z @ zᵀ / (M - correction), with z = x less the means of its rows.

    dx = (g + gᵀ) @ z / (M - correction), less the means of its rows.

    Args:
        correction: Degrees of freedom that the means took; NaN or infinite where M <= correction.

    Shapes:
        (N, M) -> (N, N); (M,) and (1, M) -> ()

    Raises:
        ShapeError: more than two axes.
        DtypeError: an integer tensor.
    """
    return _cov("cov", x, correction)


def _cov(who: str, x: TensorLike, correction: int) -> Tensor:
    rows = float_operand(who, x)
    if rows.ndim > 2:
        raise ShapeError(f"{who}: expected a matrix of variables by samples, or a vector, got shape {rows.shape}")
    shape = (rows.shape[0],) * 2 if rows.ndim == 2 and rows.shape[0] != 1 else ()
    rows = rows if rows.ndim == 2 else reshape(rows, 1, -1)
    centred = _centred(widened(rows.data))
    freedom = max(rows.shape[1] - as_integer(who, "correction", correction), 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        data = converted(product(centred, centred.T) / freedom, rows.data.dtype)
    return reshape(record(data, _cov_backward, (rows,), (centred, freedom)), shape)


def _centred(rows: Array) -> Array:
    count = max(rows.shape[1], 1)
    return rows - rows.sum(1, keepdims=True) / count


@np.errstate(divide="ignore", invalid="ignore")
def _cov_backward(node: Node, grad: Array) -> None:
    centred, freedom = node.saved
    wide = widened(grad)
    accumulate(node.inputs[0], converted(_centred(product(wide + wide.T, centred) / freedom), grad.dtype))


@autocasts("high")
def corrcoef(x: TensorLike) -> Tensor:
    """The correlations of the rows of x: c_ij / sqrt(c_ii·c_jj), in [-1, 1], of their covariances c.

    Shapes:
        (N, M) -> (N, N); (M,) and (1, M) -> ()

    Raises:
        ShapeError: more than two axes.
        DtypeError: an integer tensor.
    """
    c = _cov("corrcoef", x, 1)
    if not c.ndim:
        return c / c
    deviations = c.diagonal().sqrt()
    return (c / unsqueeze(deviations, 1) / deviations).clamp(-1, 1)
