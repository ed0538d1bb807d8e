"""Activations: relu and its smooth kin, softmax and log_softmax. tanh and sigmoid are in elementwise.py."""

from __future__ import annotations

import functools
import math

import numpy as np

from minigrad.arguments import as_real, check_choice
from minigrad.autograd import Node, accumulate
from minigrad.backend.blocks import filled, in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, widened
from minigrad.backend.special import erf
from minigrad.errors import ArgumentError
from minigrad.ops.axes import max_axes, normalize_axis, sum_axes
from minigrad.ops.elementwise import logistic
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, check_float, masked
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["elu", "gelu", "leaky_relu", "log_softmax", "relu", "silu", "softmax", "softplus"]


@method
def relu(x: TensorLike) -> Tensor:
    """max(x, 0). dx = g where x > 0 or is NaN, else 0."""
    x = as_operand("relu", x)
    data = in_blocks(_rectify, x.data)
    return record(data, _relu_backward, (x,), (data,), saves_output=True)


def _rectify(out: Array, x: Array) -> None:
    array_module(x).maximum(x, filled(0, x), out=out)


def _relu_backward(node: Node, grad: Array) -> None:
    (y,) = node.saved
    accumulate(node.inputs[0], masked(grad, y != 0))  # y is positive, 0 or NaN


@method
def leaky_relu(x: TensorLike, negative_slope: float = 0.01) -> Tensor:
    """x where x > 0, else negative_slope·x. dx = g where x > 0, else negative_slope·g.

    Raises:
        ArgumentError: negative_slope is no number.
        DtypeError: an integer tensor.
    """
    x = _float("leaky_relu", x)
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
def elu(x: TensorLike, alpha: float = 1.0) -> Tensor:
    """x where x > 0, else alpha·(eˣ - 1). dx = g where x > 0, else g·alpha·eˣ.

    Raises:
        ArgumentError: alpha is no number.
        DtypeError: an integer tensor.
    """
    x = _float("elu", x)
    alpha = as_real("elu", "alpha", alpha)
    data = in_blocks(functools.partial(_elu, alpha=alpha), x.data)
    return record(data, _elu_backward, (x,), (x, alpha))


def _elu(out: Array, x: Array, alpha: float) -> None:
    xp, zero = array_module(x), filled(0, x)
    xp.expm1(xp.minimum(x, zero), out=out)
    out *= alpha
    out += xp.maximum(x, zero)


def _elu_backward(node: Node, grad: Array) -> None:
    x, alpha = node.saved
    accumulate(node.inputs[0], in_blocks(functools.partial(_elu_gradient, alpha=alpha), grad, x.data))


def _elu_gradient(out: Array, grad: Array, x: Array, alpha: float) -> None:
    xp = array_module(x)
    xp.exp(xp.minimum(x, filled(0, x)), out=out)
    if alpha != 1:
        positive = x > 0
        masked(out * alpha, ~positive, out)
        out += positive
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
    x = _float("softplus", x)
    parameters = {
        "beta": as_real("softplus", "beta", beta),
        "threshold": as_real("softplus", "threshold", threshold),
    }
    if beta == 0:
        raise ArgumentError("softplus: expected beta other than 0, got 0")
    data = in_blocks(functools.partial(_softplus, **parameters), x.data)
    return record(data, _softplus_backward, (x,), (x, parameters))


def _softplus(out: Array, x: Array, beta: float, threshold: float) -> None:
    xp, zero = array_module(x), filled(0, x)
    scaled = x * beta
    curved = ~(scaled > threshold)
    xp.log1p(xp.exp(-xp.abs(scaled)), out=out)
    out *= curved
    out += xp.maximum(scaled, zero)
    if threshold < 0:
        out += masked(xp.minimum(scaled, zero), ~curved)
    out /= beta


def _softplus_backward(node: Node, grad: Array) -> None:
    x, parameters = node.saved
    accumulate(node.inputs[0], in_blocks(functools.partial(_softplus_gradient, **parameters), grad, x.data))


def _softplus_gradient(out: Array, grad: Array, x: Array, beta: float, threshold: float) -> None:
    scaled = x * beta
    logistic(out, scaled)
    array_module(x).maximum(out, scaled > threshold, out=out)
    out *= grad


# ---------------------------------------------------------------------------- gated: x times a gate between 0 and 1


@method
def silu(x: TensorLike) -> Tensor:
    """x·sigmoid(x). dx = g·(s + y·(1 - s)) with s = sigmoid(x).

    Raises:
        DtypeError: an integer tensor.
    """
    x = _float("silu", x)
    gate = in_blocks(logistic, x.data)
    data = x.data * gate
    return record(data, _silu_backward, (x,), (gate, data), saves_output=True)


def _silu_backward(node: Node, grad: Array) -> None:
    gate, y = node.saved
    accumulate(node.inputs[0], in_blocks(_silu_gradient, grad, gate, y))


def _silu_gradient(out: Array, grad: Array, gate: Array, y: Array) -> None:
    xp = array_module(grad)
    xp.subtract(1, gate, out=out)
    out *= y
    out += gate
    out *= grad


_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016
_INNER = 2 * math.sqrt(2 / math.pi)


