"""Dealing: pure functions that say which rows of which files a rank reads in an epoch, and in which order.

Rows are numbered by file and place in it. An epoch is a row of blocks, runs of rows that follow each other in a file;
a rank takes a stretch of it, and reads that pool by pool. Any place of it can be had without what is before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.data.order import Indices, permutation

DEALS = ("rows", "files")
Run = tuple[int, int, int]  # of the file with this number, the rows [start, stop)
Blocks = np.ndarray[Any, np.dtype[np.int64]]  # a run in each line


def files_by_rank(lengths: Sequence[int], world_size: int) -> list[list[int]]:
    """Whole files for each rank: the longest first, each to the rank with the fewest rows so far.

    The rank with the most rows, which is the first one, has at most those of the one with the fewest, and one file
    more. (Graham, "Bounds on multiprocessing timing anomalies", 1969.)

    Args:
        lengths: Rows of each file.

    Example:
        >>> files_by_rank([5, 2, 4], 2)
        [[1, 2], [0]]
    """
    files: list[list[int]] = [[] for _ in range(world_size)]
    rows = [0] * world_size
    for file in sorted(range(len(lengths)), key=lambda file: (-lengths[file], file)):
        rank = rows.index(min(rows))
        files[rank].append(file)
        rows[rank] += lengths[file]
    by_rows = sorted(range(world_size), key=lambda rank: -rows[rank])
    return [sorted(files[rank]) for rank in by_rows]


def rank_counts(lengths: Sequence[int], world_size: int, deal: str, mode: str) -> list[int]:
    """How many samples each rank reads in an epoch.

    Args:
        lengths: Rows of each file.
        deal: "rows": of all rows each rank takes a part, those of two ranks differ by at most one. "files": see
            `files_by_rank`.
        mode: "exact": each row once. "drop": all ranks read as many as the one with the fewest. "pad": as many as the
            one with the most, beginning again at their end.
    """
    if deal == "rows":
        each, rest = divmod(sum(lengths), world_size)
        counts = [each + (rank < rest) for rank in range(world_size)]
    else:
        counts = [sum(lengths[file] for file in files) for files in files_by_rank(lengths, world_size)]
    if mode == "exact":
        return counts
    return [min(counts) if mode == "drop" else max(counts)] * world_size


def blocks_of(lengths: Sequence[int], files: Sequence[int], most: int | None = None) -> Blocks:
    """The rows of some files in their own order, in blocks of `most` rows; by default a file is one block."""
    found = [
        (file, start, min(start + (most or lengths[file]), lengths[file]))
        for file in files
        for start in range(0, lengths[file], most or lengths[file])
    ]
    return np.array(found, np.int64).reshape(-1, 3)


def runs_at(blocks: Blocks, start: int, count: int) -> list[Run]:
    """The rows at [start, start + count) of all those that blocks hold; behind the last one comes the first again.

    Example:
        >>> runs_at(blocks_of([5, 2], [0, 1]), 4, 4)
        [(0, 4, 5), (1, 0, 2), (0, 0, 1)]
    """
    ends = np.cumsum(blocks[:, 2] - blocks[:, 1])
    found: list[Run] = []
    while count:
        start %= int(ends[-1])
        number = int(np.searchsorted(ends, start, side="right"))
        file, first, stop = (int(value) for value in blocks[number])
        first = stop - (int(ends[number]) - start)
        taken = min(count, stop - first)
        found.append((file, first, first + taken))
        start, count = start + taken, count - taken
    return found


def pool_order(count: int, seed: int, epoch: int, place: int) -> Indices:
    """The shuffle of a pool of so many rows whose first one is at this place of the epoch."""
    return permutation(count, seed, epoch, part=1 + place)
