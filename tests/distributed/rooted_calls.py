"""Each call after which ranks hold different things, once, and what it has to leave on a rank."""

import numpy as np

from minigrad.distributed import ReduceOp


def every_call(comm, root, xp):
    """What each of the four leaves on this rank, as lists."""
    rank, size = comm.rank, comm.world_size
    total, mean = xp.full((2, 2), rank + 1.0), xp.full(1, rank + 1.0, np.float32)
    whole = xp.zeros((size, 2), np.float16) if rank == root else None
    source = xp.arange(2.0 * size) if rank == root else None
    part, turned = xp.zeros(2), xp.zeros((size, 3), np.int64)
    works = [
        comm.reduce(total, root),
        comm.reduce(mean, root, ReduceOp.AVG),
        comm.gather(whole, xp.full(2, rank + 0.5, np.float16), root),
        comm.scatter(part, source, root),
        comm.all_to_all(turned, xp.arange(3 * size) + 100 * rank),
    ]
    for work in works:
        work.wait()
    return [None if x is None else x.tolist() for x in (total, mean, whole, part, turned)]


def expected(rank, root, size):
    """The same, by hand."""
    ranks, is_root = range(size), rank == root
    return [
        [[float(sum(ranks) + size if is_root else rank + 1)] * 2] * 2,
        [(size + 1) / 2 if is_root else rank + 1.0],
        [[r + 0.5] * 2 for r in ranks] if is_root else None,
        [2.0 * rank, 2.0 * rank + 1],
        [[100 * r + 3 * rank + i for i in range(3)] for r in ranks],
    ]