@method
def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """x·Φ(x), Φ the distribution function of the standard normal.

    dx = g·(Φ(x) + x·φ(x)), φ its density.

    Args:
        approximate: "none", or "tanh" for Φ(x) ≈ (1 + tanh u)/2 = sigmoid(2u), u = √(2/π)·(x + 0.044715·x³), which
            needs one exponential.

    Raises:
        ArgumentError: another word for approximate.
        DtypeError: an integer tensor.
    """
    x = _float("gelu", x)
    check_choice("gelu", ("none", "tanh"), approximate=approximate)
    kernel, backward = (_normal_gate, _gelu_backward) if approximate == "none" else (_tanh_gate, _gelu_tanh_backward)
    gate = in_blocks(kernel, x.data)
    return record(x.data * gate, backward, (x,), (x, gate))


def _normal_gate(out: Array, x: Array) -> None:
    array_module(x).add(erf(x * math.sqrt(0.5)), 1, out=out)
    out *= 0.5


def _gelu_backward(node: Node, grad: Array) -> None:
    x, gate = node.saved
    accumulate(node.inputs[0], in_blocks(_gelu_gradient, grad, x.data, gate))


@np.errstate(over="ignore", invalid="ignore")  # of x² and of x·φ(x) far from 0
def _gelu_gradient(out: Array, grad: Array, x: Array, gate: Array) -> None:
    xp = array_module(x)
    xp.multiply(x, x, out=out)
    out *= -0.5
    xp.exp(out, out=out)
    out *= 1 / math.sqrt(2 * math.pi)
    out *= x
    out += gate
    out *= grad


@np.errstate(over="ignore")  # of x² far from 0
def _tanh_gate(out: Array, x: Array) -> None:
    array_module(x).multiply(x, x, out=out)
    out *= _INNER * _CUBIC
    out += _INNER
    out *= x
    logistic(out, out)


def _gelu_tanh_backward(node: Node, grad: Array) -> None:
    x, gate = node.saved
    accumulate(node.inputs[0], in_blocks(_gelu_tanh_gradient, grad, x.data, gate))


@np.errstate(over="ignore", invalid="ignore")  # of x² far from 0
def _gelu_tanh_gradient(out: Array, grad: Array, x: Array, gate: Array) -> None:
    """g·(s + s·(1 - s)·x·2u') with s the gate."""
    xp = array_module(x)
    slope = x * x
    slope *= 3 * _INNER * _CUBIC
    slope += _INNER
    slope *= x
    xp.subtract(1, gate, out=out)
    out *= slope
    out += 1
    out *= gate
    out *= grad


# -------------------------------------------------------------------------------------------------------- softmax


@method
@autocasts("high")
def softmax(x: TensorLike, dim: int) -> Tensor:
    """e^x / Σ e^x along an axis, without overflow. dx = y·(g - Σ g·y).

    Raises:
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range.
    """
    x = _float("softmax", x)
    axis = normalize_axis("softmax", dim, x.data.ndim)
    y = _less_max(x.data, axis)
    array_module(y).exp(y, out=y)
    y /= sum_axes(y, (axis,), keepdim=True)
    data = y.astype(x.data.dtype, copy=False).reshape(x.data.shape)
    return record(data, _softmax_backward, (x,), (data, axis), saves_output=True)


def _softmax_backward(node: Node, grad: Array) -> None:
    data, axis = node.saved
    y, g = _with_axis(widened(data)), _with_axis(widened(grad))
    dx = g * y
    dx -= y * sum_axes(dx, (axis,), keepdim=True)
    accumulate(node.inputs[0], dx.astype(grad.dtype, copy=False).reshape(grad.shape))


@method
@autocasts("high")
def log_softmax(x: TensorLike, dim: int) -> Tensor:
    """x - ln Σ e^x along an axis, without overflow. dx = g - e^y·Σ g.

    Raises:
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range.
    """
    x = _float("log_softmax", x)
    axis = normalize_axis("log_softmax", dim, x.data.ndim)
    y = _less_max(x.data, axis)
    xp = array_module(y)
    if y.size:
        y -= xp.log(sum_axes(xp.exp(y), (axis,), keepdim=True))
    data = y.astype(x.data.dtype, copy=False).reshape(x.data.shape)
    return record(data, _log_softmax_backward, (x,), (data, axis), saves_output=True)


def _log_softmax_backward(node: Node, grad: Array) -> None:
    data, axis = node.saved
    g = _with_axis(widened(grad))
    dx = array_module(grad).exp(_with_axis(widened(data)))
    dx *= sum_axes(g, (axis,), keepdim=True)
    dx = g - dx
    accumulate(node.inputs[0], dx.astype(grad.dtype, copy=False).reshape(grad.shape))


def _less_max(x: Array, axis: int) -> Array:
    """x less its largest element along an axis, as a new array with at least one axis, half precision in float32."""
    wide = _with_axis(widened(x))
    return wide - max_axes(wide, (axis,), keepdim=True) if x.size else wide.copy()


def _with_axis(x: Array) -> Array:
    return x if x.ndim else x.reshape(1)


def _float(who: str, x: TensorLike) -> Tensor:
    tensor = as_operand(who, x)
    check_float(who, tensor)
    return tensor
