"""Addition to power, maximum, minimum and lerp, with broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_choice, is_number
from minigrad.autograd.tape import Edge, Node, accumulate, destination, lend
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float
from minigrad.backend.order import in_order
from minigrad.errors import DivisionByZeroError, DtypeError, ShapeError
from minigrad.ops.axes import unbroadcast
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand, check_float, masked, operands, promote_to_float
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

__all__ = ["add", "div", "floor_divide", "fmod", "lerp", "maximum", "minimum", "mul", "neg", "pow", "remainder", "sub"]


def broadcast_error(who: str, *tensors: Tensor) -> ShapeError:
    """The error for operands whose shapes do not broadcast."""
    return ShapeError(f"{who}: expected shapes that broadcast, got {' and '.join(str(t.shape) for t in tensors)}")


def pass_on(edge: Edge, grad: Array, shape: tuple[int, ...]) -> None:
    """Hand on a gradient that was lent to us, summed over the axes that were broadcast."""
    if grad.shape == shape:
        lend(edge, grad)
    else:
        accumulate(edge, unbroadcast(grad, shape, destination(edge)))


@method
@method_as("__add__")
def add(x: TensorLike, y: TensorLike, *, alpha: float = 1) -> Tensor:
    """x + alpha·y, broadcasting. dx = g, dy = alpha·g."""
    x, y = operands("add", x, y if alpha.__class__ is int and alpha == 1 else _times("add", y, alpha))
    try:
        return record(in_order("add", x.data, y.data), _add_backward, (x, y), (x.data.shape, y.data.shape))
    except ValueError as error:
        raise broadcast_error("add", x, y) from error


def _times(who: str, y: TensorLike, alpha: float) -> TensorLike:
    """What is added, alpha times."""
    if as_real(who, "alpha", alpha) == 1:
        return y
    return y * alpha if is_number(y) else mul(as_operand(who, y), alpha)


def _add_backward(node: Node, grad: Array) -> None:
    x_shape, y_shape = node.saved
    dx, dy = node.inputs
    if dx is not None:
        pass_on(dx, grad, x_shape)
    if dy is not None:
        pass_on(dy, grad, y_shape)


@method
@method_as("__sub__")
def sub(x: TensorLike, y: TensorLike, *, alpha: float = 1) -> Tensor:
    """x - alpha·y, broadcasting. dx = g, dy = -alpha·g.

    Raises:
        DtypeError: bool operands: use ^.
    """
    x, y = operands("sub", x, y if alpha.__class__ is int and alpha == 1 else _times("sub", y, alpha))
    if x.data.dtype.kind == "b":
        raise DtypeError(f"sub: expected numbers, got bool {x.shape} and bool {y.shape}: use ^ or ~")
    try:
        return record(in_order("subtract", x.data, y.data), _sub_backward, (x, y), (x.data.shape, y.data.shape))
    except ValueError as error:
        raise broadcast_error("sub", x, y) from error


def _sub_backward(node: Node, grad: Array) -> None:
    x_shape, y_shape = node.saved
    dx, dy = node.inputs
    if dx is not None:
        pass_on(dx, grad, x_shape)
    if dy is not None:
        accumulate(dy, in_order("negative", unbroadcast(grad, y_shape)))


@method
@method_as("__mul__")
def mul(x: TensorLike, y: TensorLike) -> Tensor:
    """x * y, broadcasting. dx = g·y, dy = g·x."""
    x, y = operands("mul", x, y)
    try:
        data = in_order("multiply", x.data, y.data)
    except ValueError as error:
        raise broadcast_error("mul", x, y) from error
    kept = (x if y.requires_grad else None, y if x.requires_grad else None)  # each for the gradient of the other
    return record(data, _mul_backward, (x, y), (*kept, x.data.shape, y.data.shape))


def _mul_backward(node: Node, grad: Array) -> None:
    x, y, x_shape, y_shape = node.saved
    dx, dy = node.inputs
    if dx is not None:
        accumulate(dx, unbroadcast(in_order("multiply", grad, y.data), x_shape))
    if dy is not None:
        accumulate(dy, unbroadcast(in_order("multiply", grad, x.data), y_shape))


@method
@method_as("__truediv__")
def div(x: TensorLike, y: TensorLike, *, rounding_mode: str | None = None) -> Tensor:
    """x / y, broadcasting; integers divide as float32. dx = g/y, dy = -g·x/y², or 0 where it is rounded.

    Args:
        rounding_mode: None, "floor" or "trunc", which rounds towards 0; rounded, integers stay integers.

    Raises:
        ArgumentError: another rounding_mode.
        DivisionByZeroError: an integer divided by 0 and rounded.
    """
    if rounding_mode is not None:
        return _rounded_quotient(x, y, rounding_mode)
    x, y = operands("div", x, y)
    if not is_float(x.data.dtype):
        x, y = promote_to_float("div", x), promote_to_float("div", y)
    try:
        data = in_order("divide", x.data, y.data)
    except ValueError as error:
        raise broadcast_error("div", x, y) from error
    return record(data, _div_backward, (x, y), (x if y.requires_grad else None, y, x.data.shape))


def _div_backward(node: Node, grad: Array) -> None:
    x, y, x_shape = node.saved
    dx, dy = node.inputs
    if dx is not None:
        pass_on(dx, in_order("divide", grad, y.data), x_shape)
    if dy is not None:
        accumulate(dy, unbroadcast(-(grad * (x.data / y.data / y.data)), y.data.shape))


def _rounded_quotient(x: TensorLike, y: TensorLike, rounding_mode: str) -> Tensor:
    check_choice("div", ("floor", "trunc"), rounding_mode=rounding_mode)
    a, b = _divisible("div", x, y)
    xp = array_module(a.data)
    try:
        data = xp.floor_divide(a.data, b.data)
        if rounding_mode == "trunc" and is_float(data.dtype):
            data = xp.trunc(a.data / b.data)
        elif rounding_mode == "trunc":
            data = data + ((data * b.data != a.data) & ((a.data < 0) != (b.data < 0)))
    except ValueError as error:
        raise broadcast_error("div", a, b) from error
    return record(data, _rounded_quotient_backward, (a, b), (a.data.shape, b.data.shape))


def _rounded_quotient_backward(node: Node, grad: Array) -> None:
    for edge, shape in zip(node.inputs, node.saved):
        accumulate(edge, array_module(grad).zeros(shape, grad.dtype))


@method
@method_as("__floordiv__")
def floor_divide(x: TensorLike, y: TensorLike) -> Tensor:
    """floor(x / y), broadcasting; nothing flows back. Integers stay integers.

    Raises:
        DivisionByZeroError: an integer divided by 0; by a tensor on a GPU, which nothing waits for, it is 0.
        DtypeError: bool operands.
    """
    x, y = _divisible("floor_divide", x, y)
    try:
        return Tensor(array_module(x.data).floor_divide(x.data, y.data))
    except ValueError as error:
        raise broadcast_error("floor_divide", x, y) from error


def _divisible(who: str, x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    """Two operands of which the second is not 0 where they are integers."""
    a, b = operands(who, x, y)
    kind = b.data.dtype.kind
    if kind == "b":
        raise DtypeError(f"{who}: expected numbers, got bool {a.shape} and bool {b.shape}")
    divisor = b.data if b.data.__class__ is np.ndarray else y  # as a number it is known to the host
    is_zero = not divisor.all() if isinstance(divisor, np.ndarray) else is_number(divisor) and divisor == 0
    if kind in "iu" and is_zero and a.data.size:
        raise DivisionByZeroError(
            f"{who}: expected integers other than 0 to divide by, got {b.dtype.name} {b.shape} with 0 in it: "
            "divide with /, or as .float()"
        )
    return a, b


@method
@method_as("__mod__")
def remainder(x: TensorLike, y: TensorLike) -> Tensor:
    """x - y·floor(x / y), of the sign of y, broadcasting. dx = g, dy = -g·floor(x/y).

    Raises:
        DivisionByZeroError: an integer divided by 0; by a tensor on a GPU, which nothing waits for, it is 0.
        DtypeError: bool operands.
    """
    x, y = _divisible("remainder", x, y)
    xp = array_module(x.data)
    try:
        return record(xp.remainder(x.data, y.data), _remainder_backward, (x, y), (x, y))
    except ValueError as error:
        raise broadcast_error("remainder", x, y) from error


def _remainder_backward(node: Node, grad: Array) -> None:
    x, y = node.saved
    dx, dy = node.inputs
    if dx is not None:
        pass_on(dx, grad, x.data.shape)
    if dy is not None:
        floor = array_module(grad).floor_divide(x.data, y.data)
        accumulate(dy, unbroadcast(-(grad * floor), y.data.shape))


@method
def fmod(x: TensorLike, y: TensorLike) -> Tensor:
    """x - y·trunc(x / y), of the sign of x, broadcasting. dx = g, dy = -g·trunc(x/y).

    Raises:
        DivisionByZeroError: an integer divided by 0; by a tensor on a GPU, which nothing waits for, it is 0.
        DtypeError: bool operands.
    """
    x, y = _divisible("fmod", x, y)
    xp = array_module(x.data)
    try:
        if is_float(x.data.dtype):
            return record(xp.fmod(x.data, y.data), _fmod_backward, (x, y), (x, y))
        rest = xp.remainder(x.data, y.data)  # exact, where fmod may go through float64
        return Tensor(rest - y.data * ((rest != 0) & ((x.data < 0) != (y.data < 0))))
    except ValueError as error:
        raise broadcast_error("fmod", x, y) from error


def _fmod_backward(node: Node, grad: Array) -> None:
    x, y = node.saved
    dx, dy = node.inputs
    if dx is not None:
        pass_on(dx, grad, x.data.shape)
    if dy is not None:
        accumulate(dy, unbroadcast(-(grad * array_module(grad).trunc(x.data / y.data)), y.data.shape))


@method
@method_as("__neg__")
def neg(x: TensorLike) -> Tensor:
    """-x. dx = -g.

    Raises:
        DtypeError: a bool tensor: use ~.
    """
    x = as_operand("neg", x)
    if x.data.dtype.kind == "b":
        raise DtypeError(f"neg: expected numbers, got bool {x.shape}: use ~")
    return record(in_order("negative", x.data), _neg_backward, (x,))


def _neg_backward(node: Node, grad: Array) -> None:
    accumulate(node.inputs[0], in_order("negative", grad))


@method
@method_as("__pow__")
@autocasts("high")
def pow(x: TensorLike, y: TensorLike) -> Tensor:
    """x ** y, broadcasting. dx = g·y·x^(y-1), 0 where y is 0; dy = g·x^y·ln x, 0 where x is 0 and y >= 0.

    Raises:
        ArgumentError: an integer tensor to a negative integer power.
    """
    x, y = operands("pow", x, y)
    try:
        data = x.data**y.data
    except ValueError as error:
        if "Integers to negative" in str(error):
            raise DtypeError("pow: expected a float base for a negative power, got integers: use .float()") from error
        raise broadcast_error("pow", x, y) from error
    keeps = y.requires_grad  # the power, which only the gradient of the exponent needs
    return record(data, _pow_backward, (x, y), (x, y, data if keeps else None), saves_output=keeps)


def _pow_backward(node: Node, grad: Array) -> None:
    x, y, power = node.saved
    dx, dy = node.inputs
    xp = array_module(grad)
    if dx is not None:
        slope = xp.where(y.data == 0, xp.zeros_like(grad), y.data * x.data ** (y.data - 1))
        accumulate(dx, unbroadcast(grad * slope, x.data.shape))
    if dy is not None:
        flat = (x.data == 0) & (y.data >= 0)
        log = xp.log(xp.where(flat, xp.ones_like(grad), x.data))
        accumulate(dy, unbroadcast(grad * power * log, y.data.shape))


@method
def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """The larger of each pair, broadcasting; NaN wins.

    The gradient goes to the larger, half to each where they are equal, all to both where one is NaN.
    """
    return _extremum("maximum", x, y, _maximum_backward)


@method
def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """The smaller of each pair, broadcasting; NaN wins.

    The gradient goes to the smaller, half to each where they are equal, all to both where one is NaN.
    """
    return _extremum("minimum", x, y, _minimum_backward)


def _extremum(who: str, x: TensorLike, y: TensorLike, backward: Callable[[Node, Array], None]) -> Tensor:
    x, y = operands(who, x, y)
    try:
        return record(in_order(who, x.data, y.data), backward, (x, y), (x, y))
    except ValueError as error:
        raise broadcast_error(who, x, y) from error


def _maximum_backward(node: Node, grad: Array) -> None:
    x, y = node.saved
    _split_gradient(node, grad, x.data > y.data, x.data < y.data)


def _minimum_backward(node: Node, grad: Array) -> None:
    x, y = node.saved
    _split_gradient(node, grad, x.data < y.data, x.data > y.data)


def _split_gradient(node: Node, grad: Array, x_wins: Array, y_wins: Array) -> None:
    x, y = node.saved
    dx, dy = node.inputs
    half = grad.dtype.type(0.5)
    share = grad * (1 - half * (x.data == y.data)).astype(grad.dtype)
    if dx is not None:
        accumulate(dx, unbroadcast(masked(share, ~y_wins), x.data.shape))
    if dy is not None:
        accumulate(dy, unbroadcast(masked(share, ~x_wins), y.data.shape))


@method
def lerp(x: TensorLike, end: TensorLike, weight: TensorLike) -> Tensor:
    """x + weight·(end - x), exactly x at 0 and exactly end at 1, broadcasting.

    dx = g·(1 - weight), dend = g·weight, dweight = g·(end - x).

    Args:
        weight: A number or a tensor; it may lie outside [0, 1].

    Raises:
        DtypeError: integer tensors, or two different float dtypes.
        ShapeError: the shapes do not broadcast.
    """
    x, end = operands("lerp", x, end)
    check_float("lerp", x)
    x, weight = operands("lerp", x, weight)
    a, b, w = x.data, end.data, weight.data
    xp = array_module(a)
    try:
        step = b - a
        data = xp.where(abs(w) < 0.5, a + w * step, b - step * (1 - w))
    except ValueError as error:
        raise broadcast_error("lerp", x, end, weight) from error
    keeps = weight.requires_grad
    saved = (x if keeps else None, end if keeps else None, weight, a.shape, b.shape)
    return record(data, _lerp_backward, (x, end, weight), saved)


def _lerp_backward(node: Node, grad: Array) -> None:
    x, end, weight, x_shape, end_shape = node.saved
    dx, dend, dweight = node.inputs
    if dx is not None:
        accumulate(dx, unbroadcast(grad * (1 - weight.data), x_shape))
    if dend is not None:
        accumulate(dend, unbroadcast(grad * weight.data, end_shape))
    if dweight is not None:
        accumulate(dweight, unbroadcast(grad * (end.data - x.data), weight.data.shape))


def _reflected(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The form of a binary operation that Python calls on its right operand."""

    def reflected(y: TensorLike, x: TensorLike) -> Tensor:
        return function(x, y)

    reflected.__name__ = f"r{function.__name__}"
    reflected.__doc__ = function.__doc__
    return reflected


method_as("__radd__")(_reflected(add))
method_as("__rsub__")(_reflected(sub))
method_as("__rmul__")(_reflected(mul))
method_as("__rtruediv__")(_reflected(div))
method_as("__rfloordiv__")(_reflected(floor_divide))
method_as("__rmod__")(_reflected(remainder))
method_as("__rpow__")(_reflected(pow))
