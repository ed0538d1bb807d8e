"""Trainer: one call, and the same loop runs on one device, on several, on simulated ones, and with NCCL's calls."""

import numpy as np
import pytest

import minigrad
from minigrad import FlowBuilder, Trainer, nn, optim
from minigrad.backend.device import device_of, to_host
from minigrad.distributed import Ddp, DdpConfig, LocalDevices, NcclDevices
from minigrad.distributed.replicas import devices as group_module
from minigrad.distributed.simulate import Cluster, SimulatedDevices
from minigrad.errors import ArgumentError
from minigrad.graph import FlowBuilder as graph_of_layers
from minigrad.train.batches import Round
from minigrad.train.stopwatch import boundary
from minigrad.train import HasGraph
from tests.distributed.fake_nccl import FakeNccl
from tests.strict_cupy.array import ndarray
from tests.strict_cupy.device import current_id
from tests.train.graphs import (
    OPTIMIZERS,
    assert_trained,
    loss_fn,
    make_batch,
    make_graph,
    replica,
    trained_alone,
    values,
)

SGD = OPTIMIZERS["momentum"]
BATCHES = [make_batch(7, seed) for seed in range(12)]
PLACES = {
    "default": lambda: None,
    "one": lambda: ["cpu"],
    "three": lambda: ["cpu"] * 3,
    "simulated": lambda: SimulatedDevices(Cluster.of_speeds([1, 1, 1])),
    "one simulated": lambda: SimulatedDevices(Cluster.of_speeds([1])),
}


def plain_loop(graph):
    for batch in BATCHES:
        loss_fn(graph, batch).backward()
        graph.step()


def batch_loop(graph):
    graph.set_data_loader(BATCHES)
    graph.set_loss_fn(loss_fn)
    for batch in graph.epoch(0):
        graph.backward_batch(batch)
        graph.step()


@pytest.mark.parametrize("loop", [plain_loop, batch_loop])
@pytest.mark.parametrize("place", list(PLACES))
def test_the_same_loop_runs_everywhere(loop, place, capsys):
    graph = make_graph().eval()
    Trainer.setup(graph, replica, SGD, devices=PLACES[place]())
    assert graph.training and "El Che is off" in capsys.readouterr().err
    loop(graph)
    assert_trained(graph, trained_alone(BATCHES, SGD))


def test_the_loop_runs_where_devices_differ():
    """El Che is on there, each step is that of one device on the same batches."""
    graph, devices = make_graph(), SimulatedDevices(Cluster.of_speeds([3, 1]))
    Trainer.setup(graph, replica, SGD, devices=devices)
    assert graph.has_el_che
    batch_loop(graph)
    assert_trained(graph, values(graph), 0.0)
    with pytest.raises(ArgumentError, match="or set el_che=False"):
        plain_loop(graph)


@pytest.mark.parametrize("with_config", [False, True])
@pytest.mark.parametrize("speeds, el_che, on, reason", [
    ([1, 1], None, False, "the devices are alike"),
    ([2, 1], None, True, "the devices differ"),
    ([2, 1], False, False, "it was turned off"),
    ([1, 1], True, True, "it was turned on"),
    ([1], None, False, "there is one device"),
    ([1], True, False, "there is one device"),
])
def test_both_entry_points_have_one_rule(with_config, speeds, el_che, on, reason, capsys):
    graph, devices = make_graph(), SimulatedDevices(Cluster.of_speeds(speeds))
    if with_config:
        Trainer.setup_with(graph, replica, SGD, DdpConfig(), devices=devices, el_che=el_che)
    else:
        Trainer.setup(graph, replica, SGD, devices=devices, el_che=el_che)
    assert graph.has_el_che is on
    assert f"El Che is {'on' if on else 'off'}: {reason}" in capsys.readouterr().err


def test_the_summary_names_the_devices_and_what_is_not_used(capsys):
    def setup(devices, **options):
        Trainer.setup_with(make_graph(), replica, SGD, DdpConfig(**options), devices=devices)
        return capsys.readouterr()

    printed = setup(["cpu"] * 3, overhead_target=0.2, max_anchor=4)
    assert printed.out == ""
    assert printed.err == (
        "Graph: 3 devices | 3 x cpu: CPU | El Che is off: the devices are alike | "
        "not used: overhead_target, max_anchor\n"
    )
    differing = SimulatedDevices(Cluster.of_speeds([2, 1]))
    said = setup(differing, min_ratio=0.1).err
    assert "cpu: simulated, 0 s + 0.0005 s a sample | cpu: simulated, 0 s + 0.001 s a sample" in said
    assert said.endswith("not used: min_ratio\n")
    assert "El Che is off: it was turned off" in setup(differing, max_anchor=0).err
    assert setup(["cpu"], speed_hint=(1, 2.3)).err.endswith("not used: speed_hint\n")  # one script for any machine


