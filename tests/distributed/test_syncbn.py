"""SyncBatchNorm: batches of any sizes on any ranks give what BatchNorm gives on the joined batch."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.distributed import (
    DDP,
    Recording,
    SoloCommunicator,
    SyncBatchNorm,
    average_gradients,
    convert_sync_batchnorm,
    run,
)
from minigrad.distributed.comm.wrappers import Wrapper
from minigrad.errors import ShapeError
from minigrad.ops.statistics import merge_moments
from tests.distributed.models import assert_gradients_close, cuts_of, gradients, values
from tests.distributed.worlds import run_ranks

CHANNELS = 3
shard_lists = st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(lambda shards: sum(shards) > 1)


def batch(samples, seed, tail=(), offset=0.0, dtype=np.float64):
    """Inputs and a weight for each output."""
    rng = np.random.default_rng(seed)
    shape = (samples, CHANNELS, *tail)
    return (offset + rng.standard_normal(shape)).astype(dtype), rng.standard_normal(shape).astype(dtype)


def layer_of(make, dtype=np.float64):
    """A batch norm with a weight and a bias that matter."""
    layer = make()
    with minigrad.no_grad():
        layer.weight.copy_(minigrad.Tensor(np.array([0.5, -1.0, 2.0], dtype)))
        layer.bias.copy_(minigrad.Tensor(np.array([1.0, 0.0, -3.0], dtype)))
    return layer


def joined(inputs, weights, joint="sum", dtype=np.float64):
    """Output, input gradient, parameter gradients and buffers of BatchNorm on the whole batch."""
    make = nn.BatchNorm1d if inputs.ndim < 4 else nn.BatchNorm2d
    layer = layer_of(lambda: make(CHANNELS, dtype=dtype), dtype)
    x = minigrad.Tensor(inputs.copy(), requires_grad=True)
    y = layer(x)
    loss = (y * minigrad.Tensor(weights)).sum()
    (loss if joint == "sum" else loss / len(inputs)).backward()
    return y.data, x.grad_array, gradients(layer), {name: b.data.copy() for name, b in layer.named_buffers()}


def apart(comm, inputs, weights, shards, reduce, dtype=np.float64):
    """The same on one rank; parameter gradients combined, input gradients scaled as the reducer would."""
    part = cuts_of(shards)[comm.rank]
    layer = layer_of(lambda: SyncBatchNorm(CHANNELS, comm, dtype=dtype, reduce=reduce), dtype)
    x = minigrad.Tensor(inputs[part].copy(), requires_grad=True)
    y = layer(x)
    loss = (y * minigrad.Tensor(weights[part])).sum()
    count = shards[comm.rank]
    (loss if reduce == "sum" or not count else loss / count).backward()
    gradient = x.grad_array if reduce == "sum" else x.grad_array * (count / sum(shards))
    if reduce == "mean":
        average_gradients(layer.parameters(), comm, count)
    else:
        for param in layer.parameters():
            comm.all_reduce(param.grad_array).wait()
    return y.data, gradient, gradients(layer), {name: b.data.copy() for name, b in layer.named_buffers()}


def compare(ranks, whole, shards, tolerance):
    y, dx, grads, buffers = whole
    bound = tolerance * max(1.0, np.abs(dx).max(initial=0.0))
    for part, (own_y, own_dx, own_grads, own_buffers) in zip(cuts_of(shards), ranks):
        np.testing.assert_allclose(own_y, y[part], rtol=0, atol=tolerance * max(1.0, np.abs(y).max()))
        np.testing.assert_allclose(own_dx, dx[part], rtol=0, atol=bound)
        assert_gradients_close(own_grads, grads, tolerance)
        for name, value in buffers.items():
            np.testing.assert_allclose(own_buffers[name], value, rtol=tolerance, atol=tolerance)
            assert own_buffers[name].dtype == value.dtype
            assert own_buffers[name].tobytes() == ranks[0][3][name].tobytes()


@settings(max_examples=60, deadline=None)
@given(
    shards=shard_lists,
    tail=st.sampled_from([(), (5,), (2, 3)]),
    reduce=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 999),
)
def test_any_shards_equal_the_joined_batch(shards, tail, reduce, seed):
    inputs, weights = batch(sum(shards), seed, tail)
    ranks = run(apart, len(shards), inputs, weights, shards, reduce, timeout_s=10.0)
    compare(ranks, joined(inputs, weights, reduce), shards, 1e-12)


def test_processes_equal_the_joined_batch():
    inputs, weights = batch(9, 1, (2, 2))
    shards = [2, 0, 7]
    ranks = run_ranks("shm", lambda comm: apart(comm, inputs, weights, shards, "mean"), 3)
    compare(ranks, joined(inputs, weights, "mean"), shards, 1e-12)


def test_single_values_on_each_rank_are_a_batch():
    inputs, weights = batch(2, 0)
    compare(run(apart, 2, inputs, weights, [1, 1], "mean"), joined(inputs, weights, "mean"), [1, 1], 1e-12)


def test_images_of_different_sizes_count_by_their_pixels():
    """One image of 300 x 300 beside one of 500 x 500, shrunk: the running variance is that of all pixels."""
    rng = np.random.default_rng(0)
    images = [rng.standard_normal((1, CHANNELS, n, n)) * scale for n, scale in ((3, 1.0), (5, 4.0))]

    def body(comm):
        layer = SyncBatchNorm(CHANNELS, comm, momentum=1.0, dtype=np.float64)
        layer(minigrad.Tensor(images[comm.rank]))
        return layer.running_mean.data.copy(), layer.running_var.data.copy()

    pixels = np.concatenate([image.reshape(CHANNELS, -1) for image in images], axis=1)
    for mean, variance in run(body, 2):
        np.testing.assert_allclose(mean, pixels.mean(axis=1), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(variance, pixels.var(axis=1, ddof=1), rtol=1e-12)


@pytest.mark.parametrize("offset, spread", [(1e4, 1.0), (4096.0, 0.01)])
def test_data_far_from_zero_keep_their_precision_in_float32(offset, spread):
    """E[x²] - E[x]² would be wrong in the first digit, or negative."""
    rng = np.random.default_rng(0)
    inputs = (offset + spread * rng.standard_normal((16, CHANNELS))).astype(np.float32)
    shards = [5, 11]

    def body(comm):
        layer = SyncBatchNorm(CHANNELS, comm, eps=0.0, momentum=1.0)
        return layer(minigrad.Tensor(inputs[cuts_of(shards)[comm.rank]])).data, layer.running_var.data.copy()

    exact = inputs.astype(np.float64)
    normal = (exact - exact.mean(axis=0)) / exact.std(axis=0)
    for part, (y, variance) in zip(cuts_of(shards), run(body, 2)):
        np.testing.assert_allclose(y, normal[part], rtol=0, atol=1e-5)
        np.testing.assert_allclose(variance, exact.var(axis=0, ddof=1), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves(dtype):
    inputs, weights = batch(8, 0)
    half = minigrad.Tensor(inputs).to(dtype).data

    def body(comm):
        layer = SyncBatchNorm(CHANNELS, comm, dtype=dtype)
        x = minigrad.Tensor(half[cuts_of([3, 5])[comm.rank]], requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert y.dtype == x.grad.dtype == layer.weight.grad.dtype == half.dtype
        return y.data

    expected = joined(half.astype(np.float64), weights)[0]
    plain = (expected - [1.0, 0.0, -3.0]) / [0.5, -1.0, 2.0]
    for part, y in zip(cuts_of([3, 5]), run(body, 2)):
        np.testing.assert_allclose(y.astype(np.float64), plain[part], atol=0.02)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99)), min_size=1, max_size=5))
def test_merging_parts_is_the_whole(parts):
    data = [np.random.default_rng(seed).standard_normal((n, 2)) for n, seed in parts]
    rows = [
        [len(d), *(d.mean(axis=0) if len(d) else (0, 0)), *(d.var(axis=0) * len(d) if len(d) else (0, 0))]
        for d in data
    ]
    count, mean, squares = merge_moments(np.array(rows, np.float64))
    whole = np.concatenate(data)
    assert count == len(whole)
    if len(whole):
        np.testing.assert_allclose(mean, whole.mean(axis=0), atol=1e-13)
        np.testing.assert_allclose(squares, whole.var(axis=0) * len(whole), atol=1e-12)


# ------------------------------------------------------------------------------------------------------ in a network


class Net(nn.Module):
    """A convolution with two norms; smooth, so that float64 comparisons have no kinks."""

    def __init__(self, seed):
        super().__init__()
        minigrad.manual_seed(seed)
        self.conv = nn.Conv2d(2, CHANNELS, 2, dtype=np.float64)
        self.norm = nn.BatchNorm2d(CHANNELS, dtype=np.float64)
        self.fc = nn.Linear(CHANNELS * 4, 4, dtype=np.float64)
        self.last = nn.BatchNorm1d(4, dtype=np.float64)

    def forward(self, x):
        hidden = self.norm(self.conv(x))
        return self.last(self.fc((hidden * hidden).reshape(len(x), CHANNELS * 4)))


def images(samples, seed):
    """Inputs and targets."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((samples, 2, 3, 3)), rng.standard_normal((samples, 4))


