"""Comparisons and logic, with broadcasting. The results are bool (bitwise ones of integers are integers); nothing
flows back through them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_switch, is_number
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float, widened
from minigrad.errors import DtypeError
from minigrad.ops.arithmetic import broadcast_error
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand, operands
from minigrad.tensor import Tensor

__all__ = [
    "allclose", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift", "bitwise_xor",
    "eq", "equal", "ge", "gt", "isclose", "isfinite", "isinf", "isnan", "le", "logical_and", "logical_not",
    "logical_or", "logical_xor", "lt", "ne",
]


def _apply(who: str, function: str, x: TensorLike, y: TensorLike) -> Tensor:
    x, y = operands(who, x, y)
    try:
        return Tensor(getattr(array_module(x.data), function)(x.data, y.data))
    except ValueError as error:
        raise broadcast_error(who, x, y) from error


@method
def eq(x: TensorLike, y: TensorLike) -> Tensor:
    """x == y. NaN equals nothing."""
    return _apply("eq", "equal", x, y)


@method
def ne(x: TensorLike, y: TensorLike) -> Tensor:
    """x != y. NaN differs from everything."""
    return _apply("ne", "not_equal", x, y)


@method
@method_as("__lt__")
def lt(x: TensorLike, y: TensorLike) -> Tensor:
    """x < y."""
    return _apply("lt", "less", x, y)


@method
@method_as("__le__")
def le(x: TensorLike, y: TensorLike) -> Tensor:
    """x <= y."""
    return _apply("le", "less_equal", x, y)


@method
@method_as("__gt__")
def gt(x: TensorLike, y: TensorLike) -> Tensor:
    """x > y."""
    return _apply("gt", "greater", x, y)


@method
@method_as("__ge__")
def ge(x: TensorLike, y: TensorLike) -> Tensor:
    """x >= y."""
    return _apply("ge", "greater_equal", x, y)


@method_as("__eq__")
def equals(x: Tensor, y: Any) -> Any:
    """The operator x == y. What is no operand is left to Python: `x == None` is False, as in PyTorch."""
    return eq(x, y) if _is_operand(y) else NotImplemented


@method_as("__ne__")
def differs(x: Tensor, y: Any) -> Any:
    """The operator x != y. What is no operand is left to Python: `x != None` is True, as in PyTorch."""
    return ne(x, y) if _is_operand(y) else NotImplemented


def _is_operand(y: Any) -> bool:
    return isinstance(y, Tensor) or is_number(y) or hasattr(y, "dtype")


# --------------------------------------------------------------------------- logic of truth values: zero is False


@method
def logical_and(x: TensorLike, y: TensorLike) -> Tensor:
    """Whether both elements are other than zero."""
    return _apply("logical_and", "logical_and", x, y)


@method
def logical_or(x: TensorLike, y: TensorLike) -> Tensor:
    """Whether one of the elements is other than zero."""
    return _apply("logical_or", "logical_or", x, y)


@method
def logical_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """Whether exactly one of the elements is other than zero."""
    return _apply("logical_xor", "logical_xor", x, y)


@method
def logical_not(x: TensorLike) -> Tensor:
    """Whether the element is zero."""
    x = as_operand("logical_not", x)
    return Tensor(array_module(x.data).logical_not(x.data))


# ------------------------------------------------------------------------------------- logic of bits: the operators


@method
@method_as("__and__", "__rand__")
def bitwise_and(x: TensorLike, y: TensorLike) -> Tensor:
    """x & y: of bools, or bit by bit of integers.

    Raises:
        DtypeError: a float operand.
    """
    return _bitwise("bitwise_and", x, y)


@method
@method_as("__or__", "__ror__")
def bitwise_or(x: TensorLike, y: TensorLike) -> Tensor:
    """x | y: of bools, or bit by bit of integers.

    Raises:
        DtypeError: a float operand.
    """
    return _bitwise("bitwise_or", x, y)


@method
@method_as("__xor__", "__rxor__")
def bitwise_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """x ^ y: of bools, or bit by bit of integers.

    Raises:
        DtypeError: a float operand.
    """
    return _bitwise("bitwise_xor", x, y)


@method
@method_as("__invert__")
def bitwise_not(x: TensorLike) -> Tensor:
    """~x: of bools, or bit by bit of integers.

    Raises:
        DtypeError: a float operand.
    """
    x = as_operand("bitwise_not", x)
    _check_bits("bitwise_not", x)
    return Tensor(array_module(x.data).invert(x.data))


@method_as("__lshift__")
def bitwise_left_shift(x: TensorLike, y: TensorLike) -> Tensor:
    """x << y: the bits of integers, y places up; 0 where y is negative or no bit is left.

    Raises:
        DtypeError: an operand that is not of integers.
    """
    x, places, inside = _places("bitwise_left_shift", x, y)
    return Tensor(array_module(x.data).left_shift(x.data, places) * inside)


@method_as("__rshift__")
def bitwise_right_shift(x: TensorLike, y: TensorLike) -> Tensor:
    """x >> y: the bits of integers, y places down, with copies of the sign above; all are where y is negative.

    Raises:
        DtypeError: an operand that is not of integers.
    """
    x, places, _ = _places("bitwise_right_shift", x, y)
    return Tensor(array_module(x.data).right_shift(x.data, places))


def _places(who: str, x: TensorLike, y: TensorLike) -> tuple[Tensor, Array, Array]:
    """x, how far its bits go, at most to the last place, and whether they do."""
    x, y = operands(who, x, y)
    if x.data.dtype.kind not in "iu":
        raise DtypeError(f"{who}: expected integers, got {x.dtype.name} {x.shape}")
    xp, last = array_module(x.data), x.data.dtype.type(8 * x.data.dtype.itemsize - 1)
    try:
        np.broadcast_shapes(x.data.shape, y.data.shape)
    except ValueError as error:
        raise broadcast_error(who, x, y) from error
    inside = (y.data >= 0) & (y.data <= last)
    return x, xp.where(inside, y.data, last), inside


def _bitwise(who: str, x: TensorLike, y: TensorLike) -> Tensor:
    x, y = operands(who, x, y)
    _check_bits(who, x)
    return _apply(who, who, x, y)


def _check_bits(who: str, x: Tensor) -> None:
    if x.data.dtype.kind not in "biu":
        raise DtypeError(f"{who}: expected bools or integers, got {x.dtype.name} {x.shape}: compare it first")


# --------------------------------------------------------------------------------------------- kinds of float values


@method
def isnan(x: TensorLike) -> Tensor:
    """Whether the element is NaN."""
    return _is("isnan", x)


@method
def isinf(x: TensorLike) -> Tensor:
    """Whether the element is infinite, of either sign."""
    return _is("isinf", x)


@method
def isfinite(x: TensorLike) -> Tensor:
    """Whether the element is neither infinite nor NaN."""
    return _is("isfinite", x)


def _is(who: str, x: TensorLike) -> Tensor:
    x = as_operand(who, x)
    return Tensor(getattr(array_module(x.data), who)(x.data))


# ------------------------------------------------------------------------------------------------ nearly, and wholly


@method
def isclose(
    x: TensorLike, other: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether |x - other| <= atol + rtol·|other|, or both are equal, broadcasting.

    Args:
        rtol, atol: >= 0.
        equal_nan: NaN is close to NaN.

    Raises:
        ArgumentError: rtol or atol is negative or no number, or equal_nan is no bool.
        ShapeError: the shapes do not broadcast.
    """
    return Tensor(_close("isclose", x, other, rtol, atol, equal_nan))


