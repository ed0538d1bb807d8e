"""Other dtypes, devices and memory: to, clone, contiguous and the short forms of to."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.autograd.tape import Node, accumulate, lend
from minigrad.backend.device import Device, as_gpu, device_of, to_device
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype
from minigrad.backend.flags import raise_found
from minigrad.backend.workspace import copied
from minigrad.errors import ArgumentError
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand, cast
from minigrad.tensor import Tensor, record

__all__ = ["clone", "contiguous", "to"]


@method
def to(x: TensorLike, *target: Any, dtype: DtypeLike = None, device: Device | str | None = None) -> Tensor:
    """x on another device, in another dtype, or both; x itself where nothing changes. The gradient comes back in x's.

    Args:
        target: A device, a dtype, both in any order, or a tensor to be like.

    Raises:
        DtypeError: an unknown dtype.
        DeviceError: a device that is not there.
        ArgumentError: a dtype or a device given twice.

    Example:
        >>> import minigrad
        >>> minigrad.ones(2).to("cpu", minigrad.float64).dtype.name
        'float64'
    """
    x = as_operand("to", x)
    wanted_dtype, wanted_device = read_target(target, dtype, device)
    if wanted_dtype is not None:
        with x.device.current():  # its memory may be elsewhere than where it goes
            x = cast(x, wanted_dtype)
    return x if wanted_device is None else _moved(x, wanted_device)


def read_target(
    target: tuple[Any, ...], dtype: DtypeLike, device: Device | str | None
) -> tuple[np.dtype[Any] | None, Device | None]:
    """What the arguments of `to` ask for; None where they name no dtype, or no device."""
    named = [("dtype", dtype), ("device", device), *(pair for part in target for pair in _named_target(part))]
    wanted = {name: value for name, value in named if value is not None}
    if len(wanted) < sum(value is not None for _, value in named):
        raise ArgumentError(f"to: expected at most one device and one dtype, got {[value for _, value in named]}")
    return (
        as_dtype(wanted["dtype"]) if "dtype" in wanted else None,
        Device(wanted["device"]) if "device" in wanted else None,
    )


def _named_target(part: Any) -> list[tuple[str, Any]]:
    """A positional argument of `to`, as what it names."""
    if isinstance(part, Tensor):
        return [("dtype", part.dtype), ("device", part.device)]
    names_device = isinstance(part, Device) or (isinstance(part, str) and part.split(":")[0] in ("cpu", "cuda"))
    return [("device" if names_device else "dtype", part)]


def _moved(x: Tensor, device: Device) -> Tensor:
    here = device_of(x.data)
    if here == device:
        return x
    if device.type == "cpu":
        raise_found(x.data)
    return record(to_device(x.data, device), _moved_backward, (x,), (here,))


def _moved_backward(node: Node, grad: Array) -> None:
    (origin,) = node.saved
    with origin.current():
        accumulate(node.inputs[0], to_device(grad, origin))


@method_as("float")
def to_float(x: TensorLike) -> Tensor:
    """x as float32."""
    return cast(as_operand("float", x), np.dtype(np.float32))


@method_as("double")
def to_double(x: TensorLike) -> Tensor:
    """x as float64."""
    return cast(as_operand("double", x), np.dtype(np.float64))


@method_as("half")
def to_half(x: TensorLike) -> Tensor:
    """x as float16."""
    return cast(as_operand("half", x), np.dtype(np.float16))


@method_as("bfloat16")
def to_bfloat16(x: TensorLike) -> Tensor:
    """x as bfloat16."""
    return cast(as_operand("bfloat16", x), as_dtype("bfloat16"))


@method_as("int")
def to_int(x: TensorLike) -> Tensor:
    """x as int32, rounded towards zero; no gradient flows back."""
    return cast(as_operand("int", x), np.dtype(np.int32))


@method_as("long")
def to_long(x: TensorLike) -> Tensor:
    """x as int64, rounded towards zero; no gradient flows back."""
    return cast(as_operand("long", x), np.dtype(np.int64))


@method_as("short")
def to_short(x: TensorLike) -> Tensor:
    """x as int16, rounded towards zero; no gradient flows back."""
    return cast(as_operand("short", x), np.dtype(np.int16))


@method_as("char")
def to_char(x: TensorLike) -> Tensor:
    """x as int8, rounded towards zero; no gradient flows back."""
    return cast(as_operand("char", x), np.dtype(np.int8))


@method_as("byte")
def to_byte(x: TensorLike) -> Tensor:
    """x as uint8, rounded towards zero; no gradient flows back."""
    return cast(as_operand("byte", x), np.dtype(np.uint8))


@method_as("bool")
def to_bool(x: TensorLike) -> Tensor:
    """Where x is not zero."""
    return cast(as_operand("bool", x), np.dtype(np.bool_))


@method
def cpu(x: TensorLike) -> Tensor:
    """x in host memory; waits for a GPU."""
    return _moved(as_operand("cpu", x), Device("cpu"))


@method
def cuda(x: TensorLike, device: int | Device | str | None = None) -> Tensor:
    """x on a GPU; the first one by default.

    Raises:
        DeviceError: it is not there; the message lists what is.
    """
    return _moved(as_operand("cuda", x), as_gpu("cuda", device))


@method
def clone(x: TensorLike) -> Tensor:
    """A copy of x. dx = g."""
    x = as_operand("clone", x)
    return record(copied(x.data), _clone_backward, (x,))


@method
def contiguous(x: TensorLike) -> Tensor:
    """x itself where its elements lie in row order, else a copy in which they do. dx = g."""
    source = as_operand("contiguous", x)
    if source.data.flags.c_contiguous:
        return source
    with source.device.current() as xp:
        return record(xp.ascontiguousarray(source.data), _clone_backward, (source,))


def _clone_backward(node: Node, grad: Array) -> None:
    lend(node.inputs[0], grad)
