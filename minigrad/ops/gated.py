"""Activations that are x times a gate between 0 and 1: silu, gelu, mish, and glu, whose gate is another part of x."""

from __future__ import annotations

import math

import numpy as np

from minigrad.arguments import check_choice
from minigrad.autograd.tape import Node, accumulate, spare
from minigrad.backend.blocks import filled, in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.activation import activate, activation_gradient, is_activated
from minigrad.backend.order import in_order, room_like
from minigrad.backend.special import erf
from minigrad.errors import ShapeError
from minigrad.ops.assign import overwrite
from minigrad.ops.axes import normalize_axis
from minigrad.ops.elementwise import logistic
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, float_operand
from minigrad.tensor import Tensor, record

__all__ = ["gelu", "glu", "mish", "silu"]


@method
def silu(x: TensorLike, inplace: bool = False) -> Tensor:
    """x·sigmoid(x). dx = g·(s + y·(1 - s)) with s = sigmoid(x).

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("silu", silu, x)
    x = float_operand("silu", x)
    if is_activated(x.data):
        return record(activate("silu", x.data), _silu_backward, (x,), (x, None))
    gate = in_blocks(logistic, x.data)
    data = x.data * gate
    return record(data, _silu_backward, (x,), (gate, data), saves_output=True)


def _silu_backward(node: Node, grad: Array) -> None:
    gate, y = node.saved
    if y is None:  # a kernel ran, which takes x, and needs no more memory
        accumulate(node.inputs[0], activation_gradient("silu", grad, gate.data))
    else:
        accumulate(node.inputs[0], in_blocks(_silu_gradient, grad, gate, y))


def _silu_gradient(out: Array, grad: Array, gate: Array, y: Array) -> None:
    xp = array_module(grad)
    xp.subtract(1, gate, out=out)
    out *= y
    out += gate
    out *= grad


def mish(x: TensorLike, inplace: bool = False) -> Tensor:
    """x·tanh(softplus(x)) (Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", 2019).

    dx = g·(t + x·s·(1 - t²)) with t = tanh(softplus(x)) and s = sigmoid(x).

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("mish", mish, x)
    x = float_operand("mish", x)
    return record(in_order("multiply", x.data, in_blocks(_mish_gate, x.data)), _mish_backward, (x,), (x,))


def _mish_gate(out: Array, x: Array) -> None:
    """tanh(softplus(x)) = w/(w + 2) with w = e²ˣ + 2eˣ; it is 1 from 20 on."""
    xp = array_module(x)
    power = xp.exp(xp.minimum(x, filled(20.0, x)))
    xp.add(power, 2, out=out)
    out *= power
    power *= power + 2
    power += 2
    out /= power


def _mish_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_blocks(_mish_gradient, grad, x.data))


@np.errstate(invalid="ignore")  # of x·0 at infinity
def _mish_gradient(out: Array, grad: Array, x: Array) -> None:
    gate = array_module(x).empty_like(x)
    _mish_gate(gate, x)
    logistic(out, x)
    out *= x
    out *= 1 - gate * gate
    out += gate
    out *= grad


def glu(x: TensorLike, dim: int = -1) -> Tensor:
    """a·sigmoid(b), a and b the halves of x along an axis (Dauphin et al., "Gated Convolutional Networks", 2016).

    da = g·s, db = g·a·s·(1 - s) with s = sigmoid(b).

    Shapes:
        (A, 2·N, B) -> (A, N, B) for dim = 1

    Raises:
        DtypeError: an integer tensor.
        ShapeError: the axis is out of range, or of odd length; a tensor of no axes.
    """
    x = float_operand("glu", x)
    axis = normalize_axis("glu", dim, x.data.ndim)
    if not x.data.ndim or x.data.shape[axis] % 2:
        raise ShapeError(f"glu: expected an axis of even length, got axis {dim} of {x.shape}")
    a, b = _halves(x.data, axis)
    gate = in_blocks(logistic, b)
    return record(a * gate, _glu_backward, (x,), (x, gate, axis))


def _halves(x: Array, axis: int) -> tuple[Array, Array]:
    """The first and the second half of an axis, as views."""
    before, middle = (slice(None),) * axis, x.shape[axis] // 2
    return x[before + (slice(middle),)], x[before + (slice(middle, None),)]


def _glu_backward(node: Node, grad: Array) -> None:
    x, gate, axis = node.saved
    xp = array_module(grad)
    dx = xp.empty(x.data.shape, grad.dtype)
    da, db = _halves(dx, axis)
    xp.multiply(grad, gate, out=da)
    xp.subtract(1, gate, out=db)
    db *= da
    db *= _halves(x.data, axis)[0]
    accumulate(node.inputs[0], dx)


_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016
_INNER = 2 * math.sqrt(2 / math.pi)


@method
def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """x·Φ(x), Φ the distribution function of the standard normal; inf of inf.

    dx = g·(Φ(x) + x·φ(x)), φ its density.

    Args:
        approximate: "none", or "tanh" for Φ(x) ≈ (1 + tanh u)/2 = sigmoid(2u), u = √(2/π)·(x + 0.044715·x³), which
            needs one exponential.

    Raises:
        ArgumentError: another word for approximate.
        DtypeError: an integer tensor.
    """
    x = float_operand("gelu", x)
    check_choice("gelu", ("none", "tanh"), approximate=approximate)
    kernel, backward = (_normal_gate, _gelu_backward) if approximate == "none" else (_tanh_gate, _gelu_tanh_backward)
    if is_activated(x.data):
        return record(activate(_KERNELS[approximate], x.data), backward, (x,), (x, None))
    if approximate == "tanh" and x.requires_grad and x.data.__class__ is np.ndarray and not is_half(x.data.dtype):
        room = room_like(x.data)
        data = np.empty_like(x.data) if room is None else room
        return record(data, _slope_backward, (x,), (in_blocks(_tanh_slope, x.data, data),))
    gate = in_blocks(kernel, x.data)
    return record(x.data * gate, backward, (x,), (x, gate))


_KERNELS = {"none": "gelu", "tanh": "gelu_tanh"}


def _normal_gate(out: Array, x: Array) -> None:
    array_module(x).add(erf(x * math.sqrt(0.5)), 1, out=out)
    out *= 0.5


def _gelu_backward(node: Node, grad: Array) -> None:
    x, gate = node.saved
    if gate is None:
        accumulate(node.inputs[0], activation_gradient("gelu", grad, x.data))
    else:
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


@np.errstate(over="ignore", invalid="ignore")  # as in `_gelu_tanh_gradient`
def _tanh_slope(out: Array, x: Array, y: Array) -> None:
    """Write x·s into y, and its derivative s + x·s·(1 - s)·2u' into out, with s the gate."""
    np.multiply(x, x, out=out)
    out *= -_INNER * _CUBIC
    out -= _INNER
    gate = out * x
    np.exp(gate, out=gate)
    gate += 1
    np.divide(1, gate, out=gate)
    np.multiply(x, gate, out=y)
    out *= -3  # it is -(a + a·b·x²), and 2u' = a + 3·a·b·x²
    out -= 2 * _INNER
    out *= y
    out *= 1 - gate
    out += gate


def _slope_backward(node: Node, grad: Array) -> None:
    (slope,) = node.saved
    accumulate(node.inputs[0], np.multiply(grad, slope, out=spare(node, grad)))


def _gelu_tanh_backward(node: Node, grad: Array) -> None:
    x, gate = node.saved
    if gate is None:
        accumulate(node.inputs[0], activation_gradient("gelu_tanh", grad, x.data))
    else:
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
