"""The picture of lesson 2: who holds which part of the sum, before, between and after the two halves."""

from __future__ import annotations

import numpy as np

from minigrad.course.drawing import Cell, grid
from minigrad.distributed import Communicator, run

RANKS = 3


def states(comm: Communicator) -> list[list[int]]:
    """What a rank holds of each part: before, after reduce_scatter, after all_gather; 0 is nothing."""
    own = np.full(comm.world_size, 10**comm.rank)
    part = np.empty(1, own.dtype)
    before = own.tolist()
    comm.reduce_scatter(part, own.copy()).wait()
    between = [int(part[0]) if rank == comm.rank else 0 for rank in range(comm.world_size)]
    comm.all_gather(own, part).wait()
    return [before, between, own.tolist()]


def picture() -> str:
    """A table of the three moments."""
    found = run(states, RANKS)
    rows, cells = [], []
    for i, moment in enumerate(["before", "after reduce_scatter", "after all_gather"]):
        for rank in range(RANKS):
            rows.append(f"{moment}, rank {rank}")
            cells.append([_cell(value, i) for value in found[rank][i]])
    return grid("An all-reduce is a reduce-scatter and an all-gather", rows, [f"part {r}" for r in range(RANKS)], cells)


def _cell(value: int, moment: int) -> Cell:
    return (str(value), "of this rank" if moment == 0 else "sum over the ranks") if value else ""