@pytest.mark.parametrize("devices", [["cpu"], ["cpu"] * 2], ids=["one", "two"])
def test_the_norm_is_limited_without_el_che_and_on_one_device(devices):
    graph = make_graph()
    config = DdpConfig(max_grad_norm=0.05, max_anchor=0)
    Trainer.setup_with(graph, replica, SGD, config, devices=devices)
    plain_loop(graph)
    assert_trained(graph, trained_alone(BATCHES, SGD, max_norm=0.05))


class Head:
    """A model around a graph, with a loss of its own."""

    def __init__(self, device=None, seed=0):
        self.body = make_graph(seed, device)

    def graph(self):
        return self.body

    def compute_loss(self, batch):
        return loss_fn(self.body, batch)


@pytest.mark.parametrize("with_config", [False, True])
def test_a_head_uses_all_devices(with_config):
    head = Head()
    assert isinstance(head, HasGraph) and isinstance(make_graph(), HasGraph)
    options = {"devices": ["cpu"] * 3}
    if with_config:
        Trainer.setup_head_with(head, lambda device: Head(device, 9), SGD, DdpConfig(), **options)
    else:
        Trainer.setup_head(head, lambda device: Head(device, 9), SGD, **options)
    shards = []
    for batch in BATCHES:
        head.compute_loss(batch).backward()
        shards.append(head.graph().shard_sizes)
        head.graph().step()
    assert len(shards[0]) == 3 and all(shards[0])  # later ones depend on how fast each device was
    assert_trained(head.graph(), trained_alone(BATCHES, SGD))


def test_wrong_arguments():
    with pytest.raises(ArgumentError, match="expected a Graph, got Head: minigrad.FlowBuilder makes one"):
        Trainer.setup(Head(), replica, SGD)
    with pytest.raises(ArgumentError, match="expected a DdpConfig, got dict"):
        Trainer.setup_with(make_graph(), replica, SGD, {})
    with pytest.raises(ArgumentError, match=r"expected a model with graph\(\), got Linear"):
        Trainer.setup_head(nn.Linear(2, 2), lambda device: nn.Linear(2, 2), SGD)
    head = Head()
    head.graph = graph_of_layers().through(nn.Linear(2, 2)).build  # it does not train
    with pytest.raises(ArgumentError, match=r"expected graph\(\) to give a Graph, got GraphModule: minigrad.Flow"):
        Trainer.setup_head(head, lambda device: head, SGD)
    with pytest.raises(ArgumentError, match="expected a function from a device to a head, got Head"):
        Trainer.setup_head(Head(), Head(), SGD)


@pytest.mark.parametrize("old, new", [("setup", "setup"), ("auto", "setup")])
def test_the_old_names_warn(old, new):
    graph = make_graph()
    with pytest.warns(DeprecationWarning, match=f"Ddp.{old} is deprecated: use Trainer.{new}") as caught:
        getattr(Ddp, old)(graph, replica, SGD, devices=["cpu", "cpu"])
        assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match=f"Ddp.{old}_with is deprecated: use Trainer.{new}_with"):
        getattr(Ddp, f"{old}_with")(make_graph(), replica, SGD, DdpConfig())
    plain_loop(graph)
    assert_trained(graph, trained_alone(BATCHES, SGD))
    with pytest.warns(DeprecationWarning), pytest.raises(ArgumentError, match=f"Ddp.{old}: expected a Graph, got Head"):
        getattr(Ddp, old)(Head(), replica, SGD)


# ------------------------------------------------------------------------------------------------------- the options


def test_what_a_configuration_becomes():
    config = DdpConfig(speed_hint={1: 0.5}, min_ratio=0.2, calibration_steps=3, rebalance_interval=7)
    assert [step for step in range(20) if config.balance_config().is_due(step)] == [3, 10, 17]
    assert DdpConfig(max_anchor=7).cadence_config().anchor == 7
    assert DdpConfig(overhead_target=0.3).cadence_config().overhead_target == 0.3


# ----------------------------------------------------------------------------------------------------------- devices


@pytest.fixture
def nccl(strict_cupy):
    """Makes NcclDevices on a stand-in that raises where NCCL would hang, or a call is made on another device."""
    made = []

    def make(devices):
        made.append(NcclDevices(devices, nccl=FakeNccl(current_device=current_id)))
        return made[-1]

    yield make
    for devices in made:
        devices.close()


