"""The picture of lesson 3: what three all-reduces cost, by the size of the array, as they were run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.course.drawing import curves
from minigrad.course.lesson03_ring.solution import doubling_all_reduce, ring_all_reduce
from minigrad.distributed import Communicator, simulate
from minigrad.distributed.algorithms import Scheduled, halving_doubling

AllReduce = Callable[[Array, Communicator], object]
WORLD_SIZE = 8
LINK = simulate.Link(latency_s=50e-6, bandwidth_bytes_s=1.25e9)  # 10 Gbit/s
SIZES = [2**power for power in range(10, 23, 2)]  # bytes


def halving_all_reduce(array: Array, comm: Communicator) -> None:
    """Halve what a rank is in charge of in each round, then put the finished halves together again.

    For a power of two of ranks: 2 log2 W rounds, and 2 (W - 1) / W of the bytes. Rabenseifner, 2004.
    """
    Scheduled(comm, halving_doubling).all_reduce(array).wait()


def seconds(all_reduce: AllReduce, nbytes: int, world_size: int = WORLD_SIZE, link: simulate.Link = LINK) -> float:
    """What an all-reduce of float32 takes on a virtual cluster."""

    def body(comm: Communicator) -> float:
        all_reduce(np.ones(nbytes // 4, np.float32), comm)
        return comm.clock.now_s()

    cluster = simulate.Cluster((simulate.RankCost(),) * world_size, link)
    times: list[float] = simulate.run(body, cluster, timeout_s=30.0).results
    return max(times)


def picture() -> str:
    """Three lines, two of which cross; each point is a run."""
    kinds: dict[str, AllReduce] = {
        "ring": ring_all_reduce,
        "recursive doubling": doubling_all_reduce,
        "halving and doubling": halving_all_reduce,
    }
    lines = {name: [(size / 1024, 1e3 * seconds(kind, size)) for size in SIZES] for name, kind in kinds.items()}
    title = f"An all-reduce over {WORLD_SIZE} ranks, 50 us a message, 1.25 GB/s"
    return curves(title, lines, x="array (KiB)", y="time (ms)", log_x=True, log_y=True)
