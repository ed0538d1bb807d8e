"""Changes in place: x[i] = v, copy_, fill_, zero_, add_, mul_. Never recorded; a graph that saved x notices."""

from __future__ import annotations

from typing import Any

from minigrad.autograd import is_grad_enabled, mark_changed
from minigrad.backend.dtypes import is_float, is_number
from minigrad.errors import AutogradError, DeviceError, DtypeError, IndexRangeError, ShapeError
from minigrad.ops.operands import TensorLike, as_tensor
from minigrad.tensor import Tensor


def setitem(x: Tensor, index: Any, value: TensorLike) -> None:
    """x[index] = value. The index may be or hold tensors of integers or bools.

    Raises:
        AutogradError: x or value requires grad while recording is on.
        ShapeError: value does not broadcast to x[index].
        DtypeError, DeviceError: value has another float dtype, or lives elsewhere.
    """
    _write("setitem", x, _plain_index(index), value)


def _plain_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_plain_index(part) for part in index)
    return index.data if isinstance(index, Tensor) else index


def _write(who: str, x: Tensor, index: Any, value: TensorLike) -> Tensor:
    value = value if is_number(value) else as_tensor(who, value)
    if is_grad_enabled() and (x.requires_grad or (isinstance(value, Tensor) and value.requires_grad)):
        raise AutogradError(f"{who}: expected recording to be off, got a tensor that requires grad: use no_grad()")
    if isinstance(value, Tensor):
        if value.device != x.device:
            raise DeviceError(f"{who}: expected a value on {x.device}, got one on {value.device}")
        if is_float(value.dtype) and value.dtype != x.dtype:
            raise DtypeError(f"{who}: expected a value of {x.dtype.name}, got {value.dtype.name}")
    try:
        x.data[index] = value.data if isinstance(value, Tensor) else value
    except ValueError as error:
        shape = value.shape if isinstance(value, Tensor) else ()
        raise ShapeError(f"{who}: expected a value that fits into {x.shape} there, got {shape}") from error
    except IndexError as error:
        raise IndexRangeError(f"{who}: expected an index into shape {x.shape}, got {index!r}: {error}") from error
    mark_changed(x)
    return x


def copy_(x: Tensor, value: TensorLike) -> Tensor:
    """Overwrite x with a value that broadcasts to its shape; returns x."""
    return _write("copy_", x, ..., value)


def fill_(x: Tensor, value: float) -> Tensor:
    """Overwrite every element of x with a number; returns x."""
    return _write("fill_", x, ..., value)


def zero_(x: Tensor) -> Tensor:
    """Overwrite every element of x with zero; returns x."""
    return _write("zero_", x, ..., 0)


def add_(x: Tensor, value: TensorLike, alpha: float = 1.0) -> Tensor:
    """x += alpha * value, in place; returns x."""
    return _write("add_", x, ..., x.detach() + (value if alpha == 1.0 else value * alpha))


def mul_(x: Tensor, value: TensorLike) -> Tensor:
    """x *= value, in place; returns x."""
    return _write("mul_", x, ..., x.detach() * value)
