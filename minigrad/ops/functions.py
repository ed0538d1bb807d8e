"""More functions of one or two elements: logarithms, exponentials, trigonometry, roundings beyond elementwise.py.

The transcendental ones take integers as float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import as_real
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.blocks import in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, converted, is_float, is_half, widened
from minigrad.ops.arithmetic import broadcast_error, sub
from minigrad.ops.axes import unbroadcast
from minigrad.ops.elementwise import clamp, logistic
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, check_float, masked, operands, promote_to_float
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = [
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cosh", "exp2", "frac", "log10", "log2", "logaddexp",
    "logit", "nan_to_num", "sinh", "tan", "trunc", "xlogy",
]

_LN_2, _LN_10 = math.log(2), math.log(10)


# ------------------------------------------------------------------------------------- logarithms and exponentials


@method
@autocasts("high")
def log2(x: TensorLike) -> Tensor:
    """Logarithm to base 2. dx = g/(x·ln 2)."""
    x = promote_to_float("log2", x)
    return record(array_module(x.data).log2(x.data), _log2_backward, (x,), (x,))


def _log2_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], (grad / (x.data * _LN_2)).astype(grad.dtype, copy=False))


@method
@autocasts("high")
def log10(x: TensorLike) -> Tensor:
    """Logarithm to base 10. dx = g/(x·ln 10)."""
    x = promote_to_float("log10", x)
    return record(array_module(x.data).log10(x.data), _log10_backward, (x,), (x,))


def _log10_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], (grad / (x.data * _LN_10)).astype(grad.dtype, copy=False))


@method
def exp2(x: TensorLike) -> Tensor:
    """2 to the power x. dx = g·2ˣ·ln 2."""
    x = promote_to_float("exp2", x)
    data = array_module(x.data).exp2(x.data)
    return record(data, _exp2_backward, (x,), (data,), saves_output=True)


def _exp2_backward(node: Node, grad: Array) -> None:
    (power,) = node.saved
    accumulate(node.inputs[0], (grad * power * _LN_2).astype(grad.dtype, copy=False))  # bfloat16 widens by a number


@method
def logaddexp(x: TensorLike, other: TensorLike) -> Tensor:
    """ln(eˣ + e^other), without overflow, broadcasting. dx = g·eˣ/(eˣ + e^other), dother = g·e^other/(eˣ + e^other).

    Raises:
        DtypeError: integer tensors, or two different float dtypes.
        ShapeError: the shapes do not broadcast.
    """
    x, other = operands("logaddexp", x, other)
    check_float("logaddexp", x)
    try:
        data = array_module(x.data).logaddexp(widened(x.data), widened(other.data))
    except ValueError as error:
        raise broadcast_error("logaddexp", x, other) from error
    data = converted(data, x.data.dtype) if is_half(x.data.dtype) else data
    return record(data, _logaddexp_backward, (x, other), (x, other))


def _logaddexp_backward(node: Node, grad: Array) -> None:
    x, other = node.saved
    for edge, part, rest in zip(node.inputs, (x, other), (other, x)):
        if edge is not None:
            share = in_blocks(logistic, part.data - rest.data)
            accumulate(edge, unbroadcast(grad * share, part.data.shape))


@method
def logit(x: TensorLike, eps: float | None = None) -> Tensor:
    """ln(x / (1 - x)), the inverse of the sigmoid; NaN outside [0, 1]. dx = g/(x·(1 - x)).

    Args:
        eps: x is cut to [eps, 1 - eps] first, and gets no gradient outside; None cuts nothing.

    Raises:
        ArgumentError: eps is outside [0, 0.5].
    """
    x = promote_to_float("logit", x)
    if eps is not None:
        eps = as_real("logit", "eps", eps, 0.0, 0.5)
        x = clamp(x, eps, 1 - eps)
    return record(array_module(x.data).log(x.data / (1 - x.data)), _logit_backward, (x,), (x,))


def _logit_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    slope = x.data * (1 - x.data)
    accumulate(node.inputs[0], grad / array_module(grad).where(slope < 0, grad.dtype.type(math.nan), slope))


# ----------------------------------------------------------------------------------------------------- trigonometry


@method
@autocasts("high")
def tan(x: TensorLike) -> Tensor:
    """Tangent of radians. dx = g·(1 + tan² x)."""
    x = promote_to_float("tan", x)
    data = array_module(x.data).tan(x.data)
    return record(data, _tan_backward, (x,), (data,), saves_output=True)


def _tan_backward(node: Node, grad: Array) -> None:
    (y,) = node.saved
    accumulate(node.inputs[0], grad * (1 + y * y))


@method
@autocasts("high")
def asin(x: TensorLike) -> Tensor:
    """The angle in [-π/2, π/2] whose sine is x; NaN outside [-1, 1]. dx = g/√(1 - x²)."""
    x = promote_to_float("asin", x)
    return record(array_module(x.data).arcsin(x.data), _asin_backward, (x,), (x,))


def _asin_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad / array_module(grad).sqrt(1 - x.data * x.data))


@method
@autocasts("high")
def acos(x: TensorLike) -> Tensor:
    """The angle in [0, π] whose cosine is x; NaN outside [-1, 1]. dx = -g/√(1 - x²)."""
    x = promote_to_float("acos", x)
    return record(array_module(x.data).arccos(x.data), _acos_backward, (x,), (x,))


def _acos_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], -grad / array_module(grad).sqrt(1 - x.data * x.data))


@method
def atan(x: TensorLike) -> Tensor:
    """The angle in (-π/2, π/2) whose tangent is x. dx = g/(1 + x²)."""
    x = promote_to_float("atan", x)
    return record(array_module(x.data).arctan(x.data), _atan_backward, (x,), (x,))


def _atan_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad / (1 + x.data * x.data))


@method
def atan2(x: TensorLike, other: TensorLike) -> Tensor:
    """The angle in [-π, π] of the point (other, x) from the first axis, broadcasting.

    dx = g·other/(x² + other²), dother = -g·x/(x² + other²), both 0 where both are.

    Raises:
        DtypeError: two different float dtypes.
        ShapeError: the shapes do not broadcast.
    """
    x, other = operands("atan2", x, other)
    x, other = promote_to_float("atan2", x), promote_to_float("atan2", other)
    try:
        data = array_module(x.data).arctan2(x.data, other.data)
    except ValueError as error:
        raise broadcast_error("atan2", x, other) from error
    return record(data, _atan2_backward, (x, other), (x, other))


def _atan2_backward(node: Node, grad: Array) -> None:
    x, other = node.saved
    dx, dother = node.inputs
    square = x.data * x.data + other.data * other.data
    scaled = grad / (square + (square == 0))
    if dx is not None:
        accumulate(dx, unbroadcast(scaled * other.data, x.data.shape))
    if dother is not None:
        accumulate(dother, unbroadcast(-scaled * x.data, other.data.shape))


@method
@autocasts("high")
def sinh(x: TensorLike) -> Tensor:
    """Hyperbolic sine. dx = g·cosh x."""
    x = promote_to_float("sinh", x)
    return record(array_module(x.data).sinh(x.data), _sinh_backward, (x,), (x,))


def _sinh_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad * array_module(grad).cosh(x.data))


@method
@autocasts("high")
def cosh(x: TensorLike) -> Tensor:
    """Hyperbolic cosine. dx = g·sinh x."""
    x = promote_to_float("cosh", x)
    return record(array_module(x.data).cosh(x.data), _cosh_backward, (x,), (x,))


def _cosh_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad * array_module(grad).sinh(x.data))


@method
def asinh(x: TensorLike) -> Tensor:
    """The number whose hyperbolic sine is x. dx = g/√(x² + 1)."""
    x = promote_to_float("asinh", x)
    return record(array_module(x.data).arcsinh(x.data), _asinh_backward, (x,), (x,))


def _asinh_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad / array_module(grad).sqrt(x.data * x.data + 1))


@method
def acosh(x: TensorLike) -> Tensor:
    """The number >= 0 whose hyperbolic cosine is x; NaN below 1. dx = g/√(x² - 1)."""
    x = promote_to_float("acosh", x)
    return record(array_module(x.data).arccosh(x.data), _acosh_backward, (x,), (x,))


def _acosh_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad / array_module(grad).sqrt(x.data * x.data - 1))


@method
def atanh(x: TensorLike) -> Tensor:
    """The number whose hyperbolic tangent is x; NaN outside [-1, 1]. dx = g/(1 - x²)."""
    x = promote_to_float("atanh", x)
    return record(array_module(x.data).arctanh(x.data), _atanh_backward, (x,), (x,))


def _atanh_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], grad / (1 - x.data * x.data))


# -------------------------------------------------------------------------------------------- parts, and bad values


@method
def trunc(x: TensorLike) -> Tensor:
    """The integer part, towards zero, in the dtype of x. Its gradient is zero."""
    x = as_operand("trunc", x)
    if not is_float(x.data.dtype):
        return Tensor(x.data.copy())
    return record(array_module(x.data).trunc(x.data), _trunc_backward, (x,))


def _trunc_backward(node: Node, grad: Array) -> None:
    accumulate(node.inputs[0], array_module(grad).zeros_like(grad))


@method
def frac(x: TensorLike) -> Tensor:
    """What follows the point, x - trunc(x), of the sign of x. dx = g.

    Raises:
        DtypeError: an integer tensor.
    """
    x = as_operand("frac", x)
    check_float("frac", x)
    return sub(x, trunc(x))


@method
def nan_to_num(
    x: TensorLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """x with numbers in the place of NaN and the infinities. dx = g where x is finite, else 0.

    Args:
        posinf, neginf: None for the largest and the smallest number of the dtype.

    Raises:
        ArgumentError: one of them is no number.
    """
    x = as_operand("nan_to_num", x)
    if not is_float(x.data.dtype):
        return Tensor(x.data.copy())
    largest = _largest(x.data.dtype)
    xp, data = array_module(x.data), x.data
    for name, found, value in (
        ("nan", xp.isnan(data), nan),
        ("posinf", data == math.inf, largest if posinf is None else posinf),
        ("neginf", data == -math.inf, -largest if neginf is None else neginf),
    ):
        number = operands("nan_to_num", x, as_real("nan_to_num", name, value))[1]
        data = xp.where(found, number.data, data)
    return record(data, _nan_to_num_backward, (x,), (x,))


def _largest(dtype: np.dtype[Any]) -> float:
    return 2.0**128 - 2.0**120 if dtype.name == "bfloat16" else float(np.finfo(dtype).max)


def _nan_to_num_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], masked(grad, array_module(grad).isfinite(x.data)))


def xlogy(x: TensorLike, y: TensorLike) -> Tensor:
    """x·ln(y), and 0 where x is 0, unless y is NaN; broadcasting. dx = g·ln(y), 0 where x = 0 and y <= 0; dy = g·x/y.

    Raises:
        ShapeError: the shapes do not broadcast.
    """
    x, y = operands("xlogy", promote_to_float("xlogy", x), promote_to_float("xlogy", y))
    xp = array_module(x.data)
    try:
        with np.errstate(divide="ignore", invalid="ignore"):
            data = xp.where((x.data == 0) & ~xp.isnan(y.data), x.data.dtype.type(0), x.data * xp.log(y.data))
    except ValueError as error:
        raise broadcast_error("xlogy", x, y) from error
    return record(data, _xlogy_backward, (x, y), (x, y))


@np.errstate(divide="ignore", invalid="ignore")
def _xlogy_backward(node: Node, grad: Array) -> None:
    x, y = node.saved
    dx, dy = node.inputs
    if dx is not None:
        none = (x.data == 0) & (y.data <= 0)
        part = array_module(grad).where(none, grad.dtype.type(0), grad * array_module(grad).log(y.data))
        accumulate(dx, unbroadcast(part, x.data.shape))
    if dy is not None:
        accumulate(dy, unbroadcast(grad * x.data / y.data, y.data.shape))
