"""A distributed graph: options in any order, state on every replica, decisions from what the devices needed."""

import copy
from typing import NamedTuple

import numpy as np
import pytest

import minigrad
from minigrad import FlowBuilder, Graph, nn
from minigrad.backend.timer import HostTimer
from minigrad.data import ArrayDataset, DataLoader
from minigrad.distributed import DdpConfig, LocalDevices
from minigrad.distributed.simulate import Cluster, Link, RankCost, SimulatedDevices, Slowdown
from minigrad.errors import ArgumentError, DeviceError, ReplicaMismatchError, ShapeError
from minigrad.train import batches
from minigrad.train.stopwatch import boundary
from tests.train.graphs import (
    OPTIMIZERS,
    assert_trained,
    cut,
    graph_on,
    loss_fn,
    make_batch,
    make_graph,
    replica,
    trained_alone,
    values,
)

SGD = OPTIMIZERS["sgd"]


# ----------------------------------------------------------------------------------------------- inputs and loaders


def test_inputs_and_outputs_have_a_row_a_sample():
    graph = graph_on(2)
    x, mask, _ = make_batch(4)
    with pytest.raises(ShapeError, match=r"as many in each, got x \(4, 3\), mask \(3, 4\)"):
        graph(x, mask[:3])
    summing = giving(lambda w, x: (w * x).sum())
    with pytest.raises(ShapeError, match=r"expected a row for each of 2 samples, got shape \(\): take means and sums"):
        summing(x)
    with pytest.raises(ArgumentError, match="expected a tensor among the inputs"):
        summing(3.0)


class Giving(nn.Module):
    """What a function makes of a parameter, which is 1, and the inputs."""

    def __init__(self, give):
        super().__init__()
        self.w, self.give = nn.Parameter(np.ones(1)), give

    def forward(self, *inputs, **more):
        return self.give(self.w, *inputs, **more)


def giving(give, world_size=2):
    graph = FlowBuilder.from_(Giving(give)).build()
    graph.distribute(graph.replicate, ["cpu"] * world_size)
    return graph


class Pair(NamedTuple):
    left: minigrad.Tensor
    right: minigrad.Tensor


def test_outputs_may_be_nested():
    graph = giving(lambda w, x: {"pair": Pair(x * w, -x), "names": ["a"] * len(x), "scale": 2}, 3)
    x = minigrad.tensor(np.arange(4.0))
    output = graph(x)
    assert output["pair"].left.tolist() == x.tolist() and output["pair"].right.tolist() == (-x).tolist()
    assert output["names"] == ["a"] * 4 and output["scale"] == 2


def test_inputs_may_be_nested_and_what_is_no_tensor_goes_to_all():
    nested = Giving(lambda w, fields, scale: fields["x"] * w * scale + fields["more"][0])
    graph = FlowBuilder("fields").input("scale").through(nested).using("scale").build()
    graph.distribute(graph.replicate, ["cpu"] * 3)
    x = minigrad.tensor(np.arange(5.0))
    assert graph({"x": x, "more": [x]}, 3.0).tolist() == (x * 4.0).tolist()
    assert graph.shard_sizes == (2, 2, 1)
    with pytest.raises(ShapeError, match=r"as many in each, got fields \(5,\), fields \(4,\)"):
        graph({"x": x, "more": [x[:4]]}, 3.0)


def test_a_value_that_is_no_tensor_is_the_same_on_all_devices():
    graph = giving(lambda w, x: (x * w, float(x.data.max())))
    assert graph(minigrad.tensor(np.ones(4)))[1] == 1.0
    with pytest.raises(ArgumentError, match=r"or a value that all replicas share, got \[1.0, 3.0\]"):
        graph(minigrad.tensor(np.arange(4.0)))


def test_one_device_asks_nothing_of_the_shapes_of_inputs():
    graph = make_graph()
    graph.distribute(replica, ["cpu"])
    graph.set_optimizer(SGD)
    x, mask, _ = make_batch(3)
    graph(x, mask[:1]).square().mean().backward()
    graph.step()
    assert graph.shard_sizes == (3,)
    graph(x[0], mask[0]).square().mean().backward()  # no batch at all
    graph.step()


