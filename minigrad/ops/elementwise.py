"""Functions of one element: exponentials, roots, trigonometry, rounding. Activations of networks are in activation.py.

The transcendental ones take integers as float32.
"""

from __future__ import annotations

import builtins
import functools
import math

import numpy as np

from minigrad.arguments import as_integer, is_number
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.blocks import filled, in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float, python_scalar, widened
from minigrad.backend.fused.activation import activate, activation_gradient, is_activated
from minigrad.backend.order import in_order
from minigrad.backend.special import erf as erf_array, sign as sign_array
from minigrad.errors import ArgumentError, DtypeError
from minigrad.ops.arithmetic import broadcast_error
from minigrad.ops.axes import unbroadcast
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand, float_operand, masked, operands, promote_to_float
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = [
    "abs", "ceil", "clamp", "clip", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "reciprocal", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh",
]


@method
@autocasts("high")
def exp(x: TensorLike) -> Tensor:
    """e to the power x. dx = g·eˣ."""
    x = promote_to_float("exp", x)
    data = in_order("exp", x.data)
    return record(data, _exp_backward, (x,), (data,), saves_output=True)


def _exp_backward(node: Node, grad: Array) -> None:
    (power,) = node.saved
    accumulate(node.inputs[0], in_order("multiply", grad, power))


@method
@autocasts("high")
def expm1(x: TensorLike) -> Tensor:
    """eˣ - 1, accurate near 0. dx = g·eˣ."""
    x = promote_to_float("expm1", x)
    data = in_order("expm1", x.data)
    return record(data, _expm1_backward, (x,), (data,), saves_output=True)


def _expm1_backward(node: Node, grad: Array) -> None:
    (power_less_1,) = node.saved
    accumulate(node.inputs[0], in_order("multiply", grad, power_less_1 + 1))


@method
@autocasts("high")
def log(x: TensorLike) -> Tensor:
    """Natural logarithm. dx = g/x."""
    x = promote_to_float("log", x)
    return record(in_order("log", x.data), _log_backward, (x,), (x,))


def _log_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_order("divide", grad, x.data))


@method
@autocasts("high")
def log1p(x: TensorLike) -> Tensor:
    """ln(1 + x), accurate near 0. dx = g/(1 + x)."""
    x = promote_to_float("log1p", x)
    return record(in_order("log1p", x.data), _log1p_backward, (x,), (x,))


def _log1p_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_order("divide", grad, x.data + 1))


@method
def sqrt(x: TensorLike) -> Tensor:
    """Square root. dx = g / (2·√x)."""
    x = promote_to_float("sqrt", x)
    data = in_order("sqrt", x.data)
    return record(data, _sqrt_backward, (x,), (data,), saves_output=True)


def _sqrt_backward(node: Node, grad: Array) -> None:
    (root,) = node.saved
    accumulate(node.inputs[0], in_order("divide", grad, root + root))


@method
@autocasts("high")
def rsqrt(x: TensorLike) -> Tensor:
    """1/√x. dx = -g·(1/√x)³ / 2."""
    x = promote_to_float("rsqrt", x)
    data = 1 / in_order("sqrt", x.data)
    return record(data, _rsqrt_backward, (x,), (data,), saves_output=True)


def _rsqrt_backward(node: Node, grad: Array) -> None:
    (inverse,) = node.saved
    dx = inverse * inverse
    dx *= inverse
    dx *= grad
    dx /= -2
    accumulate(node.inputs[0], dx)


@method
@autocasts("high")
def reciprocal(x: TensorLike) -> Tensor:
    """1/x. dx = -g/x²."""
    x = promote_to_float("reciprocal", x)
    data = 1 / x.data
    return record(data, _reciprocal_backward, (x,), (data,), saves_output=True)


def _reciprocal_backward(node: Node, grad: Array) -> None:
    (inverse,) = node.saved
    dx = -grad
    dx *= inverse
    dx *= inverse
    accumulate(node.inputs[0], dx)


@method
def square(x: TensorLike) -> Tensor:
    """x·x; integers stay integers, and bools become int64. dx = 2·g·x."""
    x = as_operand("square", x)
    data = x.data * x.data
    return record(data.astype(np.int64) if data.dtype.kind == "b" else data, _square_backward, (x,), (x,))


def _square_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    half = grad * x.data
    accumulate(node.inputs[0], half + half)


