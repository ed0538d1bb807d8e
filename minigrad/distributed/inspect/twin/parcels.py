"""What travels to the rank that computes a step alone: nested plain data with the arrays in it, as bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import CPU, Device, to_device, to_host
from minigrad.backend.dtypes import Array, as_dtype, float64, is_float
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import DtypeError
from minigrad.tensor import Tensor

_PLAIN = (str, bool, int, float, type(None))
Packed = list[Any]  # JSON: ["dict", [[key, Packed], ...]], ["list", [...]], ["tensor", its number], ...


def pack(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Packed:
    """Nested dicts, lists and tuples as JSON data; the arrays and tensors in them are put aside, in host memory.

    Raises:
        DtypeError: something else is in it.
    """
    if isinstance(value, dict):
        return ["dict", [[pack(key, arrays), pack(each, arrays)] for key, each in value.items()]]
    if isinstance(value, (list, tuple)):
        return ["list" if isinstance(value, list) else "tuple", [pack(each, arrays) for each in value]]
    if isinstance(value, (Tensor, np.ndarray)):
        data = to_host(value.data) if isinstance(value, Tensor) else value
        as_dtype(data.dtype)
        arrays.append(np.array(data, order="C"))
        return ["tensor" if isinstance(value, Tensor) else "array", len(arrays) - 1]
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, _PLAIN):
        raise DtypeError(
            "Twin: expected a batch of tensors, arrays and plain values, in dicts, lists and tuples, got "
            f"{type(value).__name__} in it"
        )
    return ["plain", value]


def unpack(packed: Packed, arrays: Sequence[Array], device: Device = CPU, exact: bool = False) -> Any:
    """The value again.

    Args:
        device: Where tensors are to live.
        exact: Whether floats of tensors and arrays are to be float64.
    """
    kind, content = packed
    if kind == "dict":
        return {unpack(k, arrays): unpack(each, arrays, device, exact) for k, each in content}
    if kind in ("list", "tuple"):
        parts = [unpack(each, arrays, device, exact) for each in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "plain":
        return content
    array = arrays[content]
    array = array.astype(float64) if exact and is_float(array.dtype) else array.copy()
    return Tensor(to_device(array, device)) if kind == "tensor" else array


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in nested data."""
    if isinstance(value, Tensor):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((found for found in map(first_tensor, parts) if found is not None), None)


def gather_arrays(
    comm: Communicator, arrays: Sequence[np.ndarray[Any, Any]], everyone: Sequence[Sequence[Sequence[Any]]]
) -> list[list[np.ndarray[Any, Any]]]:
    """On rank 0 the arrays of each rank, in order; elsewhere nothing. All ranks call it together.

    Args:
        everyone: For each rank the shape and the dtype of each of its arrays.
    """
    sizes = [sum(_nbytes(*one) for one in listed) for listed in everyone]
    if not max(sizes):
        return [[_cut(b"", 0, *one) for one in listed] for listed in everyone] if comm.rank == 0 else []
    parts = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    mine = np.zeros(max(sizes), np.uint8)
    mine[: sizes[comm.rank]] = np.concatenate(parts) if parts else ()
    with comm.device.current() as xp:
        whole = xp.empty(comm.world_size * mine.size, np.uint8) if comm.rank == 0 else None
        comm.gather(whole, xp.asarray(mine), 0).wait(host=True)
    if whole is None:
        return []
    found = []
    for row, listed in zip(to_host(whole).reshape(comm.world_size, -1), everyone):
        data, at, own = row.tobytes(), 0, []
        for shape, dtype in listed:
            own.append(_cut(data, at, shape, dtype))
            at += _nbytes(shape, dtype)
        found.append(own)
    return found


def _nbytes(shape: Sequence[int], dtype: str) -> int:
    return math.prod(shape) * as_dtype(dtype).itemsize


def _cut(data: bytes, at: int, shape: Sequence[int], dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, as_dtype(dtype), math.prod(shape), at).reshape(shape)
