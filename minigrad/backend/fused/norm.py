"""Norms of several arrays as one vector: the sum of squares, and the largest absolute value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import KernelLoader, kernels_for, suffix_of

_ELEMENTS = 16  # that a thread measures before there are more blocks


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
    """Each array by its blocks, and all blocks by one more."""
    xp = array_module(arrays[0])
    blocks = [loader.blocks(-(-array.size // _ELEMENTS)) for array in arrays]
    of_blocks = xp.empty(sum(blocks), np.float64)
    first = 0
    for array, count in zip(arrays, blocks):
        part = of_blocks[first : first + count]
        args = (array.reshape(-1), np.int64(array.size), part)
        loader.launch("norm", f"{kernel}_{suffix_of(array.dtype)}", count, loader.threads, args)
        first += count
    result = xp.empty(1, np.float64)
    finish_blocks(loader, of_blocks, result, finish)
    return result.reshape(())


def finish_blocks(loader: KernelLoader, of_blocks: Array, result: Array, kernel: str = "finish_sum") -> None:
    """Combine what the blocks of another kernel left, in a fixed order, into an array of one element."""
    loader.launch("norm", kernel, 1, loader.threads, (of_blocks, np.int64(of_blocks.size), result))
