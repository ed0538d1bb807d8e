"""Norms of several arrays as one vector: the sum of squares, and the largest absolute value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.pieces import Pieces, pieces_of
from minigrad.backend.kernels import KernelLoader, kernels_for, suffix_of
_CHUNK = 4096  # elements that one block measures at a time


def sum_of_squares(arrays: Sequence[Array]) -> Array:
    """Σ x² over all elements, in float64 whatever the dtypes; no axes.

    Args:
        arrays: At least one; contiguous and float, all on one device.
    """
    loader = kernels_for(arrays[0])
    if loader is not None:
        return _measure(loader, "squares", "finish_sum", arrays)
    wide = [array.reshape(-1).astype(np.float64, copy=False) for array in arrays]
    return np.asarray(sum(np.dot(vector, vector) for vector in wide))


def largest(arrays: Sequence[Array]) -> Array:
    """max |x| over all elements, in float64; 0 where there are none, NaN where one is. No axes.

    Args:
        arrays: As for `sum_of_squares`.
    """
    loader = kernels_for(arrays[0])
    if loader is not None:
        return _measure(loader, "largest", "finish_max", arrays)
    found = [np.abs(array).max() for array in arrays if array.size]
    return np.asarray(np.max(np.asarray(found, np.float64)) if found else 0.0)


def _measure(loader: KernelLoader, kernel: str, finish: str, arrays: Sequence[Array]) -> Array:
    """Arrays of one dtype by one launch, and all blocks by one more."""
    dtypes = dict.fromkeys([array.dtype for array in arrays])
    launches = [
        (f"{kernel}_{suffix_of(dtype)}", pieces, min(pieces.chunks, loader.max_blocks))
        for dtype in dtypes
        for pieces in _pieces([array for array in arrays if array.dtype == dtype])
    ]
    xp = array_module(arrays[0])
    if not launches:
        return xp.zeros((), np.float64)
    of_blocks, result = xp.empty(sum([blocks for *_, blocks in launches]), np.float64), xp.empty((), np.float64)
    first = 0
    for name, pieces, blocks in launches:
        args = (pieces.argument, of_blocks[first : first + blocks])
        loader.launch("norm", name, blocks, loader.threads, args, reaches=pieces.arrays)
        first += blocks
    finish_blocks(loader, of_blocks, result, finish)
    return result


def _pieces(arrays: Sequence[Array]) -> Iterator[Pieces]:
    return pieces_of(arrays, [0] * len(arrays), _CHUNK)


def finish_blocks(loader: KernelLoader, of_blocks: Array, result: Array, kernel: str = "finish_sum") -> None:
    """Combine what the blocks of another kernel left, in a fixed order, into an array of one element."""
    loader.launch("norm", kernel, 1, loader.threads, (of_blocks, np.int64(of_blocks.size), result))
