"""How the arguments of an operation become tensors of one dtype on one device, and are checked once for those alike."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

from minigrad.arguments import is_number, kind_of
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import Place, array_module, device_of, place_of, to_place
from minigrad.backend.dtypes import (
    Array,
    DtypeLike,
    as_dtype,
    common_dtype,
    converted,
    is_float,
    python_scalar,
    scalar_dtype,
)
from minigrad.backend.order import room_like
from minigrad.errors import DeviceError, DtypeError
from minigrad.tensor import Tensor, record

TensorLike = Any  # a Tensor, an ndarray, or a Python or NumPy number


def operands(who: str, x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    """Both arguments of a binary operation as tensors of one dtype on one device.

    A number takes the dtype of its partner, unless it is of a wider kind (1.5 with an integer tensor).

    Raises:
        DtypeError: two different float dtypes, or an argument that is no tensor, array or number.
        DeviceError: tensors on different devices.
    """
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        if x.data.dtype is y.data.dtype and x.data.__class__ is y.data.__class__ is np.ndarray:
            return x, y
    elif isinstance(x, Tensor) and is_number(y):
        return _with_number(who, x, y)
    elif isinstance(y, Tensor) and is_number(x):
        b, a = _with_number(who, y, x)
        return a, b
    return _meet(who, as_operand(who, x), as_operand(who, y))


def as_operand(who: str, x: TensorLike) -> Tensor:
    """An argument of an operation as a tensor: a tensor as it is, an array wrapped, a number as one of no axes."""
    if isinstance(x, Tensor):
        return x
    if is_number(x):
        value = python_scalar(x)
        return Tensor(np.asarray(value, np.float32 if isinstance(value, float) else None))
    try:
        return Tensor(x)
    except DtypeError as error:
        raise DtypeError(f"{who}: expected a tensor, an array or a number, got {kind_of(x)}") from error


def cast(x: Tensor, dtype: np.dtype[Any], data: Array | None = None) -> Tensor:
    """x in another dtype; the gradient comes back in x's. From a float to an integer dtype nothing flows back.

    Args:
        data: The elements of x in that dtype, where somebody has converted them already.
    """
    if x.data.dtype == dtype:
        return x
    if data is None:
        data = converted(x.data, dtype)
    return record(data, _cast_backward, (x,), (x.data.dtype,)) if is_float(dtype) else Tensor(data)


def _cast_backward(node: Node, grad: Array) -> None:
    (dtype,) = node.saved
    accumulate(node.inputs[0], converted(grad, dtype))


def _meet(who: str, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.device != y.device:
        raise DeviceError(
            f"{who}: expected tensors on one device, got {x.device} {x.shape} and {y.device} {y.shape}: "
            "move one with .to(device)"
        )
    dtype = common_dtype(who, x.dtype, y.dtype)
    return cast(x, dtype), cast(y, dtype)


def _with_number(who: str, x: Tensor, number: Any) -> tuple[Tensor, Tensor]:
    value = python_scalar(number)
    dtype = scalar_dtype(value, x.data.dtype)
    try:
        return cast(x, dtype), _constant(value, dtype, x.data)
    except OverflowError as error:
        raise DtypeError(f"{who}: expected a number that fits into {dtype.name}, got {value}") from error


def as_truth(x: Tensor, value: Any) -> Any:
    """A number that is written into x: 0 and 1 are truth values where x is of bools."""
    return bool(value) if x.data.dtype.kind == "b" and is_number(value) and value in (0, 1) else value


def _constant(value: float, dtype: np.dtype[Any], like: Array) -> Tensor:
    """A number as a tensor of no axes, where another array lives.

    Kept between calls: converting a Python number costs a ufunc about 0.5 µs.
    """
    place = None if isinstance(like, np.ndarray) else place_of(like)
    if value == 0:
        return _kept_constant(value, dtype, place, math.copysign(1.0, value))  # 0.0 and -0.0 are equal
    return _kept_constant(value, dtype, place)


@functools.lru_cache(maxsize=512, typed=True)
def _kept_constant(value: float, dtype: np.dtype[Any], place: Place, sign: float = 1.0) -> Tensor:
    return Tensor(to_place(np.asarray(value, dtype), place))


def masked(grad: Array, mask: Array, out: Array | None = None) -> Array:
    """A gradient where a mask of bools holds, else 0, broadcasting; the same array in `out` where that is given.

    The bits are multiplied, as integers: infinity and NaN times 0 would be NaN, and `where` takes NumPy ten times as
    long.
    """
    bits = f"i{grad.dtype.itemsize}"
    if out is None and getattr(mask, "shape", ()) == grad.shape:
        out = room_like(grad)
    kept = array_module(grad).multiply(grad.view(bits), mask, out=None if out is None else out.view(bits))
    return kept.view(grad.dtype)


def check_float(who: str, x: Tensor) -> None:
    """Refuse an integer tensor.

    Raises:
        DtypeError: the dtype is not a float.
    """
    if not is_float(x.data.dtype):
        raise DtypeError(f"{who}: expected a float tensor, got {x.dtype.name} {x.shape}: convert it with .float()")


def float_operand(who: str, x: TensorLike) -> Tensor:
    """An argument of an operation as a float tensor.

    Raises:
        DtypeError: it is of integers or bools.
    """
    tensor = as_operand(who, x)
    check_float(who, tensor)
    return tensor


def promote_to_float(who: str, x: TensorLike) -> Tensor:
    """x as a float tensor: integers become float32, as PyTorch does in its transcendental functions."""
    x = as_operand(who, x)
    return x if is_float(x.data.dtype) else cast(x, np.dtype(np.float32))


def in_dtype(who: str, x: TensorLike, dtype: DtypeLike) -> Tensor:
    """An argument of an operation in the dtype that the operation was asked for; as it is where that is None."""
    x = as_operand(who, x)
    return x if dtype is None else cast(x, as_dtype(dtype))


def same_device(who: str, *tensors: Tensor) -> None:
    """Refuse tensors on different devices.

    Raises:
        DeviceError: they are; the devices and shapes are named.
    """
    first = device_of(tensors[0].data) if tensors else None
    for tensor in tensors[1:]:
        if device_of(tensor.data) is first:
            continue
        listed = ", ".join(f"{t.device} {t.shape}" for t in tensors)
        raise DeviceError(f"{who}: expected tensors on one device, got {listed}: move them with .to(device)")


# ------------------------------------------------------------------------------------- what is checked once

_Check = TypeVar("_Check", bound=Callable[..., Any])
_MOST = 512  # answers that a check keeps; then it begins anew

# Of an array, in as much time as one line of Python takes.
_facts_on_host = attrgetter("__class__", "shape", "dtype")
_facts_on_gpu = attrgetter("__class__", "shape", "dtype", "data.device_id")


def once(check: _Check) -> _Check:
    """Keep what `check(who, tensors, *options)` finds, for calls that differ in nothing that it may look at.

    That is the name, the class, shape, dtype and device of each tensor, None among the later ones for those that are
    not there, and the options. Equal numbers of other types, such as 1, 1.0 and True, are other options. What is no
    tensor, or an option that has no hash, is checked each time, as is a call that was refused.
    """
    kept: dict[Any, Any] = {}

    @functools.wraps(check)
    def found(who: str, tensors: tuple[Any, ...], *options: Any) -> Any:
        try:
            facts = _facts_on_host if tensors[0].data.__class__ is np.ndarray else _facts_on_gpu
            kinds = tuple(map(type, options))
            if tuple in kinds:
                kinds = tuple(map(_kind_of, options))
            known = [None if one is None else (one.__class__, facts(one.data)) for one in tensors]
            key = (who, options, kinds, *known)
            answer = kept.get(key, kept)
        except (AttributeError, TypeError):
            return check(who, tensors, *options)
        if answer is not kept:
            return answer
        answer = check(who, tensors, *options)
        if len(kept) >= _MOST:
            kept.clear()
        kept[key] = answer
        return answer

    return found  # type: ignore[return-value]


def _kind_of(option: Any) -> Any:
    return tuple(map(type, option)) if option.__class__ is tuple else type(option)
