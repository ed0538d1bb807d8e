"""Activations: relu and its smooth kin, softmax and log_softmax.

tanh and sigmoid are in elementwise.py, those of straight lines in piecewise.py, x times a gate in gated.py. At NaN
the gradient of a part with a slope of its own is that slope, as in PyTorch's scalar code, but not in all of its vector
code.
"""

from __future__ import annotations

import functools

import numpy as np

from minigrad.arguments import as_real
from minigrad.autograd.tape import Node, accumulate, spare
from minigrad.backend.blocks import filled, in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, DtypeLike, widened
from minigrad.backend.fused.activation import activate, activation_gradient, is_activated
from minigrad.backend.fused.softmax import softmax_gradient, softmax_rows
from minigrad.errors import ArgumentError
from minigrad.ops.assign import overwrite
from minigrad.ops.axes import max_axes, normalize_axis, sum_axes
from minigrad.ops.elementwise import logistic, number_operand
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, float_operand, in_dtype, masked, promote_to_float
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = [
    "celu", "elu", "leaky_relu", "log_softmax", "logsigmoid", "relu", "selu", "softmax", "softmin", "softplus",
    "softsign", "tanhshrink",
]


@method
def relu(x: TensorLike, inplace: bool = False) -> Tensor:
    """max(x, 0). dx = g where x > 0 or is NaN, else 0.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        DtypeError: a bool tensor.
    """
    if inplace:
        return overwrite("relu", relu, x)
    x = as_operand("relu", x)
    if x.data.dtype.kind == "b":
        number_operand("relu", x)  # refuses it
    data = activate("relu", x.data) if is_activated(x.data) else in_blocks(_rectify, x.data)
    return record(data, _relu_backward, (x,), (data,), saves_output=True)


def _rectify(out: Array, x: Array) -> None:
    array_module(x).maximum(x, filled(0, x), out=out)


def _relu_backward(node: Node, grad: Array) -> None:
    (y,) = node.saved  # positive, 0 or NaN
    fused = is_activated(grad)
    dx = activation_gradient("relu", grad, y) if fused else masked(grad, y != 0, spare(node, grad))
    accumulate(node.inputs[0], dx)


