"""Two reductions in one call: var_mean, std_mean, aminmax."""

from __future__ import annotations

from typing import NamedTuple

from minigrad.bound import Dim
from minigrad.ops.extremum import amax, amin
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand
from minigrad.ops.reduce import mean, std, var
from minigrad.tensor import Tensor

__all__ = ["aminmax", "std_mean", "var_mean"]


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
