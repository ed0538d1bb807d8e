"""The calls that set a graph up for training: in any order, and each refused where it makes no sense."""

import copy
import sys

import pytest

from minigrad import Device, FlowBuilder, Trainer, cat, no_grad, nn, optim, randn
from minigrad.distributed import DdpConfig, DistributedDataParallel, SoloCommunicator
from minigrad.errors import ArgumentError, AutogradError, ReplicaMismatchError
from minigrad.graph import FlowBuilder as graph_of_layers
from tests.train.graphs import (
    OPTIMIZERS,
    assert_trained,
    graph_on,
    loss_fn,
    make_batch,
    make_graph,
    make_nested,
    replica,
    trained_alone,
    values,
)

SGD = OPTIMIZERS["sgd"]


CALLS = {
    "distribute": lambda graph: graph.distribute(replica, ["cpu", "cpu"], config=DdpConfig(max_grad_norm=0.5)),
    "optimizer": lambda graph: graph.set_optimizer(lambda params: optim.SGD(params, lr=0.1)),
    "scheduler": lambda graph: graph.set_scheduler(optim.StepDecay(2, gamma=0.5)),
    "loss": lambda graph: graph.set_loss_fn(loss_fn),
    "loader": lambda graph: graph.set_data_loader([make_batch(5, seed) for seed in range(5)]),
}


@pytest.mark.parametrize("first", list(CALLS))
def test_options_may_come_in_any_order(first):
    results = []
    for order in (list(CALLS), [first, *(name for name in reversed(CALLS) if name != first)]):
        graph = make_graph()
        for name in order:
            CALLS[name](graph)
        for batch in graph.epoch(0):
            graph.backward_batch(batch)
            graph.step()
        assert [optimizer.param_groups[0]["lr"] for optimizer in graph.optimizers] == [0.025, 0.025]
        results.append(values(graph))
    assert all((a == b).all() for a, b in zip(*results))
    assert any((a != b).any() for a, b in zip(results[0], values(make_graph())))


def test_the_same_loop_trains_a_graph_that_was_not_distributed():
    graph, batches = make_graph(), [make_batch(4, seed) for seed in range(3)]
    assert (graph.world_size, graph.chunk_ratios, graph.shard_sizes, graph.throughput) == (1, (1.0,), (), (0.0,))
    assert graph.devices == (Device("cpu"),) and not graph.has_el_che and graph.distributed is None
    graph.set_data_loader(batches)
    graph.set_optimizer(SGD)
    for batch in graph.epoch(0):
        loss_fn(graph, batch).backward()
        graph.step()
    assert_trained(graph, trained_alone(batches, SGD), 0.0)


def test_what_is_missing_is_named():
    graph = make_graph()
    with pytest.raises(ArgumentError, match="step: expected an optimizer, got none: call set_optimizer"):
        graph.step()
    with pytest.raises(ArgumentError, match="expected a loader, got none: call set_data_loader"):
        graph.epoch(0)
    with pytest.raises(ArgumentError, match="expected a loss function, got none: call set_loss_fn"):
        graph.backward_batch(make_batch(3))
    graph.set_optimizer(SGD)
    with pytest.raises(AutogradError, match=r"step: expected gradients, got none: call backward\(\) first"):
        graph.step()


