"""Graphs on a device that is no CPU: replicated there, run, timed by its events, saved and loaded."""

from minigrad.testing import assert_close
from tests.device_suite.modules import on
from tests.unit.graph.nets import batch, classifier


def given(device):
    return {name: x.to(device) for name, x in batch().items()}


def loss_of(graph, values):
    """Of every parameter."""
    return graph.forward_batch(values).mean() + graph.tagged("aux").mean()


def test_a_replica_computes_the_same_there(cuda):
    here = classifier()
    there = here.replicate(cuda)
    assert on(there) == {str(cuda)} and on(here) == {"cpu"}
    loss, other = loss_of(here, batch()), loss_of(there, given(cuda))
    loss.backward()
    other.backward()
    assert_close(other, loss, tolerance=1e-5)
    for (name, param), twin in zip(here.named_parameters(), there.parameters()):
        assert_close(twin.grad, param.grad, tolerance=1e-5, what=name)


def test_nodes_are_timed_by_events(cuda):
    graph = classifier().replicate(cuda)
    graph.enable_profiling()
    for _ in range(3):
        loss = loss_of(graph, given(cuda))
    loss.item()  # the device has passed every event now
    times = graph.node_times()
    assert set(times) > {"encoder", "encoder.hidden", "sum"}
    assert {time.count for time in times.values()} == {3}
    assert all(time.total_s >= 0.0 for time in times.values())


def test_a_checkpoint_goes_between_devices(cuda, tmp_path):
    here, there = classifier(0), classifier(1).replicate(cuda)
    there.save_checkpoint(tmp_path / "there")
    here.attach(here.replicate(cuda))
    here.load_checkpoint(tmp_path / "there")
    for graph in here.replicas:
        for name, x in graph.state_dict().items():
            assert_close(x, there.state_dict()[name], tolerance=0, what=name)