def test_outputs_have_one_form():
    graph = giving(lambda w, x: (x * w,) * int(x.data[0]))
    with pytest.raises(ArgumentError, match="Graph: expected the same form .* got tuple of 2 and tuple of 3"):
        graph(minigrad.tensor(np.array([2.0, 3.0])))


def test_the_loss_is_one_number_and_a_batch_has_samples():
    graph = graph_on(2)
    graph.set_loss_fn(lambda model, batch: model.forward_batch(batch))
    with pytest.raises(ShapeError, match=r"expected loss_fn to return one mean loss, got shape \(3, 2\)"):
        graph.backward_batch(make_batch(3))
    graph.set_loss_fn(lambda model, batch: model.forward_batch(batch).sum())
    with pytest.raises(ArgumentError, match="expected a batch with samples, got one of 0"):
        graph.backward_batch(make_batch(0))


def test_a_batch_in_shards_is_not_taken_for_another():
    """Shards belong to their batch: a forward of something else is of that."""
    graph = graph_on(2)
    graph.set_data_loader([make_batch(3, 1)], [make_batch(2, 2)])
    (pending,) = graph.epoch(0)
    assert graph.forward_batch(make_batch(4)).shape == (4, 2)
    assert graph.forward_batch(pending).shape == (5, 2)


WAYS = {  # to write one loss, and whether the rows of the inputs have to travel for it
    "forward_batch": (lambda model, b: model.forward_batch(b), False),
    "fields": (lambda model, b: model(b[0], mask=b[1]), False),
    "unpacked": (lambda model, b: (lambda x, mask, _: model(x, mask))(*b), False),
    "a tuple": (lambda model, b: model.forward_batch((b[0], b[1])), False),
    "reckoned": (lambda model, b: model(b[0] * 1.0, b[1]), True),
    "looked at": (lambda model, b: (lambda x: (x.numpy(), model(x, b[1]))[1])(b[0]), True),
}


@pytest.mark.parametrize("loop", [False, True], ids=["backward_batch", "a loop"])
@pytest.mark.parametrize("way", WAYS)
def test_shards_of_loaders_stay_where_they_are_however_the_loss_is_written(way, loop, monkeypatch):
    """4 rows and 1 row: the shards are (4, 1), and nothing but the targets is put together."""
    forward, travels = WAYS[way]
    joined = []
    monkeypatch.setattr(batches, "cat", lambda parts, dim: joined.append(parts[0].shape) or minigrad.cat(parts, dim))
    graph = graph_on(2)
    graph.set_data_loader([make_batch(4, 1)], [make_batch(1, 2)])

    def loss_of(model, batch):
        error = forward(model, batch) - batch[2]
        return (error * error).sum() / len(batch[2])

    graph.set_loss_fn(loss_of)
    (batch,) = graph.epoch(0)
    if loop:
        loss_of(graph, batch).backward()
    else:
        graph.backward_batch(batch)
    assert graph.shard_sizes == (4, 1)
    assert ((4, 3) in joined) == travels and (4, 4) not in joined
    graph.step()
    both = tuple(minigrad.cat(fields) for fields in zip(make_batch(4, 1), make_batch(1, 2)))
    assert_trained(graph, trained_alone([both], SGD))


def test_inputs_reckoned_from_fields_are_cut_as_the_loaders_had_cut_them():
    graph = graph_on(2)
    graph.set_data_loader([make_batch(4, 1)], [make_batch(1, 2)])
    graph.set_loss_fn(lambda model, batch: model(batch[0] * 2.0, batch[1] * 1.0).square().mean())
    (batch,) = graph.epoch(0)
    graph.backward_batch(batch)
    assert graph.shard_sizes == (4, 1)
    graph.backward_batch(make_batch(5))
    assert graph.shard_sizes == (3, 2)


