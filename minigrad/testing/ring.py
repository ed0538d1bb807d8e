"""An all-reduce by messages that goes around in a ring."""

from __future__ import annotations

from minigrad.distributed.algorithms import Scheduled, ring
from minigrad.distributed.comm.protocol import Communicator


class RingAllReduce(Scheduled):
    """A communicator whose `all_reduce` goes around in a ring of its ranks, by `send` and `recv`; it blocks.

    The array is cut into as many parts as there are ranks. In each step a rank sends a part to its right and takes one
    from its left: at first it adds that to its own, so that after world_size - 1 steps each rank has one part of the
    sum, and then the sums go round; see `minigrad.distributed.algorithms.ring`. All ranks get the same bits, which are
    not those of the order in which other communicators add up.

    Example:
        >>> import numpy as np
        >>> from minigrad.distributed import run
        >>> def body(comm):
        ...     array = np.full(5, comm.rank + 1.0)
        ...     RingAllReduce(comm).all_reduce(array).wait()
        ...     return array.tolist()
        >>> run(body, 3)[0]
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm, ring)
