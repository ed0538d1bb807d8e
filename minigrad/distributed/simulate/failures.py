"""When ranks fail, and are there again. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minigrad.arguments import as_amount, as_integer, as_real, keep_as
from minigrad.backend.dtypes import Array
from minigrad.data.order import WORD


@dataclass(frozen=True)
class FailureTimes:
    """When ranks fail: made by `Cluster.failures`.

    Attributes:
        world_size: Ranks, >= 1.
        mtbf_s: The mean time for which one works, > 0; infinity for ever.
        repair_s: From a failure until it is there again, >= 0.
        seed: In [0, 2**64).

    Raises:
        ArgumentError: a number out of its range.
    """

    world_size: int
    mtbf_s: float
    repair_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "world_size", least=1)
        keep_as(self, as_real, "mtbf_s", above=0.0)
        keep_as(self, as_amount, "repair_s")
        keep_as(self, as_integer, "seed", least=0, end=WORD)

    def uptimes_s(self, number: int) -> Array:
        """How long each rank works after it came for the number-th time, from 0: (world_size,) seconds."""
        if math.isinf(self.mtbf_s):
            return np.full(self.world_size, math.inf)
        draws = np.random.Generator(np.random.Philox(key=np.array([self.seed, number], np.uint64)))
        return draws.exponential(self.mtbf_s, self.world_size)


class Lives:
    """Which ranks are there, as time passes."""

    def __init__(self, failures: FailureTimes) -> None:
        self._failures, self._uptimes = failures, [failures.uptimes_s(0)]
        self.fails_at = self._uptimes[0].copy()
        self._back_at = np.zeros(failures.world_size)
        self._times = np.zeros(failures.world_size, np.int64)  # that each rank has failed
        self.count = 0

    def present(self, now_s: float) -> Array:
        """Who is there."""
        return self._back_at <= now_s

    def all_back_s(self) -> float:
        """When all of them are there again, if none fails until then."""
        return float(self._back_at.max())

    def next_back_s(self, now_s: float) -> float:
        """When the first of those that are away comes back."""
        return float(np.min(self._back_at, where=self._back_at > now_s, initial=math.inf))

    def fail(self, ranks: Array) -> None:
        """Let ranks fail, each when its time has come."""
        for rank in np.flatnonzero(ranks):
            self._times[rank] += 1
            while len(self._uptimes) <= self._times[rank]:
                self._uptimes.append(self._failures.uptimes_s(len(self._uptimes)))
            self._back_at[rank] = self.fails_at[rank] + self._failures.repair_s
            self.fails_at[rank] = self._back_at[rank] + self._uptimes[self._times[rank]][rank]
            self.count += 1