def test_what_is_changed_in_a_field_of_shards_stays_changed():
    graph = graph_on(2)
    graph.set_data_loader([make_batch(2, 1)], [make_batch(1)])
    (batch,) = graph.epoch(0)
    with minigrad.no_grad():
        right = graph(batch[0] * 0.0, batch[1]).tolist()
        batch[0].mul_(0.0)
        assert graph(batch[0], batch[1]).tolist() == graph.forward_batch(batch).tolist() == right
    assert batch[0] is batch[0] is batch[-3] and len(batch[:2]) == 2
    batch[0].requires_grad_()
    graph.forward_batch(batch).sum().backward()
    assert batch[0].grad.shape == (3, 3)


def test_a_field_of_shards_is_a_tensor_like_any_other():
    graph = graph_on(3)
    graph.set_data_loader([make_batch(2, 1)], [make_batch(1)], [make_batch(0)])
    (batch,) = graph.epoch(0)
    x = batch[0]
    assert (x.shape, x.ndim, x.dtype, x.device, len(x)) == ((3, 3), 2, minigrad.float64, graph.devices[0], 3)
    assert x.is_apart and (copy.deepcopy(x).data == x.data).all()
    with minigrad.no_grad():
        x *= 0.0
        assert (graph(x, batch[1]).numpy() == graph(x.detach().clone(), batch[1]).numpy()).all()  # as it is now
    for asked in (batch[0].requires_grad_(), batch[0].detach().requires_grad_()):
        graph(asked, batch[1]).sum().backward()
        assert asked.grad.shape == (3, 3) and (asked.grad.data[:3] != 0.0).any()
    other = graph_on(2)
    assert other(batch[0], batch[1]).shape == (3, 2)  # shards of other devices are no shards of its own


def test_the_number_of_loaders_fits_the_devices():
    loaders = [[make_batch(2)]] * 3
    graph = graph_on(2)
    with pytest.raises(ArgumentError, match="expected one loader, or one for each of 2 device.s., got 3"):
        graph.set_data_loader(*loaders)
    later = make_graph()
    later.set_data_loader(*loaders)
    with pytest.raises(ArgumentError, match="one for each of 2"):
        later.distribute(replica, ["cpu", "cpu"])
    later.set_data_loader([make_batch(2)])  # as if it had not been called
    later.distribute(replica, ["cpu", "cpu"])
    assert later.world_size == 2 and len(list(later.epoch(0))) == 1
    alone = make_graph()
    alone.set_data_loader(*loaders)
    with pytest.raises(ArgumentError, match="one for each of 1"):
        alone.epoch(0)
    hinted = graph_on(3, config=DdpConfig(speed_hint=(0, 2.0)))
    with pytest.raises(ArgumentError, match="expected one loader, whose batches are divided by speed_hint"):
        hinted.set_data_loader(*loaders)


def test_loaders_may_end_before_others():
    """Steps without a sample are none; those of the longest loader all count."""
    batches = [make_batch(2, seed) for seed in range(4)]
    graph = graph_on(2)
    graph.set_data_loader(batches[:1] + [make_batch(0)], [make_batch(0), make_batch(0), *batches[1:]])
    sizes = []
    for batch in graph.epoch(0):
        graph.backward_batch(batch)
        graph.step()
        sizes.append(batch.sizes)
    assert sizes == [(2, 0), (0, 2), (0, 2), (0, 2)]
    assert_trained(graph, trained_alone(batches, SGD))


@pytest.mark.parametrize("other, words", [
    ({"x": 0, "mask": 1, "target": 2}, "tuple of 3 and dict of mask, target, x"),
    ((0, 1), "tuple of 3 and tuple of 2"),
], ids=["kind", "length"])
def test_shards_have_one_form(other, words):
    """Or some devices' samples would lose fields that the others' have."""
    batch = make_batch(2)
    second = {key: batch[i] for key, i in other.items()} if isinstance(other, dict) else tuple(batch[i] for i in other)
    graph = graph_on(2)
    graph.set_data_loader([batch], [second])
    with pytest.raises(ArgumentError, match=f"ShardedBatch: expected the same form on all devices, got {words}"):
        list(graph.epoch(0))


