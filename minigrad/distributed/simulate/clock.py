"""A rank's clock in a simulation: computing and collectives move it, real time does not."""

from __future__ import annotations

from minigrad.arguments import as_amount
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.distributed.simulate.trace import Recorder
from minigrad.errors import ArgumentError


class VirtualClock:
    """The virtual time of one rank.

    `compute` charges the forward part of a step at once. The backward part passes as `progress` tells how much of
    backward is done, and what is left of it before the rank waits for anything, so that buckets can travel meanwhile.

    Attributes:
        in_backward: Whether backward is under way, as far as `progress` told.
    """

    def __init__(self, cluster: Cluster, rank: int, recorder: Recorder) -> None:
        self._cluster, self._rank, self._recorder = cluster, rank, recorder
        self._now_s = 0.0
        self._owed_s = 0.0  # backward that has not passed yet
        self._backward_s = 0.0
        self.in_backward = False
        self._step = 0

    def now_s(self) -> float:
        """Seconds of virtual time since the start."""
        return self._now_s

    def compute(self, samples: float) -> None:
        """Compute on so many samples, forward and backward.

        Raises:
            ArgumentError: samples is no number >= 0.
        """
        samples = as_amount("VirtualClock.compute", "samples", samples)
        self.settle()
        total_s = self._cluster.compute_s(self._rank, samples, self._step)
        self._backward_s = self._owed_s = total_s * self._cluster.backward_fraction
        self._step += 1
        self._recorder.compute(self._now_s, total_s, samples)
        self._now_s += total_s - self._owed_s

    def progress(self, fraction: float) -> None:
        """So much of the backward under way is done: 0 at its start, 1 at its end.

        Raises:
            ArgumentError: fraction is not in [0, 1].
        """
        if not 0.0 <= fraction <= 1.0:
            raise ArgumentError(f"VirtualClock.progress: expected a fraction in [0, 1], got {fraction!r}")
        self.in_backward = fraction < 1.0
        left_s = self._backward_s * (1.0 - fraction)
        if self._owed_s > left_s:
            self._now_s += self._owed_s - left_s
            self._owed_s = left_s

    def settle(self) -> None:
        """Let the rest of the backward pass."""
        self._now_s += self._owed_s
        self._owed_s = self._backward_s = 0.0
        self.in_backward = False

    def arrive_s(self) -> float:
        """When the rank calls a collective, or waits for one.

        In the midst of a backward that is at once, else the backward is over.
        """
        if not self.in_backward:
            self.settle()
        return self._now_s

    def wait_until(self, moment_s: float, started_s: float) -> None:
        """Wait for a collective that all ranks had called at started_s and that is over at moment_s.

        A wait in the midst of a backward leaves the rest of it for later.
        """
        now_s = self.arrive_s()
        if moment_s > now_s:
            idle_s = max(0.0, started_s - now_s)
            self._recorder.wait(now_s, idle_s, moment_s - now_s - idle_s)
            self._now_s = moment_s
