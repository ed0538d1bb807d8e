"""The picture of lesson 4: what stands on the board of an all-reduce of threads, as the ranks come."""

from __future__ import annotations

import time

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.backend.thread import new_thread
from minigrad.course.drawing import Cell, grid
from minigrad.course.lesson04_machines.solution import Threads, get_thread_communicators

RANKS, ORDER, NUMBERS = 3, (1, 2, 0), (1.0, 10.0, 100.0)


def picture() -> str:
    """A row for each moment: the board's slots, then the array of each rank."""
    comms = get_thread_communicators(RANKS, 30.0)
    first = comms[0]
    assert isinstance(first, Threads)
    arrays = [np.array([number]) for number in NUMBERS]
    moments = [("before", _row(first, arrays))]
    threads = []
    for rank in ORDER:
        threads.append(new_thread(_all_reduce, comms[rank], arrays[rank]))
        threads[-1].start()
        while rank != ORDER[-1] and rank not in first.board.calls.get(0, {}):
            time.sleep(0.001)
        if rank != ORDER[-1]:
            moments.append((f"rank {rank} calls, and waits", _row(first, arrays)))
    for thread in threads:
        thread.join()
    moments.append((f"rank {ORDER[-1]} calls: all go on", _row(first, arrays)))
    columns = [f"slot of rank {rank}" for rank in range(RANKS)] + [f"array of rank {rank}" for rank in range(RANKS)]
    names, cells = zip(*moments)
    return grid("An all_reduce of three threads over a board", names, columns, cells)


def _all_reduce(comm: Threads, array: Array) -> None:
    comm.all_reduce(array).wait()


def _row(comm: Threads, arrays: list[Array]) -> list[Cell]:
    """What stands on the board, and what the ranks have."""
    call = comm.board.calls.get(0, {})
    slots: list[Cell] = [
        (f"{call[rank][1][0]:g}", "a copy on the board") if rank in call else "" for rank in range(RANKS)
    ]
    kinds = ["the rank's own" if array[0] == number else "the sum" for array, number in zip(arrays, NUMBERS)]
    return [*slots, *((f"{array[0]:g}", kind) for array, kind in zip(arrays, kinds))]
