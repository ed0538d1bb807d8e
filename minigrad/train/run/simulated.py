"""Ranks that a coordinator directs, on a virtual cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minigrad.autograd.before import watching_backwards
from minigrad.distributed.living.lifeline import OUTSIDE
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.distributed.simulate.trace import Recorder, Trace
from minigrad.distributed.simulate.wire import Wire
from minigrad.nn.watch import watching_calls
from minigrad.train import coordinator as c
from minigrad.train.run.desk import Desk
from minigrad.train.run.directed import Body, Directed
from minigrad.train.run.letters import RankLine
from minigrad.train.run.virtual import VirtualTurns, VirtualLine


class Simulated(Directed):
    """The same on a virtual cluster: letters take time on its link, and one run is like the other.

    Args:
        cluster: What computing and messages cost.
    """

    def __init__(
        self, config: c.CoordinatorConfig, body: Body, cluster: Cluster, *, timeout_s: float, **desk: Any
    ) -> None:
        self._cluster, self._wire = cluster, Wire(cluster.link, cluster.world_size)
        self._recorders = [Recorder() for _ in cluster.ranks]
        self._turns = VirtualTurns([OUTSIDE, *range(cluster.world_size)], 2 * timeout_s)
        super().__init__(config, body, timeout_s=timeout_s, **desk)

    @property
    def trace(self) -> Trace:
        """What the ranks did."""
        return Trace.of(self._recorders, [self.results.get(rank) for rank in range(self._cluster.world_size)])

    def _latency_s(self, src: int, dst: int) -> float:
        return self._cluster.link.message_s(0, max(src, 0), max(dst, 0))

    def _make_desk(self, state: c.Coordinator, options: dict[str, Any]) -> Desk:
        self._outside = VirtualLine(self._office.outside, self._turns, self._latency_s)
        return Desk(state, self._outside, self._outside.now_s, drop=self._outside.drop, **options)

    @contextmanager
    def _living(self, rank: int) -> Iterator[RankLine]:
        clock = VirtualClock(self._cluster, rank, self._recorders[rank])
        self._turns.enter(rank)
        try:
            with self._office.rank(rank) as real, watching_calls(clock), watching_backwards(clock):
                line = VirtualLine(real, self._turns, self._latency_s, clock, self._recorders[rank], self._wire)
                try:
                    yield line
                except BaseException as error:
                    if not self._turns.over(rank):
                        line.died(rank, f"it raised {type(error).__name__}: {error}", error)
                    raise
        finally:
            self._turns.end(rank, "it has ended")

    def _direct(self) -> c.Coordinator:
        self._turns.begin()
        self._turns.enter(OUTSIDE)
        try:
            return super()._direct()
        except BaseException as error:
            for rank in range(self._cluster.world_size):
                self._turns.end(rank, f"the coordinator has failed: {error!r}")
            raise
        finally:
            self._turns.end(OUTSIDE, "it has ended")
