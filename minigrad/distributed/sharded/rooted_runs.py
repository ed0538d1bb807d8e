"""A bucket that ranks own in runs of unequal lengths: each travels to its owner by `reduce`, back by `broadcast`.

On a ring both together move what an all-reduce of the bucket does, added up over the ranks, without padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.sharded.runs import Run


def reduce_runs(comm: Communicator, whole: Array, runs: Sequence[Sequence[Run]]) -> list[Work]:
    """Overwrite the runs of each rank, on that rank, by their sum over the ranks; others then hold anything.

    Args:
        whole: 1-D.
        runs: Of each rank, elements of it.
    """
    return [comm.reduce(whole[start:stop], rank) for rank, own in enumerate(runs) for start, stop in own]


def broadcast_runs(comm: Communicator, whole: Array, runs: Sequence[Sequence[Run]]) -> list[Work]:
    """Overwrite the runs of each rank by what they are there."""
    return [comm.broadcast(whole[start:stop], rank) for rank, own in enumerate(runs) for start, stop in own]


class DeliveredTogether:
    """Several works of one bucket, whose result is brought to where it belongs by who waits.

    Args:
        works: In the order in which they were launched.
        deliver: Called once all are over, or ordered before the current stream.
    """

    def __init__(self, works: Sequence[Work], deliver: Callable[[], None] | None = None) -> None:
        self._works, self._deliver = works, deliver

    def wait(self) -> None:
        """Return once the result is there, or is ordered before what the caller's stream does next."""
        for work in self._works:
            work.wait()
        if self._deliver is not None:
            self._deliver()
