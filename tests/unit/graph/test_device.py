"""Graphs on the stand-in for CuPy: right values, and nothing waits for the device."""

from tests.device_suite.graphs import *  # noqa: F401, F403
from tests.device_suite.graphs import given, loss_of
from tests.unit.graph.nets import classifier


def test_nothing_waits(cuda, strict_cupy):
    graph, values = classifier().replicate(cuda), given(cuda)
    graph.enable_profiling()
    with strict_cupy.no_sync():
        loss_of(graph, values).backward()
        graph.node_times()