def cubic_loss(output, target):
    """A mean over samples whose gradient is not orthogonal to what a norm removes; 0 for none."""
    total = (output * output * output / 10 + output * minigrad.Tensor(target)).sum()
    return total / len(target) if len(target) else total


def train(comm, shards, steps, bucket_cap_bytes=200):
    """Parameters and buffers after some steps."""
    net = convert_sync_batchnorm(Net(0), comm)
    ddp = DDP(net, comm, bucket_cap_bytes=bucket_cap_bytes)
    step = optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for seed in range(steps):
        inputs, targets = images(sum(shards), seed)
        part = cuts_of(shards)[comm.rank]
        step.zero_grad()
        cubic_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        step.step()
    return {**values(net), **{name: b.data.copy() for name, b in net.named_buffers()}}


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("shards", [[8], [4, 4], [1, 7], [2, 0, 6], [3, 1, 1, 3]], ids=str)
def test_ranks_train_like_one_device(kind, shards):
    """Unequal shards too: what flows back to another rank's samples is weighted by whose loss it comes from."""
    net = Net(0)
    step = optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for seed in range(6):
        inputs, targets = images(sum(shards), seed)
        step.zero_grad()
        cubic_loss(net(minigrad.Tensor(inputs)), targets).backward()
        step.step()
    expected = {**values(net), **{name: b.data for name, b in net.named_buffers()}}
    for actual in run_ranks(kind, lambda comm: train(comm, shards, 6), len(shards)):
        assert_gradients_close(actual, expected, 1e-10)


