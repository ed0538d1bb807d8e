"""Rows of a table picked by integers, and the sums that go back to it. The reference is `minigrad.ops.index`."""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import int64, launch_of, loader_for, suffix_of
from minigrad.backend.memory import contiguous

_WARP = 32
_MOST_LOOKS = 2**28  # at an index, by a lane each; beyond it sorting takes less
_NONE = np.int64(-1)


def pick_rows(table: Array, index: Array, found: Array | None) -> Array:
    """table[index].

    Shapes:
        table: (V, D), V > 0, index: (...) -> (..., D)

    Args:
        found: Where an index outside [0, V) is kept, see `minigrad.backend.flags`; it wraps around.
    """
    table, names = contiguous(table), _names(index)
    loader, (length, width) = loader_for(table), table.shape
    out = array_module(table).empty((*index.shape, width), table.dtype)
    if out.size:
        launch = launch_of(loader, "embedding", "embedding_pick", table.dtype, names.size * _WARP)
        args = (table, names, int64(names.size), int64(length), int64(width), found, out)
        loader.launch(*launch, args)
    return out


def sum_rows(
    rows: Array, index: Array, length: int, skipped: int | None = None, out: Array | None = None
) -> Array:
    """For each number in [0, length) the sum of the rows that it names, always in one order; of halves in float32.

    Shapes:
        rows: (N, D), index: (N,) -> (length, D)

    Args:
        index: Of integers; out of range they wrap around.
        skipped: A number that gets 0.
        out: Where the sums go: contiguous, in the dtype of rows.
    """
    rows, names = contiguous(rows), _names(index)
    loader, xp, width = loader_for(rows), array_module(rows), rows.shape[1]
    if out is None:
        out = xp.empty((length, width), rows.dtype)
    tiles, order = -(-width // _WARP), None
    work = length * tiles
    if work * names.size > _MOST_LOOKS:
        names, work = names % length, names.size * tiles
        order = names.argsort()
        out[...] = 0
    if out.size:
        shape = (int64(names.size), int64(length), int64(width))
        args = (rows, names, order, *shape, _NONE if skipped is None else np.int64(skipped), out)
        name = f"embedding_sum_{suffix_of(rows.dtype)}"
        loader.launch("embedding", name, max(1, min(work, loader.max_blocks)), loader.threads, args)
    return out


def _names(index: Array) -> Array:
    return contiguous(index.reshape(-1)).astype(np.int64, copy=False)
