"""Times of the nodes: each run counted, on the clock of the device, and never a wait."""

import itertools

import numpy as np
import pytest

from minigrad import FlowBuilder, Tensor, nn
from minigrad.backend.timer import HostTimer
from minigrad.errors import ShapeError
from tests.unit.graph.nets import batch, classifier


def ticking(device):
    """A timer whose every stretch takes a second."""
    ticks = itertools.count()
    return HostTimer(lambda: float(next(ticks)))


def test_each_node_is_timed_also_below():
    graph = classifier()
    graph.forward_batch(batch())
    assert graph.node_times() == {}
    graph.enable_profiling(ticking)
    for _ in range(3):
        graph.forward_batch(batch())
    times = graph.node_times()
    below = {f"encoder.{node.name}" for node in graph.encoder.wiring.nodes}
    assert set(times) == {node.name for node in graph.wiring.nodes} | below
    assert {(time.count, time.total_s, time.mean_s) for time in times.values()} == {(3, 3.0, 1.0)}
    assert graph.node_times() == times
    graph.disable_profiling()
    graph.forward_batch(batch())
    assert graph.node_times() == {}


def test_a_reading_that_comes_late_is_counted_when_it_is_there():
    """As a GPU's does: nobody waits for it."""
    late = []

    class Late(HostTimer):
        def read_s(self):
            return super().read_s() if late else []

    graph = FlowBuilder().through(nn.Tanh()).build()
    graph.enable_profiling(lambda device: Late(lambda: 0.0))
    for _ in range(2):
        graph(Tensor(np.ones(2)))
    assert graph.node_times()["tanh_0"].count == 0
    late.append(True)
    assert graph.node_times()["tanh_0"].count == 2


def test_replicas_are_timed_each_for_itself():
    graph = classifier()
    graph.attach(graph.replicate("cpu"))
    graph.enable_profiling(ticking)
    graph.replicas[1].forward_batch(batch())
    assert graph.node_times() == {} and graph.replicas[1].node_times()["sum"].count == 1


def test_a_node_that_fails_can_be_timed_again():
    graph = FlowBuilder().through(nn.Linear(3, 3)).build()
    graph.enable_profiling(ticking)
    with pytest.raises(ShapeError):
        graph(Tensor(np.ones((2, 7), np.float32)))
    graph(Tensor(np.ones((2, 3), np.float32)))
    assert graph.node_times()["linear_0"].count == 2