def test_a_loader_keeps_its_own_order_and_epoch():
    arrays = [field.data for field in make_batch(10)]
    own = DataLoader(ArrayDataset(*arrays), 4, shuffle=True, seed=3)
    graph = graph_on(2)
    graph.set_data_loader(DataLoader(ArrayDataset(*arrays), 4, shuffle=True, seed=3))
    for number in (5, 0):
        own.sampler.set_epoch(number)
        for ours, theirs in zip(graph.epoch(number), own, strict=True):
            np.testing.assert_array_equal(ours[0].data, theirs[0].data)


# --------------------------------------------------------------------------------------------- state on all replicas


def test_freezing_holds_on_every_replica():
    graph = graph_on(3)
    for batch in (make_batch(5, 1), make_batch(5, 2)):
        frozen = values(graph)[2]
        graph.freeze("linear_1")
        loss_fn(graph, batch).backward()
        graph.step()
        assert all((values(one)[2] == frozen).all() for one in graph.replicas)
        graph.thaw()
        loss_fn(graph, batch).backward()
        graph.step()
        assert (values(graph)[2] != frozen).any()
    assert_trained(graph, values(graph))
    next(graph.replicas[1].parameters()).requires_grad = False
    loss_fn(graph, make_batch(6)).backward()
    with pytest.raises(ReplicaMismatchError, match="frozen|equal layouts"):
        graph.step()


def test_replicas_take_over_what_was_set_before():
    """Modes, frozen parts and profiling of before `distribute`, whatever the builder gives."""
    graph = make_graph()
    graph.eval("linear_0")
    graph.freeze("linear_1")
    graph.enable_profiling()
    graph.distribute(replica, ["cpu"] * 3)
    for one in graph.replicas:
        assert [name for name, part in one.named_modules() if not part.training] == ["linear_0"]
        assert one.is_frozen("linear_1") and not one.is_frozen("linear_0")
    graph.forward_batch(make_batch(6))
    assert all(one.node_times()["tanh_0"].count == 1 for one in graph.replicas)


def test_the_first_replica_is_the_graph_without_what_trains_it():
    """Two objects: the one is called, and shares its batches out; the other computes one of the shares."""
    graph = graph_on(2)
    first, second = graph.distributed.replicas
    assert graph.replicas == (graph, second) and first is not graph and not isinstance(first, Graph)
    assert all(one is other for one, other in zip(first.parameters(), graph.parameters()))
    x, mask, _ = make_batch(4)
    assert graph(x, mask).shape == first(x, mask).shape == (4, 2) and graph.shard_sizes == (2, 2)
    graph.eval()
    graph.linear_0 = nn.Linear(3, 4, dtype=minigrad.float64)
    assert not first.training and first.linear_0 is graph.linear_0


def test_modes_and_loading_hold_on_every_replica(tmp_path):
    def dropping(device=None):
        return FlowBuilder.from_(nn.Linear(3, 3)).through(nn.Dropout(0.5)).through(nn.BatchNorm1d(3)).build()

    graph = dropping()
    graph.distribute(dropping, ["cpu"] * 3)
    graph.set_optimizer(SGD)
    x = minigrad.randn(9, 3)
    graph.eval()
    assert (graph(x).data == graph(x).data).all()
    graph.train()
    assert (graph(x).data != graph(x).data).any()
    graph(x).square().mean().backward()
    graph.step()
    for name, buffer in graph.named_buffers():
        assert all((dict(one.named_buffers())[name].data == buffer.data).all() for one in graph.replicas)
    graph.save_checkpoint(tmp_path / "graph")
    saved = values(graph)
    graph(x).square().mean().backward()
    graph.step()
    graph.load_checkpoint(tmp_path / "graph")
    assert_trained(graph, saved, 0.0)


def test_running_statistics_come_from_a_replica_that_had_samples():
    def normed(device=None):
        return FlowBuilder.from_(nn.Linear(2, 2)).through(nn.BatchNorm1d(2)).build()

    graph = normed()
    graph.distribute(normed, ["cpu"] * 2)
    graph.set_optimizer(SGD)
    x = minigrad.randn(4, 2)
    graph.set_data_loader([None], [x])
    (batch,) = graph.epoch(0)
    graph.forward_batch(batch).square().mean().backward()
    graph.step()
    assert all(int(one.get_buffer("batchnorm1d_0.num_batches_tracked").item()) == 1 for one in graph.replicas)