@method
def leaky_relu(x: TensorLike, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, else negative_slope·x. dx = g where x > 0, else negative_slope·g.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        ArgumentError: negative_slope is no number.
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("leaky_relu", leaky_relu, x, negative_slope)
    x = float_operand("leaky_relu", x)
    slope = as_real("leaky_relu", "negative_slope", negative_slope)
    data = in_blocks(functools.partial(_leak, slope=slope), x.data)
    return record(data, _leaky_relu_backward, (x,), (x, slope))


def _leak(out: Array, x: Array, slope: float) -> None:
    xp = array_module(x)
    pick = xp.maximum if slope <= 1 else xp.minimum  # the line that lies above, or below, on both sides of 0
    pick(x, x * slope, out=out)


def _leaky_relu_backward(node: Node, grad: Array) -> None:
    x, slope = node.saved
    accumulate(node.inputs[0], in_blocks(functools.partial(_leak_gradient, slope=slope), grad, x.data))


def _leak_gradient(out: Array, grad: Array, x: Array, slope: float) -> None:
    positive = x > 0
    leaked = masked(grad, ~positive)
    leaked *= slope
    masked(grad, positive, out)
    out += leaked


@method
def elu(x: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha·(eˣ - 1). dx = g where x > 0 or is NaN, else g·alpha·eˣ.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        ArgumentError: alpha is no number.
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("elu", elu, x, alpha)
    return _exponential("elu", x, as_real("elu", "alpha", alpha))


def celu(x: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, else alpha·(e^(x/alpha) - 1). dx = g where x > 0 or is NaN, else g·e^(x/alpha).

    Barron, "Continuously Differentiable Exponential Linear Units", 2017.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        ArgumentError: alpha is 0, or no number.
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("celu", celu, x, alpha)
    alpha = as_real("celu", "alpha", alpha)
    if alpha == 0:
        raise ArgumentError("celu: expected alpha other than 0, got 0")
    return _exponential("celu", x, alpha, rate=1 / alpha)


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def selu(x: TensorLike, inplace: bool = False) -> Tensor:
    """λ·x where x > 0, else λ·α·(eˣ - 1). dx = g·λ where x > 0 or is NaN, else g·λ·α·eˣ.

    α = 1.67 and λ = 1.05 keep mean 0 and variance 1: Klambauer et al., "Self-Normalizing Neural Networks", 2017.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("selu", selu, x)
    return _exponential("selu", x, _SELU_SCALE * _SELU_ALPHA, slope=_SELU_SCALE)


def _exponential(who: str, x: TensorLike, height: float, slope: float = 1.0, rate: float = 1.0) -> Tensor:
    """slope·x where x > 0, else height·(e^(rate·x) - 1)."""
    x = float_operand(who, x)
    parameters = {"height": height, "slope": slope, "rate": rate}
    data = in_blocks(functools.partial(_rise, **parameters), x.data)
    return record(data, _exponential_backward, (x,), (x, parameters))


def _rise(out: Array, x: Array, height: float, slope: float, rate: float) -> None:
    xp, zero = array_module(x), filled(0, x)
    below, above = xp.minimum(x, zero), xp.maximum(x, zero)
    if rate != 1:
        below *= rate
    if slope != 1:
        above *= slope
    xp.expm1(below, out=out)
    out *= height
    out += above


def _exponential_backward(node: Node, grad: Array) -> None:
    x, parameters = node.saved
    accumulate(node.inputs[0], in_blocks(functools.partial(_rise_gradient, **parameters), grad, x.data))


def _rise_gradient(out: Array, grad: Array, x: Array, height: float, slope: float, rate: float) -> None:
    xp = array_module(x)
    below = xp.fmin(x, filled(0, x))  # 0 for NaN
    if rate != 1:
        below *= rate
    xp.exp(below, out=out)
    if height * rate != 1 or slope != 1:
        falls = x <= 0
        out *= height * rate
        masked(out, falls, out)
        out += ~falls if slope == 1 else ~falls * out.dtype.type(slope)
    out *= grad


@method
@autocasts("high")
def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """ln(1 + e^(beta·x)) / beta, and x itself where beta·x > threshold. dx = g·sigmoid(beta·x), or g there.

    Args:
        threshold: It may be negative.

    Raises:
        ArgumentError: beta is 0, or an argument is no number.
        DtypeError: an integer tensor.
    """
    x = float_operand("softplus", x)
    parameters = {
        "beta": as_real("softplus", "beta", beta),
        "threshold": as_real("softplus", "threshold", threshold),
    }
    if beta == 0:
        raise ArgumentError("softplus: expected beta other than 0, got 0")
    data = in_blocks(functools.partial(_softplus, **parameters), x.data)
    return record(data, _softplus_backward, (x,), (x, parameters))


@np.errstate(over="ignore")  # of beta·x, beyond the threshold
def _softplus(out: Array, x: Array, beta: float, threshold: float) -> None:
    xp, zero = array_module(x), filled(0, x)
    above, below = (xp.maximum, xp.minimum) if beta > 0 else (xp.minimum, xp.maximum)  # where beta·x is, of 0
    scaled = x * beta
    curved = ~(scaled > threshold)
    xp.log1p(xp.exp(-xp.abs(scaled)), out=out)
    out *= curved
    out /= beta
    out += above(x, zero)
    if threshold < 0:
        out += masked(below(x, zero), ~curved)


def _softplus_backward(node: Node, grad: Array) -> None:
    x, parameters = node.saved
    accumulate(node.inputs[0], in_blocks(functools.partial(_softplus_gradient, **parameters), grad, x.data))


@np.errstate(over="ignore")  # of beta·x
def _softplus_gradient(out: Array, grad: Array, x: Array, beta: float, threshold: float) -> None:
    scaled = x * beta
    logistic(out, scaled)
    array_module(x).maximum(out, scaled > threshold, out=out)
    out *= grad


def logsigmoid(x: TensorLike) -> Tensor:
    """ln sigmoid(x), without overflow. dx = g·sigmoid(-x).

    Raises:
        DtypeError: an integer tensor.
    """
    x = float_operand("logsigmoid", x)
    return record(in_blocks(_log_logistic, x.data), _logsigmoid_backward, (x,), (x,))


def _log_logistic(out: Array, x: Array) -> None:
    xp = array_module(x)
    xp.log1p(xp.exp(-xp.abs(x)), out=out)
    xp.subtract(xp.minimum(x, filled(0, x)), out, out=out)


def _logsigmoid_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_blocks(_logsigmoid_gradient, grad, x.data))


def _logsigmoid_gradient(out: Array, grad: Array, x: Array) -> None:
    logistic(out, -x)
    out *= grad


def softsign(x: TensorLike) -> Tensor:
    """x / (1 + |x|). dx = g / (1 + |x|)², also at infinity, where PyTorch's is NaN."""
    x = promote_to_float("softsign", x)
    return record(in_blocks(_softsign, x.data), _softsign_backward, (x,), (x,))


def _softsign(out: Array, x: Array) -> None:
    xp = array_module(x)
    xp.abs(x, out=out)
    out += 1
    xp.divide(x, out, out=out)


def _softsign_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_blocks(_softsign_gradient, grad, x.data))


def _softsign_gradient(out: Array, grad: Array, x: Array) -> None:
    xp = array_module(x)
    size = xp.abs(x)
    size += 1
    xp.divide(grad, size, out=out)
    out /= size


def tanhshrink(x: TensorLike) -> Tensor:
    """x - tanh(x). dx = g·tanh²(x)."""
    x = promote_to_float("tanhshrink", x)
    return record(in_blocks(_tanhshrink, x.data), _tanhshrink_backward, (x,), (x,))


def _tanhshrink(out: Array, x: Array) -> None:
    xp = array_module(x)
    xp.tanh(x, out=out)
    xp.subtract(x, out, out=out)


def _tanhshrink_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_blocks(_tanhshrink_gradient, grad, x.data))


def _tanhshrink_gradient(out: Array, grad: Array, x: Array) -> None:
    array_module(x).tanh(x, out=out)
    out *= out
    out *= grad


# -------------------------------------------------------------------------------------------------------- softmax


@method
@autocasts("high")
def softmax(x: TensorLike, dim: int, dtype: DtypeLike = None) -> Tensor:
    """e^x / Σ e^x along an axis, without overflow. dx = y·(g - Σ g·y).

    Args:
        dtype: Convert x to it first.

    Raises:
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range.
    """
    x = float_operand("softmax", in_dtype("softmax", x, dtype))
    axis = normalize_axis("softmax", dim, x.data.ndim)
    if _by_kernel(x.data, axis):
        data = softmax_rows(x.data)
        return record(data, _softmax_backward, (x,), (data, axis), saves_output=True)
    y = _less_max(x.data, axis)
    array_module(y).exp(y, out=y)
    y /= sum_axes(y, (axis,), keepdim=True)
    data = y.astype(x.data.dtype, copy=False).reshape(x.data.shape)
    return record(data, _softmax_backward, (x,), (data, axis), saves_output=True)


def _softmax_backward(node: Node, grad: Array) -> None:
    data, axis = node.saved
    if _by_kernel(grad, axis):
        accumulate(node.inputs[0], softmax_gradient(grad, data))
        return
    y, g = _with_axis(widened(data)), _with_axis(widened(grad))
    dx = g * y
    dx -= y * sum_axes(dx, (axis,), keepdim=True)
    accumulate(node.inputs[0], dx.astype(grad.dtype, copy=False).reshape(grad.shape))


def softmin(x: TensorLike, dim: int, dtype: DtypeLike = None) -> Tensor:
    """`softmax` of -x.

    Args:
        dtype: Convert x to it first.

    Raises:
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range.
    """
    return softmax(-float_operand("softmin", in_dtype("softmin", x, dtype)), dim)


@method
@autocasts("high")
def log_softmax(x: TensorLike, dim: int, dtype: DtypeLike = None) -> Tensor:
    """x - ln Σ e^x along an axis, without overflow. dx = g - e^y·Σ g.

    Args:
        dtype: Convert x to it first.

    Raises:
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range.
    """
    x = float_operand("log_softmax", in_dtype("log_softmax", x, dtype))
    axis = normalize_axis("log_softmax", dim, x.data.ndim)
    if _by_kernel(x.data, axis):
        data = softmax_rows(x.data, logs=True)
        return record(data, _log_softmax_backward, (x,), (data, axis), saves_output=True)
    y = _less_max(x.data, axis)
    xp = array_module(y)
    if y.size:
        y -= xp.log(sum_axes(xp.exp(y), (axis,), keepdim=True))
    data = y.astype(x.data.dtype, copy=False).reshape(x.data.shape)
    return record(data, _log_softmax_backward, (x,), (data, axis), saves_output=True)


def _log_softmax_backward(node: Node, grad: Array) -> None:
    data, axis = node.saved
    if _by_kernel(grad, axis):
        accumulate(node.inputs[0], softmax_gradient(grad, data, logs=True))
        return
    g = _with_axis(widened(grad))
    dx = array_module(grad).exp(_with_axis(widened(data)))
    dx *= sum_axes(g, (axis,), keepdim=True)
    dx = g - dx
    accumulate(node.inputs[0], dx.astype(grad.dtype, copy=False).reshape(grad.shape))


def _by_kernel(x: Array, axis: int) -> bool:
    """Whether a kernel takes the softmax of an array along an axis: the last one, in the memory of a GPU."""
    return is_activated(x) and 0 <= axis == x.ndim - 1


def _less_max(x: Array, axis: int) -> Array:
    """x less its largest element along an axis, as a new array with at least one axis, half precision in float32."""
    wide = _with_axis(widened(x))
    return wide - max_axes(wide, (axis,), keepdim=True) if x.size else wide.copy()


def _with_axis(x: Array) -> Array:
    return x if x.ndim else x.reshape(1)
