"""Changes in place: x[i] = v, copy_, fill_, zero_, add_ to div_. Never recorded; a graph that saved x notices."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import as_real, is_number
from minigrad.autograd import is_grad_enabled, mark_changed
from minigrad.backend.dtypes import common_dtype
from minigrad.errors import AutogradError, DtypeError, IndexRangeError, ShapeError
from minigrad.ops.index import check_index_arrays, plain_index
from minigrad.ops.operands import TensorLike, as_tensor, operands, same_device
from minigrad.tensor import Tensor


def setitem(x: Tensor, index: Any, value: TensorLike) -> None:
    """x[index] = value. The index may be or hold tensors of integers or bools.

    Raises:
        AutogradError: x or value requires grad while recording is on.
        ShapeError: value does not broadcast to x[index].
        DtypeError, DeviceError: value does not fit into x's dtype, or lives elsewhere.
    """
    _write("setitem", x, plain_index("setitem", x, index), value)


def _write(who: str, x: Tensor, index: tuple[Any, ...], value: TensorLike) -> Tensor:
    value = operands(who, x.detach(), value)[1] if is_number(value) else as_tensor(who, value)
    if is_grad_enabled() and (x.requires_grad or value.requires_grad):
        raise AutogradError(f"{who}: expected recording to be off, got a tensor that requires grad: use no_grad()")
    same_device(who, x, value)
    if common_dtype(who, x.dtype, value.dtype) != x.dtype:
        raise DtypeError(f"{who}: expected a value that fits into {x.dtype.name}, got {value.dtype.name}")
    if not getattr(x.data.flags, "writeable", True):
        raise AutogradError(f"{who}: expected memory that may be written, got a read-only view of shape {x.shape}")
    if who != "setitem" and value.ndim > x.ndim:  # NumPy would drop leading axes of length 1
        raise ShapeError(f"{who}: expected a value that fits into {x.shape} there, got {value.shape}")
    try:
        x.data[index] = value.data
    except ValueError as error:
        raise ShapeError(f"{who}: expected a value that fits into {x.shape} there, got {value.shape}") from error
    except IndexError as error:
        raise IndexRangeError(f"{who}: expected an index into shape {x.shape}, got {index!r}: {error}") from error
    if who == "setitem":
        check_index_arrays(who, x, index)
    mark_changed(x)
    return x


def copy_(x: Tensor, value: TensorLike) -> Tensor:
    """Overwrite x with a value that broadcasts to its shape; returns x."""
    return _write("copy_", x, (...,), value)


def fill_(x: Tensor, value: float) -> Tensor:
    """Overwrite every element of x with a number; returns x."""
    return _write("fill_", x, (...,), value)


def zero_(x: Tensor) -> Tensor:
    """Overwrite every element of x with zero; returns x."""
    return _write("zero_", x, (...,), 0)


def add_(x: Tensor, value: TensorLike, alpha: float = 1.0) -> Tensor:
    """x += alpha * value, in place; returns x."""
    return _write("add_", x, (...,), x.detach() + _times("add_", value, alpha))


def sub_(x: Tensor, value: TensorLike, alpha: float = 1.0) -> Tensor:
    """x -= alpha * value, in place; returns x."""
    return _write("sub_", x, (...,), x.detach() - _times("sub_", value, alpha))


def _times(who: str, value: TensorLike, alpha: float) -> TensorLike:
    return value if as_real(who, "alpha", alpha) == 1.0 else as_tensor(who, value) * alpha


def mul_(x: Tensor, value: TensorLike) -> Tensor:
    """x *= value, in place; returns x."""
    return _write("mul_", x, (...,), x.detach() * value)


def div_(x: Tensor, value: TensorLike) -> Tensor:
    """x /= value, in place; returns x.

    Raises:
        DtypeError: x is of integers, which the quotient does not fit into.
    """
    return _write("div_", x, (...,), x.detach() / value)