# ----------------------------------------------------------------------------------------------- El Che and its loop


def test_el_che_needs_whole_batches():
    graph = make_graph()
    graph.distribute(replica, ["cpu", "cpu"], el_che=True)
    graph.set_data_loader([make_batch(3, seed) for seed in range(5)])
    assert graph.has_el_che
    with pytest.raises(ArgumentError, match="El Che runs backward after each .* got none: call set_loss_fn"):
        graph.epoch(0)
    with pytest.raises(ArgumentError, match=r"expected epoch\(\) and backward_batch\(\) for training with El Che"):
        graph.forward_batch(make_batch(3))
    with minigrad.no_grad():
        assert graph.forward_batch(make_batch(3)).shape == (3, 2)
    graph.set_loss_fn(loss_fn)
    (window,) = graph.epoch(0)
    assert sorted(window.counts) == [2, 3]
    with pytest.raises(ArgumentError, match="expected a batch, got several whole ones a device"):
        graph.forward_batch(window)
    shapes = []

    def with_tag(model, batch):
        """Inside, a tag is what the batch at hand gave."""
        loss = loss_fn(model, batch)
        shapes.append(graph.tagged("hidden").shape)
        assert (model.tagged("hidden").data == graph.tagged("hidden").data).all()
        return loss

    graph.set_loss_fn(with_tag)
    graph.backward_batch(window)
    assert shapes == [(3, 4)] * 5


def test_el_che_follows_the_devices():
    """Three times as fast means three times as many batches; a slow link makes the anchor grow to the target."""
    devices = SimulatedDevices(Cluster.of_speeds([3, 1], link=Link(latency_s=0.02)))
    graph = make_graph()
    graph.distribute(replica, devices, el_che=None)
    graph.set_optimizer(SGD)
    graph.set_loss_fn(loss_fn)
    graph.set_data_loader([make_batch(2, seed) for seed in range(400)])
    for window in graph.epoch(0):
        graph.backward_batch(window)
        graph.step()
    reasons = devices.trace.decisions
    assert reasons[0]["counts"] == (30, 10) and "speeds are known" in reasons[0]["reason"]
    assert [row["kind"] for row in reasons] == ["cadence"] * len(reasons)
    assert max(row["anchor"] for row in reasons) > 10
    assert graph.throughput == pytest.approx((3000.0, 1000.0))


def test_time_after_a_loss_that_failed_is_nobodys():
    clock = [0.0]
    devices = LocalDevices(["cpu"] * 2, make_timer=lambda device: HostTimer(lambda: clock[0]))
    graph = make_graph()
    graph.distribute(replica, devices, el_che=True)
    graph.set_optimizer(SGD)
    graph.set_data_loader([make_batch(1), make_batch(1)])

    def slow(model, batch):
        clock[0] += 1.0
        return loss_fn(model, batch)

    def failing(model, batch):
        raise ZeroDivisionError

    graph.set_loss_fn(failing)
    (window,) = graph.epoch(0)
    with pytest.raises(ZeroDivisionError):
        graph.backward_batch(window)
    clock[0] += 100.0
    graph.set_loss_fn(slow)
    graph.backward_batch(window)
    graph.step()
    assert graph.throughput == (1.0, 1.0)


def test_an_anchor_can_be_fixed():
    graph = make_graph()
    link = Link(latency_s=5.0)
    config = DdpConfig(max_anchor=2, speed_hint=(0, 2.0))
    graph.distribute(replica, SimulatedDevices(Cluster.of_speeds([1, 2], link=link)), config=config, el_che=True)
    graph.set_optimizer(SGD)
    graph.set_loss_fn(loss_fn)
    graph.set_data_loader([make_batch(2, seed) for seed in range(30)])
    for window in graph.epoch(0):
        assert window.counts == (2, 4)
        graph.backward_batch(window)
        graph.step()


# ------------------------------------------------------------------------------------------------------------ balance


def steps(graph, batches):
    sizes = []
    for batch in batches:
        graph.backward_batch(batch)
        graph.step()
        sizes.append(graph.shard_sizes)
    return sizes


