"""Ddp.wrap: several replicas driven by one thread; average_gradients: the same over ranks, as a function."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, Ddp, Recording, SoloCommunicator, average_gradients, collectives, run
from minigrad.errors import (
    ArgumentError,
    CollectiveMismatchError,
    DeviceError,
    DtypeError,
    LayoutError,
    ReplicaMismatchError,
    UnreducedGradientError,
)
from minigrad.nn.parameter import Buffer, Parameter
from tests.distributed.models import Counting, Mlp, assert_gradients_close, cuts_of, data, gradients, mean_loss, values
from tests.distributed.worlds import run_ranks

shard_lists = st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(sum)


def replicas(count, make=Mlp, **options):
    """Replicas of one model with the values of the first, and what combines them."""
    models = [make(seed) for seed in range(count)]
    ddp = Ddp.wrap(models, ["cpu"] * count, **options)
    ddp.sync_params()
    return models, ddp


def backward(models, batch, shards):
    """Each replica's gradients of the mean loss over its shard; none for an empty one."""
    inputs, targets = batch
    for model, part in zip(models, cuts_of(shards)):
        if part.stop > part.start:
            mean_loss(model(minigrad.Tensor(inputs[part])), targets[part]).backward()


def one_device(batch, seed=0):
    """The gradients of the whole batch in one replica."""
    model = Mlp(seed)
    mean_loss(model(minigrad.Tensor(batch[0])), batch[1]).backward()
    return gradients(model)


def same_bits(left, right):
    """Whether two dicts of arrays hold the same bits, or None alike."""
    return all((a is None and b is None) or a.tobytes() == b.tobytes() for a, b in zip(left.values(), right.values()))


@settings(max_examples=60, deadline=None)
@given(shards=shard_lists, cap=st.integers(1, 2000), seed=st.integers(0, 999))
def test_any_shards_give_the_gradient_of_the_global_mean(shards, cap, seed):
    batch = data(sum(shards), seed)
    models, ddp = replicas(len(shards), bucket_cap_bytes=cap, first_bucket_bytes=cap)
    backward(models, batch, shards)
    ddp.weighted_all_reduce_gradients(shards)
    for model in models:
        assert_gradients_close(gradients(model), one_device(batch))
        assert same_bits(gradients(model), gradients(models[0]))


@settings(max_examples=25, deadline=None)
@given(shards=st.lists(st.integers(1, 9), min_size=1, max_size=4), cap=st.integers(1, 2000))
def test_three_ways_give_the_same_bits(shards, cap):
    """Replicas in one thread, ranks with a wrapper, ranks with the plain function."""
    batch = data(sum(shards), 0)
    models, ddp = replicas(len(shards), bucket_cap_bytes=cap)
    backward(models, batch, shards)
    ddp.weighted_all_reduce_gradients(shards)

    def body(comm, wrapped):
        part = cuts_of(shards)[comm.rank]
        model = Mlp(0)
        call = DDP(model, comm, bucket_cap_bytes=cap) if wrapped else model
        mean_loss(call(minigrad.Tensor(batch[0][part])), batch[1][part]).backward()
        if not wrapped:
            average_gradients(model.parameters(), comm, len(batch[1][part]))
        return gradients(model)

    for wrapped in (True, False):
        for actual in run(body, len(shards), wrapped, timeout_s=10.0):
            assert same_bits(actual, gradients(models[0]))


def test_equal_weights_are_the_plain_mean():
    models, ddp = replicas(4)
    for rank, model in enumerate(models):
        for param in model.parameters():
            param.grad = minigrad.Tensor(np.full(param.shape, float(rank)))
    ddp.all_reduce_gradients()
    assert all((g == 1.5).all() for model in models for g in gradients(model).values())
    ddp.all_reduce_gradients()
    assert all((g == 1.5).all() for model in models for g in gradients(model).values())


def test_training_is_that_of_one_device():
    shards = [3, 0, 6]
    models, ddp = replicas(3)
    steps = [optim.Adam(model.parameters(), lr=0.01) for model in models]
    alone = copy.deepcopy(models[0])
    step = optim.Adam(alone.parameters(), lr=0.01)
    for seed in range(20):
        batch = data(9, seed)
        for each in (*steps, step):
            each.zero_grad()
        backward(models, batch, shards)
        ddp.weighted_all_reduce_gradients(shards)
        mean_loss(alone(minigrad.Tensor(batch[0])), batch[1]).backward()
        for each in (*steps, step):
            each.step()
    for model in models:
        assert_gradients_close(values(model), values(alone), 1e-8)
        assert same_bits(values(model), values(models[0]))


