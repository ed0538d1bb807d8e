"""Virtual devices that one thread drives: a Graph trains on them with true numbers, on modelled time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.backend.device import CPU
from minigrad.backend.dtypes import Array
from minigrad.backend.timer import HostTimer
from minigrad.distributed import collectives as in_memory
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.distributed.simulate.cluster import Cluster, RankCost, check_cluster
from minigrad.distributed.simulate.trace import Recorder, Times, Trace


class SimulatedDevices:
    """The ranks of a virtual cluster as devices of one process, for `Graph.distribute` and `Trainer.setup`.

    Each replica computes on the CPU; how long that takes is what the cluster says. A collective starts when the last
    device has computed, and brings all clocks to its end. One seed gives one trace.

    Args:
        cluster: What computing costs on each device, and the link between them.

    Raises:
        ArgumentError: it is no cluster.

    Example:
        >>> from minigrad import FlowBuilder, nn, optim, randn
        >>> graph = FlowBuilder.from_(nn.Linear(3, 1)).build()
        >>> devices = SimulatedDevices(Cluster.of_speeds([3, 1]))
        >>> graph.distribute(graph.replicate, devices)
        >>> graph.set_optimizer(lambda params: optim.SGD(params, lr=0.1))
        >>> for _ in range(10):
        ...     graph(randn(80, 3)).square().mean().backward()
        ...     graph.step()
        >>> [round(share, 2) for share in graph.chunk_ratios]
        [0.75, 0.25]
    """

    def __init__(self, cluster: Cluster) -> None:
        check_cluster("SimulatedDevices", cluster)
        self.cluster = cluster
        self.devices = (CPU,) * cluster.world_size
        self.models = tuple(_model(cost) for cost in cluster.ranks)
        self._recorders = tuple(Recorder() for _ in cluster.ranks)
        self.clocks = tuple(VirtualClock(cluster, rank, notes) for rank, notes in enumerate(self._recorders))

    @property
    def trace(self) -> Trace:
        """Computing, waiting and communication so far, and every decision with its reason."""
        return Trace.of(self._recorders)

    @property
    def collectives(self) -> SimulatedDevices:
        """Its own methods."""
        return self

    def timer(self, rank: int) -> HostTimer:
        """A timer that reads a device's virtual clock."""
        return HostTimer(self.clocks[rank].now_s)

    def event(self, kind: str, **fields: Any) -> None:
        """Note a decision and its reason, at the virtual time of device 0."""
        self._recorders[0].decided({"kind": kind, "at_s": self.clocks[0].now_s(), **fields})

    def all_reduce(self, arrays: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
        """Overwrite every array by the reduction of all of them."""
        nbytes = int(arrays[0].nbytes)
        in_memory.all_reduce(arrays, op)
        self._pass("all_reduce", nbytes)

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Overwrite every array by the root's."""
        in_memory.broadcast(arrays, root)
        self._pass("broadcast", int(arrays[0].nbytes))

    def _pass(self, kind: str, nbytes: int) -> None:
        """Let a collective take its time on all clocks."""
        for clock in self.clocks:
            clock.settle()
        started_s = max(clock.now_s() for clock in self.clocks)
        steps = max(clock.local_steps for clock in self.clocks)
        over_s = started_s + self.cluster.link.cost_s(kind, nbytes, self.cluster.world_size, local_steps=steps)
        for clock, recorder in zip(self.clocks, self._recorders):
            told = {"collective": kind, "called_s": clock.now_s()}
            recorder.needs(recorder.called(Times(started_s, over_s), nbytes, told), clock.now_s())
            clock.wait_until(over_s, started_s)
            clock.local_steps = 0


def _model(cost: RankCost) -> str:
    return f"simulated, {cost.fixed_s:g} s + {cost.per_sample_s:g} s a sample"