def on_cluster(cluster, **options):
    graph, devices = make_graph(), SimulatedDevices(cluster)
    graph.distribute(replica, devices, **options)
    graph.set_optimizer(SGD)
    graph.set_loss_fn(loss_fn)
    return graph, devices


def test_shares_follow_the_devices_in_the_midst_of_an_epoch():
    graph, devices = on_cluster(Cluster.of_speeds([3, 2, 1]))
    batches = [make_batch(60, seed) for seed in range(12)]
    graph.set_data_loader(batches)
    sizes = steps(graph, graph.epoch(0))
    assert all(max(each) < 30 for each in sizes[:10]) and sizes[10:] == [(30, 20, 10)] * 2
    assert graph.chunk_ratios == pytest.approx((1 / 2, 1 / 3, 1 / 6))
    (decision,) = devices.trace.decisions
    assert decision["kind"] == "balance" and "takes" in decision["reason"] and decision["step"] == 10
    assert_trained(graph, trained_alone(batches, SGD))


def test_a_strategy_of_ones_own_divides_where_ours_does():
    def all_but_one(state, batch_size, readings):
        asked = (state or 0) + 1
        return asked, [batch_size - 1, 1], f"asked {asked} times"

    unlike = Cluster.of_speeds([1, 2])  # for which El Che would be on
    config = DdpConfig(strategy=all_but_one, calibration_steps=2, rebalance_interval=3)
    graph, devices = on_cluster(unlike, config=config)
    assert steps(graph, [make_batch(8)] * 6) == [(4, 4)] * 2 + [(7, 1)] * 4
    reasons = [(entry["step"], entry["reason"]) for entry in devices.trace.decisions]
    assert reasons == [(2, "asked 2 times"), (5, "asked 5 times")]
    with pytest.raises(ArgumentError, match="whose batches are divided by strategy, got one a device"):
        graph.set_data_loader([], [])
    wrong, _ = on_cluster(unlike, config=DdpConfig(strategy=lambda batch, speeds: [batch, 1]))
    with pytest.raises(ArgumentError, match=r"stateless\(.*<lambda>\): expected sizes of sum 8, got \(8, 1\) of sum 9"):
        steps(wrong, [make_batch(8)])
    with pytest.raises(ArgumentError, match="el_che: expected no strategy with el_che=True"):
        on_cluster(unlike, config=config, el_che=True)


def test_time_that_does_not_depend_on_the_samples_is_seen():
    """Launch-bound devices: whatever the shares were, equal ones are best."""
    graph, _ = on_cluster(Cluster((RankCost(0.010, 0.0001),) * 2), config=DdpConfig(speed_hint=(1, 1.5)))
    assert steps(graph, [make_batch(100, 0)] * 11)[-1] == (50, 50)


def test_each_device_is_told_its_own_time():
    """The one without samples in between is not measured, and those after it are not taken for it."""
    graph, _ = on_cluster(Cluster.of_speeds([8, 4, 2, 1], per_sample_s=0.008))
    graph.set_data_loader(*[[part] for part in cut(make_batch(5), (2, 0, 1, 2))])
    steps(graph, graph.epoch(0))
    assert graph.throughput == pytest.approx((1000.0, 0.0, 250.0, 125.0))


def test_the_whole_pass_is_timed_and_nothing_else():
    """Forward and backward of each device, neither the others' nor the reduction's."""
    clock = [0.0]

    def spend(seconds):
        clock[0] += seconds

    def slow(w, x):
        spend(1.0 * len(x))
        return boundary(x * w, lambda: spend(2.0 * len(x)))

    graph = FlowBuilder.from_(Giving(slow)).build()
    devices = LocalDevices(["cpu"] * 3, make_timer=lambda device: HostTimer(lambda: clock[0]))
    graph.distribute(graph.replicate, devices)
    graph.set_optimizer(SGD)
    output = graph(minigrad.tensor(np.arange(8.0)))
    spend(100.0)
    output.mean().backward()
    spend(100.0)
    graph.step()
    assert graph.throughput == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_throughput_is_an_average_that_a_new_reading_pulls_by_three_tenths():
    """A thousand samples a second, then half of that."""
    cost = RankCost(0.0, 0.001, slowdowns=(Slowdown(1, 2.0),))
    graph, _ = on_cluster(Cluster((cost,)))
    steps(graph, [make_batch(4)] * 2)
    assert graph.throughput == pytest.approx((850.0,))


