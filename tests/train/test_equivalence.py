"""Training on several devices gives what training on one gives: scattered, in shards, or with El Che."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import minigrad
from minigrad.distributed import DdpConfig
from minigrad.train.batches import ShardedBatch
from tests.train.graphs import (
    OPTIMIZERS,
    TOLERANCE,
    assert_trained,
    cut,
    loss_fn,
    make_batch,
    make_graph,
    make_nested,
    replica,
    trained_alone,
    values,
)

STEPS = 10
few = settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
each_optimizer = pytest.mark.parametrize("kind", list(OPTIMIZERS))


def whole(parts):
    """Several batches as one."""
    return tuple(minigrad.cat(fields, 0) for fields in zip(*[part for part in parts if part is not None]))


def distributed(world_size, kind, **options):
    graph = make_graph()
    graph.distribute(replica, ["cpu"] * world_size, **options)
    graph.set_optimizer(OPTIMIZERS[kind])
    return graph


@each_optimizer
@few
@given(world_size=st.integers(1, 4), data=st.data())
def test_scatter(kind, world_size, data):
    speeds = {rank: data.draw(st.sampled_from([0.1, 0.5, 1.0, 3.0])) for rank in range(world_size)}
    batches = [make_batch(data.draw(st.integers(1, 9)), seed) for seed in range(STEPS)]
    hint = DdpConfig(speed_hint=speeds) if data.draw(st.booleans()) else DdpConfig()
    graph = distributed(world_size, kind, config=hint)
    for x, mask, target in batches:
        output = graph(x, mask=mask)
        assert sum(graph.shard_sizes) == len(x)
        error = output - target
        ((error * error).sum() / len(x)).backward()
        graph.step()
    assert_trained(graph, trained_alone(batches, OPTIMIZERS[kind]), TOLERANCE[kind])


@each_optimizer
@few
@given(world_size=st.integers(1, 4), data=st.data())
def test_presharded(kind, world_size, data):
    """Any shards, empty ones and loaders that end early too."""
    sizes = st.lists(st.integers(0, 4), min_size=world_size, max_size=world_size).filter(any)
    drawn = [data.draw(sizes) for _ in range(STEPS)]
    shards = [cut(make_batch(sum(part), seed), part) for seed, part in enumerate(drawn)]
    loaders = [[step[rank] for step in shards] for rank in range(world_size)]
    graph = distributed(world_size, kind)
    graph.set_data_loader(*loaders)
    graph.set_loss_fn(loss_fn)
    for batch in graph.epoch(0):
        graph.backward_batch(batch)
        graph.step()
    assert_trained(graph, trained_alone([whole(step) for step in shards], OPTIMIZERS[kind]), TOLERANCE[kind])


@each_optimizer
@few
@given(world_size=st.integers(2, 4), data=st.data())
def test_el_che(kind, world_size, data):
    """Any counts, and an end of the epoch at which some devices get nothing."""
    speeds = {rank: data.draw(st.sampled_from([0.3, 1.0, 2.0])) for rank in range(world_size)}
    config = DdpConfig(speed_hint=speeds, max_anchor=data.draw(st.integers(1, 3)))
    graph = distributed(world_size, kind, config=config, el_che=True)
    batches = [make_batch(data.draw(st.integers(1, 4)), seed) for seed in range(data.draw(st.integers(1, 60)))]
    graph.set_data_loader(batches)
    graph.set_loss_fn(loss_fn)
    windows = []
    for window in graph.epoch(0):
        windows.append(whole([batch for of_device in window.batches for batch in of_device]))
        losses = [float(loss_fn(graph.replicas[-1], windows[-1]).item())] if world_size > 1 else []
        assert float(graph.backward_batch(window).item()) == pytest.approx(losses[0])
        graph.step()
        assert graph.distributed.last_el_che_counts == window.counts
        if len(windows) == STEPS:
            break
    assert_trained(graph, trained_alone(windows, OPTIMIZERS[kind]), TOLERANCE[kind])


def test_el_che_with_a_loader_a_device():
    loaders = [[make_batch(2, 10 * rank + i) for i in range(count)] for rank, count in enumerate((5, 2))]
    graph = distributed(2, "momentum", config=DdpConfig(max_anchor=2), el_che=True)
    graph.set_data_loader(*loaders)
    graph.set_loss_fn(loss_fn)
    windows = []
    for window in graph.epoch(0):
        windows.append(whole([batch for of_device in window.batches for batch in of_device]))
        graph.backward_batch(window)
        graph.step()
    assert sum(len(x) for x, _, _ in windows) == 14
    assert_trained(graph, trained_alone(windows, OPTIMIZERS["momentum"]))


@few
@given(world_size=st.integers(1, 4), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_unequal_batches_before_one_step_are_one_mean(world_size, sizes):
    parts = [make_batch(size, seed) for seed, size in enumerate(sizes)]
    graph = distributed(world_size, "sgd")
    graph.set_loss_fn(loss_fn)
    for _ in range(2):
        for part in parts:
            graph.backward_batch(part)
        graph.step()
    assert_trained(graph, trained_alone([whole(parts)] * 2, OPTIMIZERS["sgd"]))


@few
@given(world_size=st.integers(1, 4), max_norm=st.sampled_from([0.01, 0.5, 100.0]), data=st.data())
def test_clipping_is_that_of_the_combined_gradient(world_size, max_norm, data):
    batches = [make_batch(data.draw(st.integers(1, 9)), seed) for seed in range(4)]
    graph = distributed(world_size, "sgd", config=DdpConfig(max_grad_norm=max_norm))
    graph.set_loss_fn(loss_fn)
    for batch in batches:
        graph.backward_batch(batch)
        graph.step()
    assert_trained(graph, trained_alone(batches, OPTIMIZERS["sgd"], max_norm=max_norm))


@pytest.mark.parametrize("world_size", [1, 3])
def test_outputs_and_tags_are_in_the_order_of_the_samples(world_size):
    graph, alone, batch = distributed(world_size, "sgd"), make_graph(), make_batch(7)
    np.testing.assert_allclose(graph.forward_batch(batch).data, alone.forward_batch(batch).data, rtol=1e-14)
    np.testing.assert_allclose(graph.tagged("hidden").data, alone.tagged("hidden").data, rtol=1e-14)
    assert list(graph.tagged_values()) == ["hidden"] and len(graph.tagged_values()["hidden"]) == 7
    with minigrad.no_grad():
        named = graph.forward_batch({"mask": batch[1], "x": batch[0], "y": None})
    np.testing.assert_allclose(named.data, alone.forward_batch(batch).data, rtol=1e-14)


def test_tags_are_those_of_all_replicas_from_a_sub_graph_too():
    graph, alone, x = make_nested(), make_nested(), minigrad.randn(3, 3)
    graph.distribute(graph.replicate, ["cpu", "cpu"])
    for model in (graph, alone):
        model(x)
    encoder, expected = graph.subgraph("encoder"), alone.tagged("encoder.hidden").data
    for found in (encoder.tagged("hidden"), encoder.tagged_values()["hidden"], graph.tagged("encoder.hidden")):
        np.testing.assert_allclose(found.data, expected, rtol=1e-6)
    sum(model.subgraph("encoder").tagged("hidden").sum() for model in (graph, alone)).backward()
    graph.distributed.all_reduce_gradients()
    for one in graph.replicas:
        np.testing.assert_allclose(one.encoder.hidden.weight.grad_array, alone.encoder.hidden.weight.grad_array, 1e-5)


def test_tags_of_a_sub_graph_that_ran_by_itself_are_its_own():
    graph, x = make_nested(), minigrad.randn(4, 3)
    graph.distribute(graph.replicate, ["cpu", "cpu"])
    encoder = graph.subgraph("encoder")
    assert encoder.tagged_values() == {}
    graph(x)
    encoder(x[:2])
    assert len(encoder.tagged("hidden")) == len(graph.tagged("encoder.hidden")) == 2
    assert len(encoder.tagged_values()["hidden"]) == 2
    graph(x)
    assert len(encoder.tagged("hidden")) == len(graph.tagged("encoder.hidden")) == 4


def test_tags_where_the_first_device_had_no_samples():
    graph, (x, mask, _) = distributed(2, "sgd"), make_batch(3)
    graph.forward_batch(ShardedBatch([None, (x, mask)], [0, 3], graph.devices[0]))
    assert len(graph.tagged("hidden")) == len(graph.tagged_values()["hidden"]) == 3


@pytest.mark.parametrize("world_size", [1, 2])
def test_freezing_between_two_backwards_is_that_of_one_device(world_size):
    graph, alone, batch = distributed(world_size, "sgd"), make_graph(), make_batch(2)
    graph.set_loss_fn(loss_fn)
    graph.backward_batch(batch)
    graph.freeze("linear_0")
    graph.backward_batch(batch)
    graph.step()
    (loss_fn(alone, batch) / 2).backward()
    alone.freeze("linear_0")
    (loss_fn(alone, batch) / 2).backward()
    OPTIMIZERS["sgd"](list(alone.parameters())).step()
    assert_trained(graph, values(alone))


def test_a_loss_may_use_tags_and_the_gradient_of_an_input_comes_back():
    def loss_of(graph, x, mask):
        return graph(x, mask).square().mean() + graph.tagged("hidden").sin().mean()

    graph, alone = distributed(3, "sgd"), make_graph()
    x, mask, _ = make_batch(8)
    inputs = [x.detach().requires_grad_() for _ in range(2)]
    for model, own in zip((graph, alone), inputs):
        loss_of(model, own, mask).backward()
    graph.distributed.all_reduce_gradients()
    np.testing.assert_allclose(inputs[0].grad.data, inputs[1].grad.data, rtol=1e-12)
    for one in graph.replicas:
        for mine, other in zip(one.parameters(), alone.parameters()):
            np.testing.assert_allclose(mine.grad_array, other.grad_array, rtol=1e-12)


def test_the_fields_of_a_sharded_batch_go_with_its_outputs():
    batch = make_batch(9)
    graph = distributed(3, "sgd")
    graph.set_data_loader(*[[part] for part in cut(batch, (2, 0, 7))])
    (sharded,) = graph.epoch(0)
    x, mask, target = sharded
    np.testing.assert_array_equal(target.data, batch[2].data)
    assert len(sharded) == 3 and sharded.sizes == (2, 0, 7)
    np.testing.assert_array_equal(sharded.whole()[1].data, batch[1].data)
    np.testing.assert_allclose(graph.forward_batch(sharded).data, make_graph()(x, mask).data, rtol=1e-14)
    assert graph.shard_sizes == (2, 0, 7)
