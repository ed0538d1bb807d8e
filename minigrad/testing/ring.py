"""An all-reduce by messages: what a communicator does, written down once by hand."""

from __future__ import annotations

import zlib

import numpy as np

from minigrad.backend.device import device_of
from minigrad.backend.dtypes import Array, is_half
from minigrad.distributed import ReduceOp, Work, Wrapper, collectives
from minigrad.distributed.comm.checks import check_array, check_reduction
from minigrad.distributed.comm.work import OVER


class RingAllReduce(Wrapper):
    """A communicator whose `all_reduce` goes around in a ring of its ranks, by `send` and `recv`; it blocks.

    The array is cut into as many parts as there are ranks. In each step a rank sends a part to its right and takes one
    from its left: at first it adds that to its own, so that after world_size - 1 steps each rank has one part of the
    sum, and then the sums go round. A rank sends 2 (W - 1) / W of the bytes, however many ranks there are: Patarasuk,
    Yuan: Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009. All ranks get the same bits, which
    are not those of the order in which other communicators add up.

    Example:
        >>> from minigrad.distributed import run
        >>> def body(comm):
        ...     array = np.full(5, comm.rank + 1.0)
        ...     RingAllReduce(comm).all_reduce(array).wait()
        ...     return array.tolist()
        >>> run(body, 3)[0]
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks, which give one layout or wait for each other in vain."""
        array = check_array("all_reduce", self.rank, array, device=self.device)
        check_reduction("all_reduce", self.rank, array, op)
        rank, size, tag = self.rank, self.world_size, zlib.crc32(layout.encode()) % 2**31
        left, right, sums = (rank - 1) % size, (rank + 1) % size, ReduceOp.SUM if op is ReduceOp.AVG else op
        with device_of(array).current() as xp:
            total = array.reshape(-1).astype(np.float32 if is_half(array.dtype) else array.dtype)
            parts = [total[total.size * r // size : total.size * (r + 1) // size] for r in range(size)]
            for step in range(2 * (size - 1)):
                mine, next_one = parts[(rank - step) % size], parts[(rank - step - 1) % size]
                came = xp.empty_like(next_one)
                sent = self.send(mine, right, tag)
                self.recv(came, left, tag).wait()
                sent.wait()
                next_one[...] = collectives.reduced([came, next_one], sums) if step < size - 1 else came
            array[...] = (total / size if op is ReduceOp.AVG else total).reshape(array.shape)
        return OVER