def test_evaluation_is_not_timed_and_leaves_no_trace():
    graph, devices = on_cluster(Cluster.of_speeds([2, 1]))
    with minigrad.no_grad():
        graph.forward_batch(make_batch(6))
    assert graph.shard_sizes == () and [rank.steps for rank in devices.trace.ranks] == [[], []]


def test_two_runs_with_one_seed_are_the_same():
    def run():
        graph, devices = on_cluster(Cluster.of_speeds([2, 1], jitter_fraction=0.3, link=Link(1e-3, 1e6), seed=7))
        steps(graph, [make_batch(20, seed) for seed in range(12)])
        return devices.trace, values(graph)

    (one, first), (two, second) = run(), run()
    assert one == two and all((a == b).all() for a, b in zip(first, second))
    assert one.steps() == 12 and one.ranks[0].steps[3].exposed_s > 0.0 and one.throughput() > 0.0


def test_one_simulated_device_takes_its_time():
    graph, devices = on_cluster(Cluster.of_speeds([1], per_sample_s=0.01))
    steps(graph, [make_batch(5)] * 3)
    assert [step.compute_s for step in devices.trace.ranks[0].steps] == pytest.approx([0.05] * 3)


def test_a_timeline_hears_of_every_step_and_decision():
    heard = []

    class Notes:
        def event(self, kind, **fields):
            heard.append((kind, fields))

    graph, _ = on_cluster(Cluster.of_speeds([2, 1], link=Link(0.5)), config=DdpConfig(timeline=Notes()))
    steps(graph, [make_batch(6)] * 10)
    assert [kind for kind, _ in heard] == ["reduction", "step"] * 10 + ["balance"]
    assert heard[-1][1]["reason"] and heard[19][1]["sync_s"] == pytest.approx(1.0)
    assert heard[19][1]["samples"] == graph.shard_sizes and heard[19][1]["step"] == heard[18][1]["step"] == 10
    travelled = []
    group = graph.distributed.group
    group.all_reduce = lambda arrays, *rest: travelled.append(arrays[0].nbytes) or type(group).all_reduce(
        group, arrays, *rest
    )
    heard.clear()
    graph.freeze("hidden")
    graph.backward_batch(make_batch(6))
    graph.distributed.all_reduce_gradients()
    assert [kind for kind, _ in heard] == ["reduction"]
    assert heard[0][1] == {"step": 11, "nbytes": sum(travelled)} and travelled
    graph.step()
    assert [kind for kind, _ in heard] == ["reduction", "step"]  # combined once
    heard.clear()
    graph, _ = on_cluster(Cluster.of_speeds([1]), config=DdpConfig(timeline=Notes(), calibration_steps=2))
    steps(graph, [make_batch(6)] * 3)
    assert [kind for kind, _ in heard] == ["step"] * 3  # one device has nothing to decide


# --------------------------------------------------------------------------------------------------------- on devices


def test_the_graph_has_to_be_on_its_device(strict_cupy):
    graph = make_graph()
    with pytest.raises(DeviceError, match="expected replica 0 on cuda:0"):
        graph.distribute(lambda device: make_graph(device=device), ["cuda:0"])


def test_an_output_may_change_in_place_on_one_device_as_on_none():
    def make():
        flow = FlowBuilder.from_(nn.Linear(3, 2)).tag("out")
        graph = flow.build()
        with minigrad.no_grad():
            for p in graph.parameters():
                p.fill_(0.5)
        return graph

    found = []
    for devices in (None, ["cpu"]):
        graph = make()
        if devices:
            graph.distribute(lambda device: make(), devices)
        output = graph(minigrad.ones(2, 3))
        output *= output.detach().clone()
        assert graph.tagged("out").tolist() == output.tolist() == [[4.0, 4.0]] * 2
        (output + graph.tagged("out")).sum().backward()
        found.append([p.grad.tolist() for p in graph.parameters()])
    assert found[0] == found[1]
