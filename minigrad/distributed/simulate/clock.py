"""A rank's clock in a simulation: computing and collectives move it, real time does not."""

from __future__ import annotations

from minigrad.distributed.simulate.cluster import Cluster
from minigrad.distributed.simulate.trace import RankTrace


class VirtualClock:
    """The virtual time of one rank.

    `compute` charges the forward part of a step at once. The backward part passes as `progress` tells how much of
    backward is done, and what is left of it before the rank waits for anything, so that buckets can travel meanwhile.
    """

    def __init__(self, cluster: Cluster, rank: int, trace: RankTrace) -> None:
        self._cluster, self._rank, self._trace = cluster, rank, trace
        self._now_s = 0.0
        self._owed_s = 0.0  # backward that has not passed yet
        self._backward_s = 0.0
        self._in_backward = False
        self._step = 0

    def now_s(self) -> float:
        """Seconds of virtual time since the start."""
        return self._now_s

    def compute(self, samples: float) -> None:
        """Compute on so many samples, forward and backward."""
        self.settle()
        total_s = self._cluster.compute_s(self._rank, samples, self._step)
        self._backward_s = self._owed_s = total_s * self._cluster.backward_fraction
        self._step += 1
        self._trace.compute(self._now_s, total_s, samples)
        self._now_s += total_s - self._owed_s

    def progress(self, fraction: float) -> None:
        """So much of the backward under way is done: 0 at its start, 1 at its end."""
        self._in_backward = fraction < 1.0
        left_s = self._backward_s * (1.0 - fraction)
        if self._owed_s > left_s:
            self._now_s += self._owed_s - left_s
            self._owed_s = left_s

    def settle(self) -> None:
        """Let the rest of the backward pass."""
        self._now_s += self._owed_s
        self._owed_s = self._backward_s = 0.0
        self._in_backward = False

    def arrive_s(self) -> float:
        """When the rank calls a collective: in the midst of a backward at once, else with the backward behind it."""
        if not self._in_backward:
            self.settle()
        return self._now_s

    def wait_until(self, moment_s: float, started_s: float, kind: str) -> None:
        """Wait for a collective that all ranks had called at started_s and that is over at moment_s.

        A wait in the midst of a backward leaves the rest of it for later.
        """
        if moment_s > self._now_s:
            self._trace.wait(self._now_s, max(0.0, min(started_s, moment_s) - self._now_s), moment_s, kind)
            self._now_s = moment_s