@method
def sin(x: TensorLike) -> Tensor:
    """Sine of radians. dx = g·cos x."""
    x = promote_to_float("sin", x)
    return record(in_order("sin", x.data), _sin_backward, (x,), (x,))


def _sin_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_order("multiply", grad, array_module(grad).cos(x.data)))


@method
def cos(x: TensorLike) -> Tensor:
    """Cosine of radians. dx = -g·sin x."""
    x = promote_to_float("cos", x)
    return record(in_order("cos", x.data), _cos_backward, (x,), (x,))


def _cos_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], -grad * array_module(grad).sin(x.data))


@method
def tanh(x: TensorLike) -> Tensor:
    """Hyperbolic tangent. dx = g·(1 - tanh² x)."""
    x = promote_to_float("tanh", x)
    data = activate("tanh", x.data) if is_activated(x.data) else np.tanh(x.data)
    return record(data, _tanh_backward, (x,), (data,), saves_output=True)


def _tanh_backward(node: Node, grad: Array) -> None:
    (y,) = node.saved
    if is_activated(grad):
        accumulate(node.inputs[0], activation_gradient("tanh", grad, y))
        return
    dx = y * y
    dx = 1 - dx
    dx *= grad
    accumulate(node.inputs[0], dx)


@method
def sigmoid(x: TensorLike) -> Tensor:
    """1 / (1 + e⁻ˣ), without overflow for any x. dx = g·y·(1 - y)."""
    x = promote_to_float("sigmoid", x)
    data = activate("sigmoid", x.data) if is_activated(x.data) else in_blocks(logistic, x.data)
    return record(data, _sigmoid_backward, (x,), (data,), saves_output=True)


@np.errstate(over="ignore")  # e^-x may become infinite: 1/infinity is the 0 that it should be
def logistic(out: Array, x: Array) -> None:
    """Write the sigmoid of x into out, which may be x."""
    xp = array_module(x)
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    out += 1
    xp.divide(1, out, out=out)


def _sigmoid_backward(node: Node, grad: Array) -> None:
    (y,) = node.saved
    if is_activated(grad):
        accumulate(node.inputs[0], activation_gradient("sigmoid", grad, y))
        return
    dx = 1 - y
    dx *= y
    dx *= grad
    accumulate(node.inputs[0], dx)


@method
def erf(x: TensorLike) -> Tensor:
    """The error function, 2/√π times the integral of exp(-t²) from 0 to x. dx = g·2/√π·exp(-x²)."""
    x = promote_to_float("erf", x)
    return record(erf_array(x.data), _erf_backward, (x,), (x,))


def _erf_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_blocks(_erf_gradient, grad, x.data))


def _erf_gradient(out: Array, grad: Array, x: Array) -> None:
    xp = array_module(x)
    xp.multiply(x, x, out=out)
    xp.negative(out, out=out)
    xp.exp(out, out=out)
    out *= 2 / math.sqrt(math.pi)
    out *= grad


@method
@method_as("__abs__")
def abs(x: TensorLike) -> Tensor:
    """Magnitude; integers stay integers. dx = g·sign(x), 0 at 0 and at NaN."""
    x = number_operand("abs", x)
    return record(in_order("abs", x.data), _abs_backward, (x,), (x,))


def _abs_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    dx = sign_array(x.data)
    dx *= grad
    accumulate(node.inputs[0], dx)


