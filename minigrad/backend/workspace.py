"""Memory that the large arrays of a training step take in turns.

A step allocates the same large arrays again and again, and frees them all at its end. The C library hands such memory
back to the system, which maps it again page by page in the next step: a fifth of the time of a small network. Here it
is kept for as long as somebody trains: whoever lays out parameters holds the workspace, see `nn.flat`.

A block is free exactly while nobody but the workspace refers to it. Every array on it does, and every view of one, so
no two arrays ever share a block, whoever kept what of an earlier step.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from typing import Any

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import ALIGN_BYTES, duplicate

LEAST_BYTES = 32 * 1024  # smaller arrays are left to the C library, which keeps their memory
MOST_BYTES = 512 * 1024**2  # of all blocks; what does not fit is allocated as ever
MOST_ALIKE = 256  # blocks of one size, all of which are looked at where none is free
PATIENCE = 2048  # requests after which a block that nobody took is given up, when others are needed


class _Block:
    """One piece of memory, where in it arrays begin, and at which request it was last taken."""

    __slots__ = ("memory", "start", "taken")

    def __init__(self, nbytes: int) -> None:
        self.memory: Array = np.empty(nbytes + ALIGN_BYTES, np.uint8)
        self.start = -self.memory.ctypes.data % ALIGN_BYTES
        self.taken = 0

    def references(self) -> int:
        """How many there are to the memory."""
        return sys.getrefcount(self.memory)


class Workspace:
    """Blocks of host memory, each for one array at a time and the views of it.

    Several threads may ask; who comes while another is served gets ordinary memory.

    Attributes:
        nbytes: Of all blocks, free or not.
    """

    def __init__(self) -> None:
        self.nbytes = self._requests = 0
        self._blocks: dict[int, list[_Block]] = {}
        self._lock = threading.Lock()
        self._alone = _Block(0).references()

    def __deepcopy__(self, memo: dict[int, Any]) -> Workspace:
        """Itself: copies of what holds it, as of an optimizer, share it."""
        return self

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An array in C order, of any values."""
        nbytes = math.prod(shape) * dtype.itemsize
        if nbytes < LEAST_BYTES or not self._lock.acquire(blocking=False):
            return np.empty(shape, dtype)
        try:
            block = self._take(_rounded(nbytes))
            if block is not None:
                return np.ndarray(shape, dtype, block.memory, block.start)
        finally:
            self._lock.release()
        return np.empty(shape, dtype)

    def _take(self, nbytes: int) -> _Block | None:
        """A free block of this size; a new one where there is none, or None where that would be too much."""
        self._requests += 1
        found = next((block for block in self._blocks.get(nbytes, ()) if block.references() == self._alone), None)
        if found is None:
            self._give_up_unused()
            if self.nbytes + nbytes > MOST_BYTES or len(self._blocks.get(nbytes, ())) >= MOST_ALIKE:
                return None
            found = _Block(nbytes)
            self._blocks.setdefault(nbytes, []).append(found)
            self.nbytes += nbytes
        found.taken = self._requests
        return found

    def _give_up_unused(self) -> None:
        least = self._requests - PATIENCE
        for nbytes, blocks in list(self._blocks.items()):
            kept = [block for block in blocks if block.taken > least]
            self.nbytes -= nbytes * (len(blocks) - len(kept))
            if kept:
                self._blocks[nbytes] = kept
            else:
                del self._blocks[nbytes]


def _rounded(nbytes: int) -> int:
    """The size of a block for so many bytes: at most an eighth more, so that arrays of nearly one size share it."""
    step = 1 << max(nbytes.bit_length() - 4, 0)
    return -(-nbytes // step) * step


class _Nobody:
    """Stands in the place of a reference to the workspace before there is one."""

    def __call__(self) -> None:
        return None


_in_use: Any = _Nobody()


def shared_workspace() -> Workspace | None:
    """The workspace of this process, which lives while somebody holds it; None where references are not counted."""
    global _in_use
    if not hasattr(sys, "getrefcount") or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    found: Workspace | None = _in_use()
    if found is None:
        found = Workspace()
        _in_use = weakref.ref(found)
    return found


def empty(shape: tuple[int, ...], dtype: np.dtype[Any], like: Array) -> Array:
    """A new array in C order where another one lies, of any values: in the workspace, where there is one."""
    return _empty(array_module(like), shape, dtype)


def _empty(xp: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    workspace = _in_use() if xp is np else None
    return xp.empty(shape, dtype) if workspace is None else workspace.empty(shape, dtype)


def empty_like(x: Array) -> Array:
    """A new array of the shape, the dtype and the order in memory of another one."""
    if x.__class__ is not np.ndarray or x.nbytes < LEAST_BYTES:
        return array_module(x).empty_like(x)
    return empty_in_order(np, x.shape, memory_order(x), x.dtype)


def copied(x: Array) -> Array:
    """A copy of an array in C order, where it lies."""
    if x.__class__ is not np.ndarray or x.nbytes < LEAST_BYTES:
        return duplicate(x)
    found = empty_in_order(np, x.shape, None, x.dtype)
    found[...] = x
    return found


def memory_order(x: Array) -> tuple[int, ...] | None:
    """The axes of an array from the slowest to the fastest in its memory; None where they are in order."""
    if x.flags.c_contiguous:
        return None
    return tuple(sorted(range(x.ndim), key=lambda axis: -abs(x.strides[axis])))


def empty_in_order(xp: Any, shape: tuple[int, ...], order: tuple[int, ...] | None, dtype: np.dtype[Any]) -> Array:
    """A new array whose axes lie in memory in this order."""
    if order is None:
        return _empty(xp, shape, dtype)
    found = _empty(xp, tuple([shape[axis] for axis in order]), dtype)
    return found.transpose(sorted(range(len(order)), key=order.__getitem__))
