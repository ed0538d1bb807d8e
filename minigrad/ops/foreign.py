"""Tensors of other libraries as arrays, through DLPack or as NumPy reads them; none of those libraries is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.backend.device import array_module, load_cupy
from minigrad.backend.dtypes import Array, as_dtype
from minigrad.errors import AutogradError, DeviceError, DtypeError
from minigrad.tensor import Tensor

_HOST, _CUDA = (1, 3), (2, 13)  # DLPack's kinds of memory: plain or pinned, of a device or managed


def array_of(who: str, value: Any) -> Array | None:
    """The array of a tensor, of ours or of another library, to copy from; None for what is neither, such as a list.

    It shares the memory of the tensor where that is possible. What another library's tensor would give a gradient is
    read as it is, as in `.detach()`; what lies on a device that arrays can't reach is copied to the host.

    Raises:
        DtypeError: data that a tensor can't hold.
    """
    if isinstance(value, Tensor):
        return value.data
    if is_array(value):
        return np.asarray(value) if isinstance(value, np.generic) else value
    if not hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return None
    return _read(who, value.detach() if _wants_gradient(value) else value, moves=True)


def shared_array(who: str, value: Any) -> Array:
    """An array on the memory of another library's tensor: what one writes, the other shows.

    Raises:
        AutogradError: the tensor requires grad.
        DtypeError: data that a tensor can't hold, or memory that an array can't be on.
    """
    if _wants_gradient(value):
        raise AutogradError(
            f"{who}: expected a tensor without gradient, got {_described(value)} that requires grad: use .detach()"
        )
    return _read(who, value, moves=False)


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy or CuPy, or a NumPy scalar."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    try:
        return array_module(value) is not np
    except DtypeError:
        return False


def _wants_gradient(value: Any) -> bool:
    """Whether another library's tensor is to get a gradient there."""
    return getattr(value, "requires_grad", False) is True


def _read(who: str, value: Any, moves: bool) -> Array:
    try:
        array = _through_dlpack(value, moves) if hasattr(value, "__dlpack__") else np.asarray(value)
        as_dtype(array.dtype)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:  # what libraries raise, and our DtypeError
        raise DtypeError(f"{who}: expected data that a tensor can hold, got {_described(value)}: {error}") from error
    return array


def _through_dlpack(value: Any, moves: bool) -> Array:
    kind = value.__dlpack_device__()[0]
    if kind in _CUDA:
        try:
            return _from_dlpack(load_cupy(), value)
        except DeviceError:
            if not moves:
                raise
    if kind not in _HOST:
        if not moves or not hasattr(value, "cpu"):
            raise TypeError(f"its memory is of DLPack's kind {int(kind)}, neither the host's nor CUDA's")
        value = value.cpu()
    return _from_dlpack(np, value)


def _from_dlpack(xp: Any, value: Any) -> Array:
    """The same memory as an array; bfloat16, which NumPy does not take from DLPack, by way of integers of 16 bits."""
    if not str(getattr(value, "dtype", "")).endswith("bfloat16"):
        return xp.from_dlpack(value)
    if not hasattr(value, "short"):  # no tensor of PyTorch
        return np.asarray(value)
    int16 = value.new_empty(0).short().dtype
    return xp.from_dlpack(value.view(int16)).view(as_dtype("bfloat16"))


def _described(value: Any) -> str:
    kind, shape = type(value), tuple(getattr(value, "shape", ()))
    return f"a {kind.__module__.split('.')[0]}.{kind.__name__} of {getattr(value, 'dtype', 'unknown dtype')} {shape}"