def test_sizes_devices_and_plan():
    models, ddp = replicas(2, bucket_cap_bytes=64, first_bucket_bytes=64)
    assert ddp.world_size == 2
    assert [str(device) for device in ddp.devices] == ["cpu", "cpu"]
    assert ddp.models == tuple(models)
    assert len(ddp.plan.buckets) == 3


# ------------------------------------------------------------------------------------------------- values, buffers


def test_values_and_buffers_come_from_replica_0_in_place():
    models = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2)]
    for model in models:
        model(minigrad.randn(5, 3))
    first = {name: value.data.copy() for name, value in models[0].state_dict().items()}
    kept = [id(t) for t in models[1].state_dict().values()]
    ddp = Ddp.wrap(models, ["cpu", "cpu"])
    ddp.sync_buffers()
    second = {name: value.data.copy() for name, value in models[1].state_dict().items()}
    assert second["1.running_mean"].tobytes() == first["1.running_mean"].tobytes()
    assert second["0.weight"].tobytes() != first["0.weight"].tobytes()
    ddp.sync_params()
    for model in models:
        assert same_bits({name: value.data for name, value in model.state_dict().items()}, first)
    assert len(kept) == len(models[1].state_dict())


def test_a_graph_that_saved_the_old_values_notices_the_new_ones():
    models, ddp = replicas(2)
    loss = models[1](minigrad.Tensor(data(2, 0)[0])).sum()
    ddp.sync_params()
    with pytest.raises(minigrad.errors.AutogradError):
        loss.backward()


def test_syncing_touches_no_parameters_of_others():
    """An optimizer laid out a second module in the same flat buffer."""
    models, others = [Mlp(0), Mlp(1)], [Mlp(2), Mlp(3)]
    for model, other in zip(models, others):
        optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)
    Ddp.wrap(models, ["cpu", "cpu"]).sync_params()
    assert same_bits(values(models[1]), values(Mlp(0)))
    assert same_bits(values(others[1]), values(Mlp(3)))


# ---------------------------------------------------------------------------------------------- missing gradients


def test_a_replica_without_gradient_is_named_with_the_parameter_and_nothing_changes():
    """Neither a panic, nor a replica that is passed over."""
    for absent in (0, 1):
        models, ddp = replicas(2)
        backward(models, data(4, 0), [2, 2])
        models[absent].b1.grad = None
        before = [gradients(model) for model in models]
        with pytest.raises(UnreducedGradientError, match=f"parameter b1 on every .* none on rank {absent}:"):
            ddp.all_reduce_gradients()
        with pytest.raises(UnreducedGradientError, match=f"parameter b1 on every .* none on rank {absent}:"):
            ddp.weighted_all_reduce_gradients([1, 2])
        assert all(same_bits(gradients(model), old) for model, old in zip(models, before))


def test_a_replica_that_counts_nothing_needs_none_and_adds_none():
    models, ddp = replicas(3)
    batch = data(6, 0)
    backward(models, batch, [2, 0, 4])
    models[1].w1.grad = minigrad.Tensor(np.full(models[1].w1.shape, np.nan))
    ddp.weighted_all_reduce_gradients([2, 0, 4])
    for model in models:
        assert_gradients_close(gradients(model), one_device(batch))


def test_a_gradient_that_no_replica_has_stays_none():
    """Else weight decay would move what one device leaves alone."""
    models, ddp = replicas(2, bucket_cap_bytes=10**6)
    for model in models:
        (model.w1 * 2.0).sum().backward()
    ddp.all_reduce_gradients()
    for model in models:
        found = gradients(model)
        assert (found["w1"] == 2.0).all() and found["b1"] is None and found["w2"] is None


def test_frozen_parameters_are_left_alone_and_thawing_is_noticed():
    models, ddp = replicas(2)
    before = ddp.plan.id
    for model in models:
        model.w2.requires_grad_(False)
    backward(models, data(4, 0), [2, 2])
    ddp.all_reduce_gradients()
    assert ddp.plan.id != before and gradients(models[0])["w2"] is None
    models[1].w2.requires_grad_(True)
    with pytest.raises(ReplicaMismatchError, match="equal layouts on all ranks, got .*'w2'"):
        ddp.all_reduce_gradients()


def test_gradients_from_before_parameters_were_frozen_are_combined_too():
    """An optimizer steps them: left alone, they would pull the replicas apart."""
    models, ddp = replicas(2)
    backward(models, data(4, 0), [2, 2])
    expected = sum(gradients(model)["w1"] for model in models) / 2
    for model in models:
        model.w1.requires_grad_(False)
    ddp.all_reduce_gradients()
    for model in models:
        np.testing.assert_allclose(gradients(model)["w1"], expected)