@method
def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1, in the dtype of x; 0 of NaN. A bool stays what it is. Its gradient is zero."""
    x = as_operand("sign", x)
    return record(x.data.copy() if x.data.dtype.kind == "b" else sign_array(x.data), _flat_backward, (x,))


@method
def floor(x: TensorLike) -> Tensor:
    """The largest integer that is not above x, in the dtype of x. Its gradient is zero."""
    return _rounded("floor", "floor", x)


@method
def ceil(x: TensorLike) -> Tensor:
    """The smallest integer that is not below x, in the dtype of x. Its gradient is zero."""
    return _rounded("ceil", "ceil", x)


@method
def round(x: TensorLike, *, decimals: int = 0) -> Tensor:
    """The nearest number with so many decimals, halves to the even one, in the dtype of x. Its gradient is zero.

    Args:
        decimals: Below 0 it rounds to tens, hundreds, ...

    Raises:
        ArgumentError: decimals is no integer.
        DtypeError: decimals other than 0 for an integer tensor.
    """
    digits = as_integer("round", "decimals", decimals)
    if digits == 0:
        return _rounded("round", "rint", x)
    x = float_operand("round", x)
    scale = 10.0 ** builtins.abs(digits)
    wide = widened(x.data)
    data = array_module(wide).rint(wide * scale if digits > 0 else wide / scale)
    data = data / scale if digits > 0 else data * scale
    return record(data.astype(x.data.dtype, copy=False), _flat_backward, (x,))


def _rounded(who: str, function: str, x: TensorLike) -> Tensor:
    x = number_operand(who, x)
    if not is_float(x.data.dtype):
        return Tensor(x.data.copy())
    return record(getattr(array_module(x.data), function)(x.data), _flat_backward, (x,))


def _flat_backward(node: Node, grad: Array) -> None:
    """The gradient of a step function."""
    accumulate(node.inputs[0], array_module(grad).zeros_like(grad))


def number_operand(who: str, x: TensorLike) -> Tensor:
    """x as a tensor of numbers.

    Raises:
        DtypeError: a bool tensor.
    """
    tensor = as_operand(who, x)
    if tensor.data.dtype.kind == "b":
        raise DtypeError(f"{who}: expected numbers, got bool {tensor.shape}: convert it, for example with .float()")
    return tensor


@method
@method_as("clip")
def clamp(x: TensorLike, min: TensorLike = None, max: TensorLike = None) -> Tensor:
    """x cut to [min, max]; max wins where min is larger. dx = g where min <= x <= max, else 0.

    A bound that is a tensor, broadcasting, gets g where it is the result and x is beyond it.

    Raises:
        ArgumentError: neither bound was given.
        DtypeError: a bound that is neither a number nor a tensor.
        ShapeError: the shapes do not broadcast.
    """
    if min is None and max is None:
        raise ArgumentError("clamp: expected min or max, got neither")
    x = as_operand("clamp", x)
    if not all(bound is None or is_number(bound) for bound in (min, max)):
        return _clamp_between(x, min, max)
    for bound in (min, max):
        if bound is not None:
            x, _ = operands("clamp", x, bound)  # an integer tensor with a fractional bound becomes float32
    low, high = (None if bound is None else python_scalar(bound) for bound in (min, max))
    data = in_blocks(functools.partial(_clamp, low=low, high=high), x.data)
    return record(data, _clamp_backward, (x,), (x, low, high))


clip = clamp


def _clamp(out: Array, x: Array, low: float | None, high: float | None) -> None:
    xp = array_module(x)
    if low is not None:
        x = xp.maximum(x, filled(low, x), out=out)
    if high is not None:
        xp.minimum(x, filled(high, x), out=out)


def _clamp_backward(node: Node, grad: Array) -> None:
    x, low, high = node.saved
    inside = True if low is None else x.data >= low
    inside = inside if high is None else inside & (x.data <= high)
    accumulate(node.inputs[0], masked(grad, inside))


def _clamp_between(x: Tensor, min: TensorLike, max: TensorLike) -> Tensor:
    """x between bounds one of which is a tensor."""
    bounds = [bound for bound in (min, max) if bound is not None]
    for bound in bounds:
        x, _ = operands("clamp", x, bound)
    low, high = (None if bound is None else operands("clamp", x, bound)[1] for bound in (min, max))
    xp, given = array_module(x.data), [x, *(bound for bound in (low, high) if bound is not None)]
    try:
        data = x.data if low is None else xp.maximum(x.data, low.data)
        data = data if high is None else xp.minimum(data, high.data)
    except ValueError as error:
        raise broadcast_error("clamp", *given) from error
    return record(data, _clamp_between_backward, tuple(given), (x, low, high))


def _clamp_between_backward(node: Node, grad: Array) -> None:
    x, low, high = node.saved
    below = False if low is None else x.data < low.data
    above = False if high is None else x.data > high.data
    if low is not None and high is not None:
        crossed = high.data < low.data
        below, above = below & (low.data < high.data), above | crossed
        inside = (x.data >= low.data) & (x.data <= high.data)
    else:
        inside = x.data >= low.data if high is None else x.data <= high.data
    chosen = [inside, *(part for part, bound in ((below, low), (above, high)) if bound is not None)]
    for edge, mask, operand in zip(node.inputs, chosen, (x, *(bound for bound in (low, high) if bound is not None))):
        if edge is not None:
            accumulate(edge, unbroadcast(masked(grad, mask), operand.data.shape))
