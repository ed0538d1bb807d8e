"""Which rank handed in a gradient that is infinite or NaN: found while gradients are weighted, told when asked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator
from minigrad.distributed.ddp.buckets import BucketPlan


class NonFinite(NamedTuple):
    """A bucket of a rank that was not finite.

    Attributes:
        parameters: The names of those in the bucket, one of which it was.
    """

    rank: int
    bucket: int
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"rank {self.rank}, bucket {self.bucket}: {', '.join(self.parameters)}"


class NonFiniteFlags:
    """A flag for each bucket of this rank, where the gradients live.

    What counts is what is sent: a value that is too large for the dtype of the wire is infinite there.
    """

    def __init__(self, comm: Communicator, plan: BucketPlan) -> None:
        self._comm, self._plan = comm, plan
        with comm.device.current() as xp:
            self._flags: Array = xp.zeros(len(plan.buckets), np.uint32)

    def of(self, bucket: int) -> Array:
        """The flag of one bucket, uint32 (1,)."""
        return self._flags[bucket : bucket + 1]

    def take(self) -> list[NonFinite]:
        """What all ranks found since the last time; all of them call this, and it waits for their devices."""
        with self._comm.device.current() as xp:
            gathered = xp.empty(self._comm.world_size * self._flags.size, np.uint32)
            self._comm.all_gather(gathered, self._flags).wait()
            self._flags[...] = 0
        table = to_host(gathered).reshape(self._comm.world_size, -1)
        buckets = [tuple(self._plan.names[i] for i in bucket.entries) for bucket in self._plan.buckets]
        return [NonFinite(int(rank), int(i), buckets[i]) for rank, i in np.argwhere(table)]