# ----------------------------------------------------------------------------------------------------- wrong use


def test_replicas_in_different_modes_are_refused():
    models, ddp = replicas(2, lambda seed: nn.Sequential(Mlp(seed), nn.Dropout(0.5)))
    backward(models, data(4, 0), [2, 2])
    models[0][1].eval()
    with pytest.raises(ReplicaMismatchError, match="got training of 1 is False on rank 0 and True on rank 1"):
        ddp.all_reduce_gradients()


@pytest.mark.parametrize(
    "counts, words",
    [
        ([1], "2 batch counts, got 1"),
        ([1, 2, 3], "2 batch counts, got 3"),
        ([1, -1], "batch count of rank 1: expected a finite number of samples >= 0, got -1"),
        ([float("nan"), 1], "batch count of rank 0"),
        ([float("inf"), 1], "batch count of rank 0"),
        (["many", 1], "batch count of rank 0"),
        ([0, 0], r"above 0, got \[0, 0\]"),
    ],
)
def test_wrong_batch_counts(counts, words):
    models, ddp = replicas(2)
    backward(models, data(4, 0), [2, 2])
    with pytest.raises(ArgumentError, match=words):
        ddp.weighted_all_reduce_gradients(counts)


def test_what_cannot_be_wrapped():
    one = Mlp(0)
    tied = Mlp(1)
    tied.w2 = one.w2
    wrapped = DDP(Mlp(0), SoloCommunicator()).module
    frozen = Mlp(0).requires_grad_(False)
    for models, devices, words in [
        ([], [], "got 0 and 0"),
        ([one], ["cpu", "cpu"], "got 1 and 2"),
        ([one, 3], ["cpu", "cpu"], "got int as replica 1"),
        ([one, one], ["cpu", "cpu"], "got one w1 in replicas 0 and 1"),
        ([one, tied], ["cpu", "cpu"], "got one w2 in replicas 0 and 1"),
        ([wrapped], ["cpu"], "replica 0: expected parameters that nothing reduces yet"),
        ([frozen], ["cpu"], "requires grad, got none in Mlp"),
        ([Mlp(0), Mlp(1)], ["cuda:0", "cuda:0"], "each GPU once, got cuda:0, cuda:0"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            Ddp.wrap(models, devices)
    with pytest.raises(DeviceError, match="collectives for several devices, got cpu, cuda:0"):
        Ddp.wrap([Mlp(0), Mlp(1)], ["cpu", "cuda:0"])
    with pytest.raises(DeviceError, match="replica 1 on cuda:0, got w1 on cpu"):
        Ddp.wrap([Mlp(0), Mlp(1)], ["cpu", "cuda:0"], collectives=collectives)
    with pytest.raises(ArgumentError, match="cap_bytes to be an integer >= 1"):
        Ddp.wrap([Mlp(0)], ["cpu"], bucket_cap_bytes=0)


def test_replaced_moved_and_added_parameters_are_noticed():
    models, ddp = replicas(2)
    models[1].w2 = Parameter(np.zeros((2, 5)))
    with pytest.raises(LayoutError, match="rank 1: Replicas: .* got others at w2"):
        ddp.all_reduce_gradients()
    models, ddp = replicas(2)
    models[0].w2.data = np.zeros((2, 5))
    with pytest.raises(LayoutError, match=r"parameter w2 of float64 \(2, 5\)"):
        ddp.sync_params()
    models, ddp = replicas(2)
    models[0].extra = Parameter(np.zeros(1))
    with pytest.raises(LayoutError, match="got others at extra"):
        ddp.sync_buffers()
    models, ddp = replicas(2)
    models[0].extra = Buffer(np.zeros(1))
    with pytest.raises(ReplicaMismatchError, match="buffer 'extra' .* on rank 0 and missing on rank 1"):
        ddp.sync_buffers()


def test_replicas_that_an_optimizer_laid_out_together_are_refused():
    models = [Mlp(0), Mlp(1)]
    optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    with pytest.raises(ReplicaMismatchError, match="give each replica an optimizer of its own"):
        Ddp.wrap(models, ["cpu", "cpu"])


def test_collectives_can_be_given():
    """The seam for replicas on several GPUs."""
    counting, models = Counting(), [Mlp(0), Mlp(1)]
    ddp = Ddp.wrap(models, ["cpu", "cpu"], collectives=counting, bucket_cap_bytes=64, first_bucket_bytes=64)
    ddp.sync_params()
    backward(models, data(4, 0), [2, 2])
    ddp.all_reduce_gradients()
    assert len(counting.broadcasts) == 1
    sizes = [[array.size for array in arrays] for arrays in counting.reduced]
    assert sizes == [[b.stop - b.start] * 2 for b in ddp.plan.buckets]


# ---------------------------------------------------------------------------------------------- average_gradients


@pytest.mark.parametrize("kind", ["threads", "shm"])
def test_the_function_weighs_by_samples(kind):
    shards, batch = [3, 0, 5], data(8, 0)

    def body(comm):
        part = cuts_of(shards)[comm.rank]
        model = Mlp(0)
        if shards[comm.rank]:
            mean_loss(model(minigrad.Tensor(batch[0][part])), batch[1][part]).backward()
        average_gradients(model.parameters(), comm, shards[comm.rank])
        return gradients(model)

    for actual in run_ranks(kind, body, 3):
        assert_gradients_close(actual, one_device(batch))


def test_the_function_names_who_lacks_a_gradient_on_all_ranks():
    def body(comm):
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        for name, param in model.named_parameters():
            param.name = name
            if comm.rank != 1 or name != "1.weight":
                param.grad = minigrad.Tensor(np.ones(param.shape, np.float32))
        with pytest.raises(UnreducedGradientError, match="gradient of parameter 1.weight on every .* none on rank 1:"):
            average_gradients(model.parameters(), comm, 2)
        average_gradients(model.parameters(), comm, 2 if comm.rank != 1 else 0)
        return gradients(model)

    for actual in run(body, 3, timeout_s=10.0):
        assert all((gradient == 1.0).all() for gradient in actual.values())


def test_the_function_without_samples_or_gradients():
    def body(comm):
        recording = Recording(comm)
        model = Mlp(0)
        model.w1.grad = minigrad.Tensor(np.full(model.w1.shape, 7.0))
        average_gradients(model.parameters(), recording, 0)
        return gradients(model), [call.kind for call in recording.calls]

    for found, calls in run(body, 2, timeout_s=10.0):
        assert (found["w1"] == 7.0).all() and found["b1"] is None
        assert calls == ["all_gather"]


def test_the_function_refuses_wrong_arguments():
    solo = SoloCommunicator()
    with pytest.raises(ArgumentError, match="average_gradients: .* >= 0, got -1"):
        average_gradients([], solo, -1)
    with pytest.raises(DtypeError, match="expected parameters, got Tensor"):
        average_gradients([minigrad.randn(2)], solo, 1)
    for params in (0.5, minigrad.randn(2)):
        with pytest.raises(ArgumentError, match="average_gradients: expected an iterable of parameters, got"):
            average_gradients(params, solo, 1)
    with pytest.raises(ArgumentError, match="average_gradients: expected a communicator, got NoneType"):
        average_gradients([], None, 1)
    with pytest.raises(ArgumentError, match="average_gradients: expected at least one parameter, got none"):
        average_gradients([], solo, 1)

    def body(comm):
        with pytest.raises(CollectiveMismatchError):
            average_gradients([Parameter(np.zeros(2)), Parameter(np.zeros(3))][comm.rank:], comm, 1)
        return True

    assert run(body, 2, timeout_s=10.0) == [True, True]


def test_groups_are_the_tensors_themselves_in_the_order_of_the_module():
    """As the seeds have them: param_groups[i][rank]; a change through one is a change of that replica."""
    models, ddp = replicas(3, lambda seed: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    for groups, kind in ((ddp.param_groups, "named_parameters"), (ddp.buffer_groups, "named_buffers")):
        named = [[*getattr(model, kind)()] for model in models]
        assert [group.name for group in groups] == [name for name, _ in named[0]]
        assert [len(group) for group in groups] == [3] * len(groups)
        for i, group in enumerate(groups):
            assert all(group[rank] is named[rank][i][1] for rank in range(3))
    with minigrad.no_grad():
        for group in ddp.param_groups:
            group[2].fill_(7.0)
    assert not same_bits(values(models[0]), values(models[2])) and (models[2][0].weight.data == 7.0).all()
    ddp.sync_params()
    assert same_bits(values(models[0]), values(models[2]))
    models[1][0].weight = Parameter(np.zeros((3, 2), np.float32))
    with pytest.raises(LayoutError, match="rank 1"):
        ddp.param_groups
    with pytest.raises(LayoutError, match="rank 1"):
        ddp.buffer_groups


def test_buffers_that_one_replica_has_lost_are_in_no_group_of_others():
    models, ddp = replicas(2, lambda seed: nn.BatchNorm1d(3))
    del models[1].running_mean
    with pytest.raises(LayoutError, match="rank 1: expected the tensors of rank 0, .* got others at running_mean"):
        ddp.buffer_groups