@pytest.mark.parametrize("devices", [["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]], ids=",".join)
@pytest.mark.parametrize("el_che", [False, True])
def test_with_nccl_calls_are_grouped_on_the_device_that_is_current(el_che, devices, nccl):
    """Also where that of the first replica is not the one that this thread is on."""
    graph = make_graph(device=devices[0])
    config = DdpConfig(max_grad_norm=0.5, max_anchor=2 if el_che else None)
    group = LocalDevices(devices, collectives=nccl(devices))
    Trainer.setup_with(graph, replica, SGD, config, devices=group, el_che=el_che)
    graph.set_loss_fn(loss_fn)
    graph.set_data_loader([tuple(x.to("cuda:0") for x in batch) for batch in BATCHES])
    numbers = []
    for batch in graph.epoch(0):
        graph.backward_batch(batch)
        graph.step()
        numbers.append(sum(batch.counts) if el_che else 1)
    first = np.cumsum([0, *numbers])
    rounds = [BATCHES[a:b] for a, b in zip(first, first[1:])]
    together = [tuple(minigrad.cat(fields, 0) for fields in zip(*several)) for several in rounds]
    found = [[to_host(param.data) for param in one.parameters()] for one in graph.replicas]
    for mine, other in zip(found[0], trained_alone(together, SGD, max_norm=0.5)):
        np.testing.assert_allclose(mine, other, rtol=1e-10, atol=1e-12)
    assert all((a == b).all() for a, b in zip(*found)) and sum(numbers) == 12


def test_each_replica_computes_with_its_device_current(nccl):
    """Forward and backward; what is common to all is done on the first device."""
    seen, made_on = [], []

    class Watching(nn.Module):
        def __init__(self, device):
            super().__init__()
            self.layer = nn.Linear(3, 1, device=device)

        def forward(self, x):
            seen.append(("forward", device_of(x.data).index, current_id()))
            index = device_of(x.data).index
            return boundary(self.layer(x), lambda: seen.append(("backward", index, current_id())))

    def make(device):
        made_on.append(current_id())
        return FlowBuilder.from_(Watching(device)).tag("watched").through(nn.Tanh()).build()

    devices = ["cuda:0", "cuda:1"]
    graph = make("cuda:0")
    graph.distribute(make, LocalDevices(devices, collectives=nccl(devices)))
    assert made_on == [0, 1]
    graph(minigrad.ones(4, 3, device="cuda:0")).mean().backward()
    assert seen == [("forward", 0, 0), ("forward", 1, 1), ("backward", 1, 1), ("backward", 0, 0)]
    assert current_id() == 0
    graph.zero_grad()
    graph(minigrad.ones(4, 3, device="cuda:0"))
    seen.clear()
    graph.tagged("watched").mean().backward()  # a loss of a tag alone
    assert seen == [("backward", 1, 1), ("backward", 0, 0)] and current_id() == 0


@pytest.mark.parametrize("el_che", [False, True])
def test_a_step_waits_for_no_device(el_che, nccl, strict_cupy):
    devices = ["cuda:0", "cuda:1"]
    graph = make_graph(device="cuda:0")
    group = LocalDevices(devices, collectives=nccl(devices))
    Trainer.setup_with(graph, replica, SGD, DdpConfig(max_grad_norm=0.5), devices=group, el_che=el_che)
    graph.set_loss_fn(loss_fn)
    graph.set_data_loader([tuple(x.to("cuda:0") for x in batch) for batch in BATCHES])
    graph.optimizers
    with strict_cupy.no_sync():
        for batch in graph.epoch(0):
            loss = graph.backward_batch(batch)
            graph.step()
    assert np.isfinite(to_host(loss.data)).all()


@pytest.mark.parametrize("home", ["cpu", "cuda:0"])
def test_el_che_copies_nothing_between_the_batches_of_a_round(home, nccl, monkeypatch):
    """Two GPUs wait for each other at a copy between them: after each batch of one the other would stand still."""
    log, copy = [], ndarray.copy

    def watched(array, order="C"):
        if array.device.id != current_id():
            log.append(f"cuda:{array.device.id} to cuda:{current_id()}")
        return copy(array, order)

    def watching(model, batch):
        log.append(f"batch on cuda:{current_id()}")
        return loss_fn(model, batch)

    graph = make_graph(device="cuda:0")
    graph.distribute(replica, LocalDevices(["cuda:0", "cuda:1"], collectives=nccl(["cuda:0", "cuda:1"])), el_che=True)
    graph.set_loss_fn(watching)
    batches = [tuple(x.to(home) for x in batch) for batch in BATCHES[:5]]
    monkeypatch.setattr(ndarray, "copy", watched)
    loss = graph.backward_batch(Round((tuple(batches[:4]), tuple(batches[4:]))))
    over = [] if home == "cpu" else ["cuda:0 to cuda:1"] * len(batches[4])
    turns = [f"batch on cuda:{rank}" for rank in (0, 1, 0, 0, 0)]
    assert log == [*over, *turns, "cuda:1 to cuda:0"]
    together = [minigrad.cat(fields, 0) for fields in zip(*BATCHES[:5])]
    assert loss.item() == pytest.approx(loss_fn(make_graph(), together).item(), rel=1e-12)


def test_every_gpu_is_used_by_a_graph_that_lives_on_one(nccl, monkeypatch):
    monkeypatch.setattr(group_module, "NcclDevices", nccl)
    graph = make_graph(device="cuda:1")
    Trainer.setup(graph, replica, lambda params: optim.SGD(params, lr=0.1))
    assert [str(device) for device in graph.devices] == ["cuda:1", "cuda:0"]
    on_host = make_graph()
    Trainer.setup(on_host, replica, lambda params: optim.SGD(params, lr=0.1))
    assert [str(device) for device in on_host.devices] == ["cpu"]