def _close(who: str, x: TensorLike, other: TensorLike, rtol: float, atol: float, equal_nan: bool) -> Array:
    rtol, atol = as_real(who, "rtol", rtol, 0.0), as_real(who, "atol", atol, 0.0)
    check_switch(who, equal_nan=equal_nan)
    x, other = operands(who, x, other)
    xp = array_module(x.data)
    try:
        np.broadcast_shapes(x.data.shape, other.data.shape)
    except ValueError as error:
        raise broadcast_error(who, x, other) from error
    a, b = (widened(t.data) if is_float(t.data.dtype) else t.data.astype(np.float64) for t in (x, other))
    found = a == b
    if equal_nan:
        found |= xp.isnan(a) & xp.isnan(b)
    both = xp.isfinite(a) & xp.isfinite(b)
    zero = xp.zeros((), a.dtype)
    a, b = xp.where(both, a, zero), xp.where(both, b, zero)  # infinity minus infinity would warn
    return found | both & (abs(a - b) <= atol + rtol * abs(b))


@method
def allclose(
    x: TensorLike, other: TensorLike, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Whether `isclose` holds for all elements, as a Python bool, for which a GPU is waited for.

    Raises:
        ArgumentError, ShapeError: as `isclose`.
    """
    return bool(_close("allclose", x, other, rtol, atol, equal_nan).all())


@method
def equal(x: TensorLike, other: TensorLike) -> bool:
    """Whether both have one shape and equal elements, as a Python bool, for which a GPU is waited for. NaN is unequal.

    Raises:
        DeviceError: tensors on different devices. DtypeError: two different float dtypes.
    """
    x, other = operands("equal", x, other)
    return x.data.shape == other.data.shape and bool((x.data == other.data).all())