def test_samples_of_the_wrapper_weigh_the_losses():
    """Means over tokens, 5 on one rank and 1 on the other, though both batches have two samples."""
    inputs, targets = images(4, 0)
    tokens = np.array([3.0, 2.0, 1.0, 0.0])[:, None]

    def loss_of(output, part):
        return (output * output * minigrad.Tensor(tokens[part] * targets[part])).sum() / float(tokens[part].sum())

    def body(comm):
        part = cuts_of([2, 2])[comm.rank]
        ddp = DDP(convert_sync_batchnorm(Net(0), comm), comm)
        with ddp.samples(float(tokens[part].sum())):
            loss_of(ddp(minigrad.Tensor(inputs[part])), part).backward()
        return gradients(ddp.module)

    net = Net(0)
    loss_of(net(minigrad.Tensor(inputs)), slice(0, 4)).backward()
    for actual in run(body, 2, timeout_s=10.0):
        assert_gradients_close(actual, gradients(net), 1e-12)


def test_one_collective_forward_and_one_backward_for_each_layer():
    def body(comm):
        recording = Recording(comm)
        net = convert_sync_batchnorm(Net(0), recording)
        x = minigrad.Tensor(images(3, comm.rank)[0])
        y = net(x)
        forward = [call.kind for call in recording.calls]
        recording.calls.clear()
        y.sum().backward()
        backward = [call.kind for call in recording.calls]
        recording.calls.clear()
        net.eval()(x)
        return forward, backward, recording.calls

    for forward, backward, evaluation in run(body, 2):
        assert (forward, backward, evaluation) == (["all_gather"] * 2, ["all_reduce"] * 2, [])


class Slow(Wrapper):
    """A communicator whose work is never found done, only waited for; on one rank."""

    def around(self, call, arrays, make):
        work = make()
        if arrays and self.rank == 1:
            work = SimpleNamespace(wait=work.wait, done=lambda: False, span=None)
        return work


@pytest.mark.parametrize("find_unused", [False, True])
def test_the_order_of_collectives_does_not_depend_on_timing(find_unused):
    """Buckets go out between the collectives of the layers: at the same place on a rank that is late."""
    inputs, targets = images(6, 0)

    def body(comm):
        recording = Recording(Slow(comm))
        net = convert_sync_batchnorm(Net(0), recording)
        ddp = DDP(net, recording, bucket_cap_bytes=100, find_unused_parameters=find_unused)
        part = cuts_of([2, 4])[comm.rank]
        cubic_loss(ddp(minigrad.Tensor(inputs[part])), targets[part]).backward()
        return gradients(net), recording.calls

    net = Net(0)
    cubic_loss(net(minigrad.Tensor(inputs)), targets).backward()
    (first, calls), (second, late) = run(body, 2, timeout_s=5.0)
    assert [(c.kind, c.detail, c.count) for c in calls] == [(c.kind, c.detail, c.count) for c in late]
    assert_gradients_close(first, gradients(net), 1e-12)
    assert_gradients_close(second, gradients(net), 1e-12)


def test_the_first_layer_trains_although_its_input_wants_no_gradient():
    def body(comm):
        recording = Recording(comm)
        layer = SyncBatchNorm(CHANNELS, recording, dtype=np.float64)
        (layer(minigrad.Tensor(batch(3, comm.rank)[0])) * 2.0).sum().backward()
        return layer.bias.grad_array.tolist(), [call.kind for call in recording.calls]

    assert run(body, 2) == [([6.0] * CHANNELS, ["all_gather"])] * 2


