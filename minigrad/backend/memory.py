"""Flat layouts: where each of many arrays lies in one. And what a process does with memory that it freed."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import Place, array_module, device_of, place_of, to_place
from minigrad.backend.dtypes import Array

ALIGN_BYTES = 64  # a cache line; wide enough for every vector load


def aligned_offsets(sizes: Sequence[int], itemsize: int, align_bytes: int = ALIGN_BYTES) -> tuple[list[int], int]:
    """Place arrays of these sizes one after the other, each start aligned.

    Args:
        sizes: Elements of each array, >= 0.
        itemsize: Bytes of an element; a divisor of align_bytes.

    Returns:
        The offset of each array in elements, and the total number of elements, padding included.
    """
    step = align_bytes // itemsize
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // step) * step
    return offsets, end


def aligned_zeros(count: int, dtype: np.dtype[Any], xp: Any = np) -> Array:
    """A 1-D array of zeros whose memory starts on a cache line (CuPy's always does)."""
    if xp is not np:
        return xp.zeros(count, dtype)
    raw = np.zeros(count * dtype.itemsize + ALIGN_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + count * dtype.itemsize].view(dtype)


def contiguous(array: Array) -> Array:
    """The array itself where it lies in C order without gaps, else a copy that does."""
    return array if array.flags.c_contiguous else array_module(array).ascontiguousarray(array)


def duplicate(array: Array) -> Array:
    """A copy where the array lies; what CuPy calls copy() goes to the GPU that is current."""
    if array.__class__ is np.ndarray:
        return array.copy()
    with device_of(array).current():
        return array.copy()


def one_like(array: Array) -> Array:
    """1 in the shape and dtype of an array of one element, beside it; kept, so nobody writes to it."""
    return _kept_one(array.shape, array.dtype, place_of(array))


@functools.lru_cache(maxsize=64)
def _kept_one(shape: tuple[int, ...], dtype: np.dtype[Any], place: Place) -> Array:
    return to_place(np.ones(shape, dtype), place)


def address_of(array: Array) -> int:
    """Where the first element of an array lies; CUDA devices and the host share one range of addresses."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def is_read_only(array: Array) -> bool:
    """Whether nobody may write to an array; CuPy knows no such arrays."""
    return not getattr(array.flags, "writeable", True)


def is_stretched(array: Array) -> bool:
    """Whether several elements of an array lie in one place, as those of an expanded one do."""
    return bool(array.size) and any(n > 1 and step == 0 for n, step in zip(array.shape, array.strides))


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
_KEPT_BYTES = 2**30


def same_part(view: Array, whole: Array, other: Array) -> Array:
    """What of another array lies where a view lies in a whole one.

    Args:
        view: Any view of whole.
        whole, other: Contiguous, of one shape, dtype and device.
    """
    if view is whole:
        return other
    start = (address_of(view) - address_of(whole)) // whole.dtype.itemsize if view.size else 0
    tricks = array_module(other).lib.stride_tricks
    part: Array = tricks.as_strided(other.reshape(-1)[start:], view.shape, view.strides)
    if is_read_only(view):
        part.flags.writeable = False
    return part


def keep_freed_memory() -> bool:
    """Let this process keep freed memory for the next allocation, instead of handing it back to the system.

    A step frees and allocates the same large arrays again and again; each time the system has to map them page by
    page. For those who train with an optimizer, `workspace` keeps most of them; for evaluation, and for operations
    that do not ask it, this does. It costs what the largest step had in use, and holds for the whole process, which is
    why nothing calls it unasked: `Trainer.start` takes keep_memory=True, and the launcher --keep-memory, for all ranks.

    Returns:
        Whether the C library could do it: glibc can, others can't.
    """
    mallopt = _of_the_c_library("mallopt")
    options = (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    return mallopt is not None and all(mallopt(option, _KEPT_BYTES) for option in options)


def environment_that_keeps_memory() -> dict[str, str]:
    """What makes a process keep freed memory from its beginning, as `keep_freed_memory` does, when it is started."""
    return dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(_KEPT_BYTES))


def can_keep_freed_memory() -> bool:
    """Whether the C library is glibc, whose processes can keep freed memory."""
    return _of_the_c_library("gnu_get_libc_version") is not None


def _of_the_c_library(name: str) -> Any:
    """A function of the C library of this process; None where there is none of that name."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError, TypeError):
        return None