def test_wrong_options():
    graph = make_graph()
    for call, message in [
        (lambda: graph.set_optimizer(SGD(list(graph.parameters()))), "set_optimizer: expected a function .* got SGD"),
        (lambda: graph.set_scheduler(0.1), "set_scheduler: expected a function"),
        (lambda: graph.set_loss_fn(None), "set_loss_fn: expected a function"),
        (lambda: graph.set_data_loader(), "expected a loader, or one a device, got none"),
        (lambda: graph.set_data_loader(iter([])), "iterated over in every epoch, got list_iterator"),
        (lambda: graph.epoch(-1), "number"),
        (lambda: graph.distribute(replica, []), "expected a list of at least one device"),
        (lambda: graph.distribute(replica, "cpu"), "expected a list of at least one device"),
        (lambda: graph.distribute(replica, 2), "expected a list of at least one device, got 2"),
        (lambda: graph.distribute(None, ["cpu"]), "expected a function .* as builder, got NoneType"),
        (lambda: graph.distribute(graph, ["cpu"]), "expected a function .* as builder, got Graph"),
        (lambda: graph.distribute(replica, ["cpu"], config={}), "expected a DdpConfig, got dict"),
        (lambda: graph.distribute(replica, ["cpu"] * 2, el_che=1), "None, True or False, got 1"),
        (lambda: graph.distribute(lambda device: nn.Linear(3, 2), ["cpu"] * 2), "to return a Graph, got Linear"),
        (lambda: graph.distribute(lambda device: graph, ["cpu"] * 2), "replicas of their own"),
        (lambda: graph.distribute(replica, ["cpu"] * 2, el_che="yes"), "None, True or False, got 'yes'"),
        (lambda: graph.distribute(replica, ["cpu"] * 2, config=DdpConfig(speed_hint=(5, 2.0))), "rank"),
        (lambda: graph.distribute(replica, ["cpu"] * 2, config=DdpConfig(min_ratio=0.6)), "min_ratio"),
        (lambda: graph.distribute(replica, ["cpu"] * 2, config=DdpConfig(max_anchor=3)), "max_anchor without El Che"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
    assert graph.replicas == (graph,) and graph.distributed is None
    graph.set_optimizer(lambda params: "nothing")
    with pytest.raises(ArgumentError, match="to make an Optimizer, got str"):
        graph.step()
    one = SGD(list(graph.parameters()))
    graph = graph_on(2)
    graph.set_optimizer(lambda params: one)
    with pytest.raises(ArgumentError, match="of the parameters that the function is given, got one that steps others"):
        graph.step()


def test_a_graph_is_distributed_once_and_before_it_steps():
    graph = graph_on(2)
    with pytest.raises(ArgumentError, match="distribute: expected to be called once, before the first"):
        graph.distribute(replica, ["cpu", "cpu"])
    stepped = make_graph()
    stepped.set_optimizer(SGD)
    stepped.set_loss_fn(loss_fn)
    stepped.backward_batch(make_batch(3))
    stepped.step()
    with pytest.raises(ArgumentError, match="before the first step"):
        stepped.distribute(replica, ["cpu", "cpu"])
    asked = make_graph()
    asked.set_optimizer(SGD)
    assert len(asked.optimizers) == 1  # before it is distributed
    asked.distribute(replica, ["cpu", "cpu"])
    assert len(asked.optimizers) == 2
    loss_fn(asked, make_batch(3)).backward()
    asked.step()
    assert_trained(asked, trained_alone([make_batch(3)], SGD))


def test_replicas_that_differ_are_named():
    def wider(device):
        return FlowBuilder.from_(nn.Linear(3, 5)).build()

    def untagged(device):
        return FlowBuilder.from_(nn.Linear(3, 4)).through(nn.Tanh()).build()

    graph = FlowBuilder.from_(nn.Linear(3, 4)).build()
    with pytest.raises(ReplicaMismatchError, match=r"linear_0.weight' float32 \(4, 3\) on rank 0 and .* \(5, 3\)"):
        graph.distribute(wider, ["cpu", "cpu"])
    with pytest.raises(ArgumentError, match="expected replicas of structure"):
        graph.distribute(untagged, ["cpu", "cpu"])
    assert graph.replicas == (graph,)
    graph.distribute(graph.replicate, ["cpu", "cpu"])
    assert graph.world_size == 2


def test_a_copy_knows_nothing_of_training():
    graph = graph_on(2)
    loss_fn(graph, make_batch(3)).backward()
    twin = copy.deepcopy(graph)
    assert twin.world_size == 1 and twin.distributed is None


def test_a_copy_of_the_first_replica_is_a_graph_of_its_own():
    first = graph_on(2).distributed.replicas[0]
    twin, (x, mask, _) = copy.deepcopy(first), make_batch(3)
    assert (twin(x, mask).data == first(x, mask).data).all() and twin.replicas == (twin,)
    twin.load_state_dict(make_graph(seed=5).state_dict())
    assert (twin(x, mask).data != first(x, mask).data).any()


def test_a_part_that_does_not_train_by_itself_changes_with_its_replicas():
    def make(device=None):
        part = graph_of_layers("x").through(nn.Linear(3, 4)).through(nn.BatchNorm1d(4)).label("part").build()
        return FlowBuilder.from_(part).through(nn.Linear(4, 2)).build()

    graph = make()
    graph.distribute(make, ["cpu", "cpu"])
    part = graph.subgraph("part")
    part.freeze("linear_0")
    part.eval()
    part.load_state_dict({name: x + 1.0 for name, x in part.state_dict().items() if x.ndim}, strict=False)
    for one in graph.replicas:
        assert one.is_frozen("part.linear_0") and not one.part.training
        assert (one.part.linear_0.weight.data == part.linear_0.weight.data).all()


@pytest.mark.parametrize("name", ["optimizers", "schedulers", "config", "replicas", "last_shard_sizes", "chunk_ratios"])
def test_what_nobody_would_hear_of_is_not_set(name):
    state = graph_on(2).distributed
    with pytest.raises(ArgumentError, match=f"expected one of balance, .* to be set, got {name}, which follows"):
        setattr(state, name, getattr(state, name))
    state.step_count, state.ema_throughput = 7, [1.0, 2.0]
    assert not state.update_balance() and state.step_count == 8


def test_el_che_can_be_turned_off_by_hand():
    graph = graph_on(2, el_che=True)
    with pytest.raises(ArgumentError, match="El Che, which runs whole batches"):
        loss_fn(graph, make_batch(4))
    graph.set_data_loader([make_batch(4)] * 9)
    rounds = graph.epoch(0)
    graph.distributed.el_che = None
    with pytest.raises(ArgumentError, match="expected El Che on until the epoch is over, got it turned off"):
        next(rounds)
    loss_fn(graph, make_batch(4)).backward()
    graph.step()
    assert graph.shard_sizes == (2, 2) and not graph.has_el_che


def test_a_call_that_fails_leaves_nothing_behind():
    graph = make_graph()
    with pytest.raises(ArgumentError, match="set_optimizer: expected a function"):
        Trainer.setup(graph, replica, SGD(list(make_graph().parameters())), devices=["cpu", "cpu"])
    Trainer.setup(graph, replica, SGD, devices=["cpu", "cpu"])
    assert graph.world_size == 2


def test_a_schedule_may_be_replaced():
    """The new one begins at step 0 with the rate that the optimizer was made with."""
    graph = graph_on(2)
    made = graph.optimizers
    for gamma in (0.5, 0.1):
        graph.set_scheduler(optim.StepDecay(1, gamma=gamma))
        assert graph.optimizers == made  # with their state
        assert [each.param_groups[0]["lr"] for each in graph.optimizers] == [0.05, 0.05]
        graph.backward_batch(make_batch(4))
        graph.step()
        assert graph.optimizers[1].param_groups[0]["lr"] == pytest.approx(0.05 * gamma)


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_that_an_optimizer_dropped_do_not_count(world_size):
    """Batches of 8 and of 2 whose gradients nobody used have no part in the weight of the next."""
    graph, batch = graph_on(world_size), make_batch(2)
    for samples in (8, 2):
        graph.backward_batch(make_batch(samples))
        for optimizer in graph.optimizers:
            optimizer.zero_grad()
    graph.backward_batch(batch)
    graph.step()
    assert_trained(graph, trained_alone([batch], SGD))
    graph.distributed.all_reduce_gradients()
    for optimizer in graph.optimizers:
        optimizer.zero_grad()
    loss_fn(graph, batch).backward()  # another kind of backward, after gradients that were combined
    graph.step()
    assert_trained(graph, trained_alone([batch] * 2, SGD))


def test_gradients_that_were_zeroed_do_not_count():
    graph, batch = graph_on(2), make_batch(2)
    graph.backward_batch(make_batch(8))
    graph.zero_grad(set_to_none=False)
    graph.backward_batch(batch)
    graph.step()
    assert_trained(graph, trained_alone([batch], SGD))


def test_gradients_may_come_before_the_devices():
    graph, batches = make_graph(), [make_batch(8, 1), make_batch(2, 2)]
    graph.set_loss_fn(loss_fn)
    graph.set_optimizer(SGD)
    for batch in batches:
        graph.backward_batch(batch)
    graph.distribute(replica, ["cpu", "cpu"])
    graph.step()
    whole = tuple(cat(fields, 0) for fields in zip(*batches))
    assert_trained(graph, trained_alone([whole], SGD))
    assert all(param.listeners == (graph.distributed.stepper,) for param in graph.parameters())


def test_a_loop_with_an_optimizer_of_its_own():
    graph, batches = make_graph(), [make_batch(8, 1), make_batch(2, 2)]
    graph.set_loss_fn(loss_fn)
    optimizer = SGD(list(graph.parameters()))
    for batch in batches:
        graph.backward_batch(batch)
        optimizer.step()
        optimizer.zero_grad()
    assert_trained(graph, trained_alone(batches, SGD))


def test_a_frozen_graph_can_be_evaluated_on_its_loader():
    graph = make_graph()
    graph.freeze()
    graph.set_data_loader([make_batch(3)])
    with no_grad():
        assert [graph.forward_batch(batch).shape for batch in graph.epoch(0)] == [(3, 2)]


def test_replicas_are_combined_in_one_place():
    """By distribute, by hand or by a wrapper; two of them would combine twice, or leave replicas out."""
    attached = make_graph()
    attached.attach(attached.replicate("cpu"))
    attached.set_optimizer(SGD)
    loss_fn(attached, make_batch(3)).backward()
    with pytest.raises(ArgumentError, match="expected distribute.. for training with replicas, got some that were att"):
        attached.step()
    graph = graph_on(2)
    with pytest.raises(ArgumentError, match="attach: expected a graph that does not train yet"):
        graph.attach(graph.replicate("cpu"))
    with pytest.raises(ArgumentError, match="expected parameters that nothing reduces yet, got some .* of a graph on"):
        DistributedDataParallel(graph, SoloCommunicator())
    assert len(graph.replicas) == 2


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_part_of_a_graph_does_not_train_by_itself(world_size):
    graph = make_nested()
    graph.distribute(graph.replicate, ["cpu"] * world_size)
    part = graph.subgraph("encoder")
    part.set_optimizer(SGD)
    part.set_loss_fn(loss_fn)
    for call in (part.step, lambda: part.backward_batch(make_batch(3)), lambda: part.optimizers):
        with pytest.raises(ArgumentError, match="expected the whole graph to train, got a call of a part of it"):
            call()
    with pytest.raises(ArgumentError, match="attach: expected a graph that does not train yet"):
        part.attach(part.replicate("cpu"))
    twin = copy.deepcopy(part)
    twin.set_optimizer(SGD)
    assert len(twin.optimizers) == 1


def python_calls(function):
    """How many functions of Python a call enters, once it is warm."""
    function()
    entered = []
    sys.setprofile(lambda frame, event, arg: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(entered) - 1


def test_a_graph_on_one_device_costs_little_more_than_its_layers():
    """A Sequential of the three layers enters 53; a graph that was told to train asks for time and marks besides."""
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)]
    graph, x = FlowBuilder.from_(layers[0]).through(layers[1]).through(layers[2]).build(), randn(6, 4)
    sequential = nn.Sequential(*layers)
    assert python_calls(lambda: graph(x)) <= python_calls(lambda: sequential(x)) + 5
    graph.distribute(graph.replicate, ["cpu"])
    assert python_calls(lambda: graph(x)) <= 100