def test_without_parameters_or_running_statistics():
    inputs, weights = batch(6, 0)

    def body(comm):
        layer = SyncBatchNorm(CHANNELS, comm, affine=False, track_running_stats=False, reduce="sum")
        x = minigrad.Tensor(inputs[cuts_of([2, 4])[comm.rank]], requires_grad=True)
        (layer(x) * minigrad.Tensor(weights[cuts_of([2, 4])[comm.rank]])).sum().backward()
        return x.grad_array

    x = minigrad.Tensor(inputs, requires_grad=True)
    plain = nn.BatchNorm1d(CHANNELS, affine=False, track_running_stats=False)
    (plain(x) * minigrad.Tensor(weights)).sum().backward()
    np.testing.assert_allclose(np.concatenate(run(body, 2)), x.grad_array, atol=1e-12)


def test_an_average_over_all_batches():
    def body(comm):
        layer = SyncBatchNorm(CHANNELS, comm, momentum=None, dtype=np.float64)
        for seed in range(3):
            layer(minigrad.Tensor(batch(4, seed)[0][2 * comm.rank : 2 * comm.rank + 2]))
        return layer.running_mean.data.copy(), int(layer.num_batches_tracked)

    expected = np.mean([batch(4, seed)[0].mean(axis=0) for seed in range(3)], axis=0)
    for mean, batches in run(body, 2):
        np.testing.assert_allclose(mean, expected, atol=1e-13)
        assert batches == 3


def test_no_samples_at_all_move_nothing_and_a_single_one_is_refused_everywhere():
    def body(comm, shards):
        layer = SyncBatchNorm(CHANNELS, comm, dtype=np.float64)
        return layer(minigrad.Tensor(np.ones((shards[comm.rank], CHANNELS)))).shape, int(layer.num_batches_tracked)

    assert run(body, 2, [0, 0]) == [((0, CHANNELS), 0)] * 2

    def refused(comm):
        with pytest.raises(ShapeError, match="got one over all ranks"):
            body(comm, [0, 1])
        return True

    assert run(refused, 2) == [True, True]


# -------------------------------------------------------------------------------------------------------- converting


def test_converting_keeps_parameters_buffers_hooks_modes_and_sharing():
    solo = SoloCommunicator()
    norm = nn.BatchNorm1d(3, eps=0.5, momentum=None)
    norm.eval()
    seen = []
    norm.register_forward_hook(lambda module, args, output: seen.append(type(module).__name__))
    net = nn.Sequential(nn.Linear(3, 3), norm, nn.Sequential(norm, nn.LayerNorm(3)))
    before = [id(t) for t in (*net.parameters(), *net.buffers())]
    names = list(net.state_dict())
    assert convert_sync_batchnorm(net, solo) is net
    assert [id(t) for t in (*net.parameters(), *net.buffers())] == before
    assert list(net.state_dict()) == names
    assert isinstance(net[1], SyncBatchNorm) and net[1] is net[2][0]
    assert (net[1].eps, net[1].momentum, net[1].training, net[1].comm) == (0.5, None, False, solo)
    net(minigrad.randn(2, 3))
    assert seen == ["SyncBatchNorm"] * 2
    kept = net[1]
    assert convert_sync_batchnorm(net, solo)[1] is kept
    alone = convert_sync_batchnorm(nn.BatchNorm2d(3), solo)
    assert isinstance(alone, SyncBatchNorm)


def test_a_copy_shares_the_ranks_but_not_the_wrapper():
    ddp = DDP(convert_sync_batchnorm(Net(0), SoloCommunicator()), SoloCommunicator())
    assert ddp.module.norm.weigher is ddp.reducer
    twin = copy.deepcopy(ddp.module)
    assert twin.norm.comm is ddp.module.norm.comm and twin.norm.weigher is None
    assert copy.deepcopy(ddp).module.norm.weigher is not ddp.reducer
    assert ddp.unwrap().norm.weigher is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_behind_a_layer_in_half_precision_it_computes_in_float32(dtype):
    x = minigrad.Tensor(np.random.default_rng(0).standard_normal((6, CHANNELS)).astype(np.float32)).to(dtype)

    def body(comm, norm):
        with minigrad.autocast(dtype):
            return norm(comm)(x[comm.rank :: comm.world_size]).detach().numpy()

    (whole,) = run(body, 1, lambda comm: nn.BatchNorm1d(CHANNELS))
    parts = run(body, 2, lambda comm: SyncBatchNorm(CHANNELS, comm))
    assert all(part.dtype == np.float32 for part in parts)
    for rank, part in enumerate(parts):
        np.testing.assert_allclose(part, whole[rank::2], rtol=1e-5, atol=1e-5)
