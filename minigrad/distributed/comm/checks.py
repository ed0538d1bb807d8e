"""What is checked of a collective's arguments, and the JSON data that ranks exchange."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_real, check_counts
from minigrad.backend.device import Device, array_module
from minigrad.backend.dtypes import Array, DtypeLike, as_dtype, is_float
from minigrad.distributed.collectives import ReduceOp
from minigrad.errors import ArgumentError, AutogradError, DeviceError, DtypeError, ShapeError
from minigrad.recording import is_grad_enabled
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor

DEFAULT_TIMEOUT_S = 300.0
NUMBERS = frozenset(map(np.dtype, "?bBhHiIlLqQefdFD"))  # in the order of this machine's bytes; bfloat16 is one too


def default_timeout_s(timeout_s: float | None = None) -> float:
    """A timeout as given, else $MINIGRAD_TIMEOUT_S, else 300 s.

    Raises:
        ArgumentError: it is no positive number.
    """
    if timeout_s is not None:
        return as_real("timeout_s", "seconds", timeout_s, above=0.0, finite=True)
    text: Any = os.environ.get("MINIGRAD_TIMEOUT_S", DEFAULT_TIMEOUT_S)
    with contextlib.suppress(ValueError):
        text = float(text)
    return as_real("MINIGRAD_TIMEOUT_S", "seconds", text, above=0.0, finite=True)


def stays_here(comm: Any, protocol: Any) -> Any:
    """The `__reduce_ex__` of what belongs to one rank of one process.

    Raises:
        ArgumentError: always.
    """
    raise ArgumentError(
        f"pickle: expected plain data, got a {type(comm).__name__}, which belongs to rank "
        f"{getattr(comm, 'rank', 0)} of this process: call distributed.init() in each process"
    )


def check_world(who: str, rank: int, world_size: int) -> None:
    """Refuse a rank outside its world.

    Raises:
        ArgumentError: not 0 <= rank < world_size.
    """
    as_integer(who, "world_size", world_size, 1)
    if not 0 <= as_integer(who, "rank", rank) < world_size:
        raise ArgumentError(f"{who}: expected 0 <= rank < world_size, got rank {rank} of {world_size}")


def check_array(who: str, rank: int, array: Any, written: bool = True, device: Device | None = None) -> Array:
    """An array as it is, or that of a tensor; refuses what a collective can't take.

    Args:
        written: Whether it is overwritten; a tensor then counts as changed in place.
        device: Where a tensor has to live; None for anywhere.

    Raises:
        DtypeError: it is neither, or not of numbers.
        ShapeError: it is not C-contiguous.
        ArgumentError: it is read-only, and would be overwritten.
        AutogradError: a tensor that requires grad, outside no_grad. DeviceError: one on another device.
    """
    if isinstance(array, Tensor):
        return _array_of(who, rank, array, written, device)
    got = type(array).__name__
    try:
        module = array_module(array)
    except DtypeError as error:
        raise DtypeError(f"rank {rank}: {who}: expected a tensor or an array, got {got}") from error
    if module is np and type(array) is not np.ndarray:
        raise DtypeError(f"rank {rank}: {who}: expected a tensor or an array, got {got}: use np.asarray")
    if array.dtype not in NUMBERS and array.dtype.name != "bfloat16":
        raise DtypeError(f"rank {rank}: {who}: expected an array of numbers, got {array.dtype}")
    if not array.flags.c_contiguous:
        raise ShapeError(
            f"rank {rank}: {who}: expected a C-contiguous array, got strides {array.strides} for shape {array.shape}: "
            "use contiguous() of a tensor, ascontiguousarray of an array"
        )
    if written and not getattr(array.flags, "writeable", True):  # CuPy's arrays always are
        raise ArgumentError(f"rank {rank}: {who}: expected an array to overwrite, got a read-only one: use a copy")
    return array


def _array_of(who: str, rank: int, x: Tensor, written: bool, device: Device | None) -> Array:
    """The array of a tensor; see `check_array`."""
    if x.requires_grad and is_grad_enabled():
        raise AutogradError(
            f"rank {rank}: {who}: expected a tensor that does not require grad, got one of shape {x.shape} that does, "
            "through which nothing would flow back: call it within no_grad(), pass detach(), or gather by "
            "distributed.nn.all_gather"
        )
    if device is not None and x.device != device:
        raise DeviceError(f"rank {rank}: {who}: expected a tensor on {device}, got one on {x.device}")
    array = check_array(who, rank, x.data, written)
    if written:
        mark_changed(x)
    return array


def check_empty(rank: int, count: int, dtype: DtypeLike) -> np.dtype[Any]:
    """The dtype of an array to make; refuses what is none, and what is no number of elements.

    Raises:
        ArgumentError: count is no integer >= 0. DtypeError: no dtype of a tensor.
    """
    check_counts(f"rank {rank}: empty", 0, count=count)
    return as_dtype(dtype)


def check_reduction(who: str, rank: int, array: Array, op: ReduceOp) -> None:
    """Refuse a reduction that is none, or an average of integers.

    Raises:
        ArgumentError: op is no ReduceOp.
        DtypeError: AVG of integers.
    """
    if not isinstance(op, ReduceOp):
        raise ArgumentError(f"rank {rank}: {who}: expected a ReduceOp, got {op!r}")
    if op is ReduceOp.AVG and not is_float(array.dtype):
        raise DtypeError(f"rank {rank}: {who}: expected a float dtype for AVG, got {array.dtype.name}")


def check_weighted(who: str, rank: int, array: Array, weight: Array | None) -> None:
    """Refuse a weighted sum of integers, or a weight of another kind.

    Raises:
        DtypeError: the array is not float.
        ArgumentError: weight is no float64 (1,).
    """
    if not is_float(array.dtype):
        raise DtypeError(f"rank {rank}: {who}: expected a float dtype, got {array.dtype.name}")
    if weight is None:
        return
    shape, dtype = getattr(weight, "shape", None), getattr(weight, "dtype", None)
    if shape != (1,) or dtype != np.float64:
        got = f"{dtype} {shape}" if dtype is not None else repr(weight)
        raise ArgumentError(f"rank {rank}: {who}: expected weight of float64 (1,), got {got}")


def check_root(who: str, rank: int, root: int, world_size: int) -> None:
    """Refuse a root that is no rank.

    Raises:
        ArgumentError: not 0 <= root < world_size.
    """
    as_integer(f"rank {rank}: {who}", "root", root, 0, world_size)


def check_parts(who: str, rank: int, whole: Array, part: Array, world_size: int) -> None:
    """Refuse a whole that is not world_size parts.

    Raises:
        ShapeError: the sizes do not fit. DtypeError: the dtypes differ.
    """
    if whole.size != world_size * part.size:
        raise ShapeError(
            f"rank {rank}: {who}: expected {world_size} x {part.size} elements in all, got {whole.size}"
        )
    if whole.dtype != part.dtype:
        raise DtypeError(f"rank {rank}: {who}: expected one dtype, got {whole.dtype.name} and {part.dtype.name}")


def check_whole(who: str, rank: int, output: Array, source: Array, world_size: int) -> None:
    """Refuse two arrays that are not alike, or have no equal part for each rank.

    Raises:
        ShapeError: the sizes do not fit. DtypeError: the dtypes differ.
    """
    if source.size % world_size:
        raise ShapeError(f"rank {rank}: {who}: expected {world_size} equal parts, got {source.size} elements")
    if output.size != source.size:
        raise ShapeError(f"rank {rank}: {who}: expected output of {source.size} elements, as source, got {output.size}")
    check_parts(who, rank, source[:0], output[:0], 1)


def encode_object(who: str, rank: int, value: Any) -> bytes:
    """Host data as bytes, by JSON.

    Raises:
        DtypeError: it is no JSON data, or such that would come back as something else.
    """
    changed = _changed_by_json(value)
    if changed:
        raise DtypeError(f"rank {rank}: {who}: expected data that JSON keeps as it is, got {changed}")
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        raise DtypeError(f"rank {rank}: {who}: expected JSON data, got {type(value).__name__}: {error}") from error


def _changed_by_json(value: Any) -> str:
    """The first part of a value that would come back as another, and what to write instead; empty where none would."""
    if hasattr(value, "dtype"):
        return f"{value!r:.60}: write item() or tolist(), or send tensors by all_gather or broadcast"
    if isinstance(value, tuple):
        return f"the tuple {value!r:.60}: make it a list"
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                return f"the key {key!r:.60} of a dict: make it a string"
        return next(filter(None, map(_changed_by_json, value.values())), "")
    return next(filter(None, map(_changed_by_json, value)), "") if isinstance(value, list) else ""


def decode_object(data: bytes) -> Any:
    """What `encode_object` made bytes of."""
    return json.loads(data)
