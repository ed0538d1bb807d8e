"""Activations made of straight lines, and x times such a one: hardtanh to prelu. relu and leaky_relu: activation.py."""

from __future__ import annotations

import functools

from minigrad.arguments import as_real
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.blocks import filled, in_blocks
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float, widened
from minigrad.errors import ArgumentError, ShapeError
from minigrad.ops.assign import overwrite
from minigrad.ops.elementwise import clamp
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, float_operand, masked, operands
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["hardshrink", "hardsigmoid", "hardswish", "hardtanh", "prelu", "relu6", "softshrink", "threshold"]


def hardtanh(x: TensorLike, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """x cut to [min_val, max_val], which lose their fractions for integers. dx = g between them and at NaN, else 0.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        ArgumentError: min_val above max_val, or one that is no number.
    """
    if inplace:
        return overwrite("hardtanh", hardtanh, x, min_val, max_val)
    low, high = as_real("hardtanh", "min_val", min_val), as_real("hardtanh", "max_val", max_val)
    if low > high:
        raise ArgumentError(f"hardtanh: expected min_val <= max_val, got {min_val} and {max_val}")
    return _bounded("hardtanh", x, low, high)


def relu6(x: TensorLike, inplace: bool = False) -> Tensor:
    """x cut to [0, 6]; integers stay integers. dx = g between 0 and 6 and at NaN, else 0.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.
    """
    if inplace:
        return overwrite("relu6", relu6, x)
    return _bounded("relu6", x, 0.0, 6.0)


def _bounded(who: str, x: TensorLike, low: float, high: float) -> Tensor:
    x = as_operand(who, x)
    if not is_float(x.data.dtype):
        return clamp(x, int(low), int(high))
    data = in_blocks(functools.partial(_cut, low=low, high=high), x.data)
    return record(data, _bounded_backward, (x,), (x, low, high))


def _cut(out: Array, x: Array, low: float, high: float) -> None:
    xp = array_module(x)
    xp.maximum(x, filled(low, x), out=out)
    xp.minimum(out, filled(high, x), out=out)


def _bounded_backward(node: Node, grad: Array) -> None:
    x, low, high = node.saved
    accumulate(node.inputs[0], masked(grad, ~((x.data <= low) | (x.data >= high))))


def hardsigmoid(x: TensorLike, inplace: bool = False) -> Tensor:
    """x/6 + 1/2 cut to [0, 1]. dx = g/6 where |x| < 3, else 0.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("hardsigmoid", hardsigmoid, x)
    x = float_operand("hardsigmoid", x)
    return record(in_blocks(_ramp, x.data), _hardsigmoid_backward, (x,), (x,))


def _ramp(out: Array, x: Array) -> None:
    array_module(x).add(x, 3, out=out)
    _cut(out, out, 0.0, 6.0)
    out /= 6


def _hardsigmoid_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], masked(grad / 6, array_module(grad).abs(x.data) < 3))


def hardswish(x: TensorLike, inplace: bool = False) -> Tensor:
    """x·hardsigmoid(x) (Howard et al., "Searching for MobileNetV3", 2019).

    dx = g·(x/3 + 1/2) where |x| < 3, g from 3 on, 0 up to -3.

    Args:
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("hardswish", hardswish, x)
    x = float_operand("hardswish", x)
    return record(in_blocks(_hardswish, x.data), _hardswish_backward, (x,), (x,))


def _hardswish(out: Array, x: Array) -> None:
    _ramp(out, x)
    out *= x


def _hardswish_backward(node: Node, grad: Array) -> None:
    (x,) = node.saved
    accumulate(node.inputs[0], in_blocks(_hardswish_gradient, grad, x.data))


def _hardswish_gradient(out: Array, grad: Array, x: Array) -> None:
    xp = array_module(x)
    slope = x / 3
    slope += 0.5
    masked(slope, ~(xp.abs(x) >= 3), out)  # NaN stays
    out += x >= 3
    out *= grad


def softshrink(x: TensorLike, lambd: float = 0.5) -> Tensor:
    """x pulled towards 0 by lambd, 0 where |x| <= lambd. dx = g where |x| > lambd or NaN, else 0.

    Raises:
        ArgumentError: lambd below 0.
        DtypeError: an integer tensor.
    """
    x = float_operand("softshrink", x)
    width = as_real("softshrink", "lambd", lambd, 0.0, finite=True)
    data = in_blocks(functools.partial(_shrink, width=width), x.data)
    return record(data, _softshrink_backward, (x,), (x, width))


def _shrink(out: Array, x: Array, width: float) -> None:
    _cut(out, x, -width, width)
    array_module(x).subtract(x, out, out=out)


def _softshrink_backward(node: Node, grad: Array) -> None:
    x, width = node.saved
    accumulate(node.inputs[0], masked(grad, ~(array_module(grad).abs(x.data) <= width)))


def hardshrink(x: TensorLike, lambd: float = 0.5) -> Tensor:
    """x where |x| > lambd or NaN, else 0. dx = g there, else 0.

    Raises:
        ArgumentError: lambd is no finite number.
        DtypeError: an integer tensor.
    """
    x = float_operand("hardshrink", x)
    width = as_real("hardshrink", "lambd", lambd, finite=True)
    return record(masked(x.data, _is_far(x.data, width)), _hardshrink_backward, (x,), (x, width))


def _is_far(x: Array, width: float) -> Array:
    return ~((x >= -width) & (x <= width))


def _hardshrink_backward(node: Node, grad: Array) -> None:
    x, width = node.saved
    accumulate(node.inputs[0], masked(grad, _is_far(x.data, width)))


def threshold(x: TensorLike, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """x where it is above the threshold or NaN, else value. dx = g there, else 0.

    Args:
        threshold, value: Finite.
        inplace: Write the result into x, as the methods with an underscore do.

    Raises:
        ArgumentError: a threshold or a value that is no finite number.
        DtypeError: an integer tensor.
    """
    if inplace:
        return overwrite("threshold", _threshold, x, threshold, value)
    return _threshold(x, threshold, value)


def _threshold(x: TensorLike, threshold: float, value: float) -> Tensor:
    x = float_operand("threshold", x)
    least = as_real("threshold", "threshold", threshold, finite=True)
    filling = as_real("threshold", "value", value, finite=True)
    xp = array_module(x.data)
    data = xp.full_like(x.data, filling)
    xp.copyto(data, x.data, where=~(x.data <= least))
    return record(data, _threshold_backward, (x,), (x, least))


def _threshold_backward(node: Node, grad: Array) -> None:
    x, least = node.saved
    accumulate(node.inputs[0], masked(grad, ~(x.data <= least)))


# ---------------------------------------------------------------------------------------------- with a learned slope


@method
@autocasts("low")
def prelu(x: TensorLike, weight: TensorLike) -> Tensor:
    """x where x > 0, else weight·x (He et al., "Delving Deep into Rectifiers", 2015).

    dx = g where x > 0, else weight·g; dweight = the sum of g·x where not x > 0.

    Shapes:
        x: (N, C, ...), weight: (C,), or () or (1,) for all channels -> as x

    Raises:
        DtypeError: an integer tensor, or two different float dtypes.
        ShapeError: weight has other lengths than those.
    """
    x, weight = operands("prelu", float_operand("prelu", x), float_operand("prelu", weight))
    channels = x.data.shape[1] if x.data.ndim > 1 else 1
    if weight.data.ndim > 1 or weight.data.size not in (1, channels):
        raise ShapeError(
            f"prelu: expected weight of shape (), (1,) or (C,) for x (N, C, ...), got {weight.shape} for {x.shape}"
        )
    slopes = weight.data.reshape(_beside_channels(x, weight))
    positive = x.data > 0
    data = masked(x.data, positive) + masked(x.data * slopes, ~positive)
    return record(data, _prelu_backward, (x, weight), (x, weight))


def _beside_channels(x: Tensor, weight: Tensor) -> tuple[int, ...]:
    """The shape in which a weight for each channel broadcasts with x."""
    return (weight.data.size,) + (1,) * max(x.data.ndim - 2, 0) if weight.data.size > 1 else ()


def _prelu_backward(node: Node, grad: Array) -> None:
    x, weight = node.saved
    dx, dweight = node.inputs
    positive, shape = x.data > 0, _beside_channels(x, weight)
    if dx is not None:
        accumulate(dx, masked(grad, positive) + masked(grad * weight.data.reshape(shape), ~positive))
    if dweight is not None:
        slopes = masked(widened(grad) * widened(x.data), ~positive)
        others = tuple([axis for axis in range(slopes.ndim) if axis != 1 or not shape])
        accumulate(dweight, slopes.sum(axis=others).astype(weight.data.dtype).reshape(weight.data.shape))
