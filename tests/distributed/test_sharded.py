"""An optimizer of which each rank does a part: the bits and bytes of DDP, a W-th of the state, and what is refused."""

import contextlib
import copy
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad import Tensor, manual_seed, nn
from minigrad.distributed import DDP, Recording, ShardedOptimizer, fp16_compress_hook, replicas_agree, run, simulate
from minigrad.distributed.collectives import reduced
from minigrad.distributed.comm.threads import ThreadCommunicator
from minigrad.distributed.sharded import Ownership, own_by_shares, own_evenly
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    LayoutError,
    RankFailedError,
    ReplicaMismatchError,
    StateDictError,
)
from minigrad.optim import SGD, Adagrad, Adam, AdamW, GradScaler, RMSprop, clip_grad_norm_, lr_scheduler
from minigrad.testing.schedules import schedules
from tests.capture import models as capture
from tests.capture.test_ranks import on_ranks
from tests.distributed.worlds import run_ranks

STEPS = 20
OPTIMIZERS = {
    "sgd": functools.partial(SGD, lr=0.1),
    "momentum": functools.partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": functools.partial(Adam, lr=0.02, amsgrad=True),
    "adamw": functools.partial(AdamW, lr=0.02),
    "rmsprop": functools.partial(RMSprop, lr=0.02, centered=True, momentum=0.5),
    "adagrad": functools.partial(Adagrad, lr=0.1),
}


def small_net():
    manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1))


def batch(comm, step, size=5):
    """Uneven samples of a rank, none on some."""
    count = (2 * comm.rank + step) % 4 if comm.world_size > 1 else 2
    return Tensor(np.random.default_rng([comm.rank, step]).standard_normal((count, size)).astype(np.float32))


def make_both(comm, make, sharded, net=small_net, **options):
    ddp = DDP(net(), comm, bucket_cap_bytes=200)
    optimizer = make(ddp.parameters())
    return ddp, ShardedOptimizer(optimizer, ddp, **options) if sharded else optimizer


def backward(ddp, x):
    if len(x):
        ddp(x).square().mean().backward()
    else:
        ddp.flush()


def steps(ddp, optimizer, comm, numbers=range(6)):
    for step in numbers:
        backward(ddp, batch(comm, step))
        optimizer.step()
        optimizer.zero_grad()


def train(comm, make, sharded, **options):
    ddp, optimizer = make_both(comm, make, sharded, **options)
    steps(ddp, optimizer, comm)
    assert replicas_agree(ddp, comm)
    return bits(ddp), plain_state(optimizer)


def bits(module):
    return [x.detach().numpy().tobytes() for x in module.parameters()]


def plain_state(optimizer):
    """A whole state in bytes."""
    saved = optimizer.state_dict()
    state = {
        i: {name: x.numpy().tobytes() if isinstance(x, Tensor) else x for name, x in entry.items()}
        for i, entry in saved["state"].items()
    }
    return state, saved["param_groups"]


# ------------------------------------------------------------------------------------------------------------- the bits


class Towers(nn.Module):
    """A small net for each optimizer."""

    def __init__(self):
        super().__init__()
        manual_seed(0)
        self.towers = nn.ModuleList([nn.Linear(5, 3) for _ in OPTIMIZERS])

    def forward(self, x):
        return sum(tower(x).tanh() for tower in self.towers)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_parameters_and_state_have_the_bits_of_ddp(world):
    def body(comm, sharded):
        net = Towers()
        ddp = DDP(net, comm, bucket_cap_bytes=300)
        made = [make(tower.parameters()) for make, tower in zip(OPTIMIZERS.values(), net.towers)]
        made = [ShardedOptimizer(each, ddp) for each in made] if sharded else made
        for step in range(STEPS):
            backward(ddp, batch(comm, step))
            for each in made:
                each.step()
                each.zero_grad()
        return bits(net), [plain_state(each) for each in made]

    assert run(body, world, True) == run(body, world, False)


def test_unequal_shares_have_them_too():
    expected = run(train, 3, OPTIMIZERS["adam"], False)

    def body(comm):
        return train(comm, OPTIMIZERS["adam"], True, shares=[0.5, 0.0, 0.5], caps=[30, None, None])

    assert run(body, 3) == expected


class Mixed(nn.Module):
    """Three dtypes, a frozen bias, and a layer that some backwards leave out."""

    def __init__(self):
        super().__init__()
        manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3).double()
        self.third, self.narrow = nn.Linear(3, 3).double(), nn.Linear(7, 2).half()
        self.second.bias.requires_grad_(False)

    def forward(self, x, whole):
        hidden = self.first(x).tanh()
        out = self.second(hidden.double())
        out = self.third(out) if whole else out
        return out.square().mean() + self.narrow(hidden.half()).float().square().mean().double()


def of_groups(net):
    """AdamW in two groups, which mix dtypes and layers."""
    some = [net.first.weight, net.third.bias, net.narrow.weight]
    others = [net.first.bias, net.second.weight, net.second.bias, net.third.weight, net.narrow.bias]
    return AdamW([{"params": some}, {"params": others, "lr": 0.03}], lr=0.01, master_weights=True)


@pytest.mark.parametrize("world", [2, 3])
def test_groups_dtypes_frozen_unused_accumulated_and_scheduled(world):
    def body(comm, sharded):
        net = Mixed()
        ddp = DDP(net, comm, bucket_cap_bytes=100, find_unused_parameters=True, track_nonfinite=True)
        optimizer = of_groups(net)
        schedule = lr_scheduler.StepLR(optimizer, 2, 0.5)  # made for what is sharded then
        optimizer = ShardedOptimizer(optimizer, ddp) if sharded else optimizer
        for step in range(6):
            for synced in (False, True):
                x = batch(comm, step + synced)
                with contextlib.nullcontext() if synced else ddp.no_sync():
                    if len(x):
                        ddp(x, bool(step % 3)).backward()
                    elif synced:
                        ddp.flush()
            optimizer.step()
            optimizer.zero_grad(set_to_none=bool(step % 2))
            schedule.step()
        assert ddp.nonfinite_gradients() == []
        return bits(net), plain_state(optimizer)

    assert run(body, world, True) == run(body, world, False)


@pytest.mark.parametrize("kind", ["shm", "nccl"])
def test_on_processes_and_by_nccl(kind):
    def body(comm):
        return bits_only(comm, True) == bits_only(comm, False)

    def bits_only(comm, sharded):
        ddp, optimizer = make_both(comm, OPTIMIZERS["momentum"], sharded)
        steps(ddp, optimizer, comm, range(4))
        return bits(ddp)

    assert run_ranks(kind, body, 3) == [True] * 3


def test_captured_on_gpus_that_decide_themselves_whether_a_step_counts(cuda):
    def body(comm, sharded):
        ddp = DDP(small_net().to(comm.device), comm, bucket_cap_bytes=200)
        optimizer = OPTIMIZERS["adam"](ddp.parameters())
        if sharded:
            optimizer = ShardedOptimizer(optimizer, ddp, caps=[None, 44])  # the last bucket is not cut evenly
            owned = optimizer.gradients.ownership
            assert {owned.is_rooted(bucket) for bucket in range(len(owned.sizes))} == {True, False}
        scaler = GradScaler(growth_interval=2)

        def step(x):
            optimizer.zero_grad()
            loss = ddp(x[:, 1:]).square().mean() + ddp.module[-1].bias.sum() * x[0, 0]
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if sharded:
                optimizer.clip_grad_norm_(1e9)
            scaler.step(optimizer)
            scaler.update()

        xs = [np.full((2 + comm.rank, 6), x, np.float32) for x in (0.1, 0.3, 0.1, 0.2)]
        xs[2][0, 0] = np.inf
        xs = [Tensor(x).to(comm.device) for x in xs]
        step = capture.started(step, xs[0], sharded)
        for x in xs:
            step(x)
        return capture.state(ddp.module, optimizer), scaler.get_scale()

    plain = on_ranks(cuda, functools.partial(body, sharded=False))
    assert plain == on_ranks(cuda, functools.partial(body, sharded=True))
    assert plain[0][0][1][0]["step"] == 5 and plain[0][1] == 2.0**17


def test_in_any_order_of_ranks_and_on_a_simulated_cluster():
    expected = run(train, 2, OPTIMIZERS["adam"], False)

    def same(comm):
        assert train(comm, OPTIMIZERS["adam"], True) == expected[comm.rank]

    assert schedules(lambda: run(same, 2), 2) is None
    simulate.run(same, simulate.Cluster.of_speeds([2, 1]))


def test_a_wrong_run_is_noticed(monkeypatch):
    def next_ones(self, what, output, source, op):
        def combine(pairs):
            outputs, sources = zip(*pairs)
            parts = reduced(list(sources), op).reshape(len(outputs), -1).copy()
            for rank, each in enumerate(outputs):
                each[...] = parts[(rank + 1) % len(outputs)]

        return self._start(what, source, (output, source), combine)

    expected = run(train, 2, OPTIMIZERS["sgd"], False)
    monkeypatch.setattr(ThreadCommunicator, "_reduce_scatter", next_ones)
    assert run(train, 2, OPTIMIZERS["sgd"], True) != expected


# ------------------------------------------------------------------------------------------------------ bytes and state


@pytest.mark.parametrize("world, padding", [(2, 0), (3, 2), (4, 0)])
def test_a_ring_moves_the_bytes_of_ddp(world, padding):
    def body(comm, sharded):
        recording = Recording(comm)
        ddp, optimizer = make_both(recording, OPTIMIZERS["adam"], sharded)
        recording.calls.clear()
        steps(ddp, optimizer, recording, [1])
        sizes = [bucket.stop - bucket.start for bucket in ddp.plan.buckets]
        recording.calls = [call for call in recording.calls if call.dtype == "float32"]
        return sizes, [(call.kind, call.count) for call in recording.calls], recording.wire_bytes

    sizes, plain, _ = run(body, world, False)[0]
    assert plain == [("all_reduce", n) for n in sizes]
    _, calls, wire_bytes = run(body, world, True)[0]
    padded = [-(-n // world) * world for n in sizes]
    assert all(n <= p <= n + padding for n, p in zip(sizes, padded))
    assert calls == [("reduce_scatter", p) for p in padded] + [("all_gather", p // world) for p in padded]
    # a ring sends 2 (W-1)/W n for an all-reduce, (W-1)/W n to scatter sums, and as much to gather n
    wire = sum(p * (world - 1) // world for p in padded) * 2
    assert wire_bytes == 4 * wire
    assert sum(2 * (world - 1) * n / world for n in sizes) <= wire
    assert wire <= sum(2 * (world - 1) * (n + world - 1) / world for n in sizes)


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_rank_keeps_its_part_of_the_state(world):
    def body(comm, sharded):
        ddp, optimizer = make_both(comm, OPTIMIZERS["adamw"], sharded)
        if sharded:
            assert not ddp.module[0].weight.flat.companions[0]() is optimizer.inner
        arrays = [x for state in optimizer._state.values() for x in state.values()]
        assert not sharded or optimizer.state_bytes() == sum(x.nbytes for x in arrays)
        return sum(x.nbytes for x in arrays), max(bucket.nbytes for bucket in ddp.plan.buckets)

    whole, bucket = run(body, world, False)[0]
    parts = [part for part, _ in run(body, world, True)]
    least = 2 * 4 * sum(param.numel() for param in small_net().parameters())
    assert least <= sum(parts) <= whole  # which has the padding that is nobody's
    assert max(parts) <= whole / world + 2 * bucket


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(0, 200), max_size=5), world=st.integers(1, 9), data=st.data())
def test_runs_cover_every_bucket_once(sizes, world, data):
    even = own_evenly(sizes, world)  # the constructor of the value checks that
    weights = data.draw(st.lists(st.integers(0, 5), min_size=world, max_size=world).filter(any))
    shares = [weight / sum(weights) for weight in weights]
    caps = [data.draw(st.none() | st.integers(0, 300)) for _ in range(world)]
    for bucket, size in enumerate(sizes):
        assert 0 <= even.wire_elements(bucket) - size <= world - 1
        assert not even.is_rooted(bucket)
    assert sum(even.elements(rank) for rank in range(world)) == (sum(sizes) if sizes else 0)
    if None not in caps and sum(caps) < sum(sizes):
        with pytest.raises(ArgumentError, match="caps"):
            own_by_shares(sizes, shares, caps)
        return
    free = own_by_shares(sizes, shares)
    for bucket, of_ranks in enumerate(free.runs):
        for rank, runs in enumerate(of_ranks):
            assert abs(sum(stop - start for start, stop in runs) - sizes[bucket] * shares[rank]) <= 1
    capped = own_by_shares(sizes, shares, caps)
    if sizes:
        assert all(cap is None or capped.elements(rank) <= cap for rank, cap in enumerate(caps))


@pytest.mark.parametrize(
    "runs", [(((0, 2),), ((3, 5),)), (((0, 3),), ((2, 5),)), (((0, 3),), ()), (((3, 5), (0, 3)), ())]
)
def test_runs_that_leave_an_element_out_or_share_one_are_refused(runs):
    with pytest.raises(ArgumentError, match="Ownership: expected"):
        Ownership((5,), (runs,))


# -------------------------------------------------------------------------------------------- clipping and loss scaling


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clipping_is_by_the_norm_of_all_ranks(norm_type):
    def body(comm, sharded):
        ddp, optimizer = make_both(comm, OPTIMIZERS["sgd"], sharded, lambda: small_net().double())
        ddp(batch(comm, 1 + comm.rank).double()).square().mean().backward()
        if sharded:
            norm = optimizer.clip_grad_norm_(0.1, norm_type)
        else:
            norm = clip_grad_norm_(ddp.parameters(), 0.1, norm_type)
        optimizer.step()
        return [norm.item(), *(x.detach().numpy() for x in ddp.parameters())]

    for plain, ours in zip(run(body, 3, False), run(body, 3, True)):
        assert plain[0] > 0.1
        for a, b in zip(plain, ours):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("world", [1, 3])
def test_an_overflow_in_the_run_of_one_rank_skips_the_step_on_all(world):
    def body(comm, sharded):
        ddp, optimizer = make_both(comm, OPTIMIZERS["adam"], sharded)
        scaler, scales = GradScaler(init_scale=4.0, growth_interval=2), []
        for step in range(6):
            x = batch(comm, step)
            if len(x):
                loss = ddp(x).square().mean()
                if step == 3:  # in the one element that the bias of the last layer has
                    loss = loss + ddp.module[-1].bias.sum() * float("inf")
                scaler.scale(loss).backward()
            else:
                ddp.flush()
            if step % 2:
                scaler.unscale_(optimizer)
            before = bits(ddp)
            scaler.step(optimizer)
            assert (bits(ddp) == before) == (step == 3)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return bits(ddp), plain_state(optimizer), scales

    assert run(body, world, True) == run(body, world, False)


# ---------------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("saver, loader", [(True, False), (False, True), (True, True)])
def test_a_checkpoint_goes_on_in_another_world_with_the_bits_of_ddp(saver, loader):
    def first(comm, sharded):
        ddp, optimizer = make_both(comm, OPTIMIZERS["adam"], sharded)
        steps(ddp, optimizer, comm, range(5))
        return copy.deepcopy((ddp.state_dict(), optimizer.state_dict()))

    def then(comm, sharded, saved):
        ddp, optimizer = make_both(comm, OPTIMIZERS["adam"], sharded)
        ddp.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        steps(ddp, optimizer, comm, range(5, 9))
        return bits(ddp), plain_state(optimizer)

    plain = run(then, 2, False, run(first, 3, False)[0])
    assert run(then, 2, loader, run(first, 3, saver)[1]) == plain


def test_state_that_was_there_is_kept_and_a_rank_that_loads_alone_is_found():
    def body(comm):
        ddp, plain = make_both(comm, OPTIMIZERS["adam"], False)
        steps(ddp, plain, comm, range(3))
        before = plain_state(plain)
        optimizer = ShardedOptimizer(plain, ddp)
        assert plain_state(optimizer) == before
        saved = optimizer.state_dict()
        saved["state"][0]["step"] += comm.rank
        optimizer.load_state_dict(saved)
        with pytest.raises(ReplicaMismatchError, match="step of"):
            backward(ddp, batch(comm, 1))

    run(body, 2)


def test_state_of_a_frozen_parameter_has_no_home():
    def body(comm):
        ddp, plain = make_both(comm, OPTIMIZERS["adam"], False)
        steps(ddp, plain, comm, range(1))
        saved, net = plain.state_dict(), small_net()
        net[0].bias.requires_grad_(False)
        ddp = DDP(net, comm)
        optimizer = ShardedOptimizer(OPTIMIZERS["adam"](net.parameters()), ddp)
        with pytest.raises(StateDictError, match="no state of frozen parameters, got that of 0.bias"):
            optimizer.load_state_dict(saved)
        with pytest.raises(ArgumentError, match="call state_dict"):
            optimizer.state

    run(body, 2)


def test_a_parameter_that_is_trained_later_needs_wrapper_and_optimizer_anew():
    def body(comm, sharded):
        net = small_net()
        net[0].bias.requires_grad_(False)
        ddp, optimizer = make_both(comm, OPTIMIZERS["adam"], sharded, lambda: net)
        steps(ddp, optimizer, comm, range(3))
        saved = optimizer.state_dict()
        net = ddp.unwrap()
        net[0].bias.requires_grad_()
        ddp, optimizer = make_both(comm, OPTIMIZERS["adam"], sharded, lambda: net)
        optimizer.load_state_dict(saved)
        steps(ddp, optimizer, comm, range(3, 5))
        return bits(ddp), plain_state(optimizer)

    assert run(body, 2, True) == run(body, 2, False)


def test_several_optimizers_and_a_group_that_comes_later():
    def body(comm, sharded):
        ddp = DDP(small_net(), comm, bucket_cap_bytes=200)
        params = list(ddp.parameters())
        made = [SGD(params[:2], lr=0.1, momentum=0.9), Adam(params[2:4], lr=0.01)]
        if sharded:
            made = [ShardedOptimizer(each, ddp) for each in made]
        made[1].add_param_group({"params": params[4:], "lr": 0.02})
        for step in range(5):
            backward(ddp, batch(comm, step))
            for each in made:
                each.step()
                each.zero_grad()
        return bits(ddp), [plain_state(each) for each in made]

    assert run(body, 3, True) == run(body, 3, False)


# -------------------------------------------------------------------------------------------------------------- refused


def divided(comm, use):
    """What happens to who takes a gradient for whole."""
    ddp, optimizer = make_both(comm, OPTIMIZERS["sgd"], True)
    ddp(Tensor(np.ones((2, 5), np.float32))).mean().backward()
    with pytest.raises((AutogradError, RankFailedError), match="has its own run alone"):
        use(ddp, optimizer)
    if use is flushed:
        return  # which other ranks wait for
    bias = ddp.module[0].bias
    bias.grad = Tensor(np.ones(bias.shape, np.float32))
    assert bias.grad is not None  # whole, as it was given
    optimizer.zero_grad()
    with ddp.no_sync():
        ddp(Tensor(np.ones((2, 5), np.float32))).mean().backward()
    assert ddp.module[0].weight.grad is not None  # local, and whole
    with pytest.raises(AutogradError, match="combined gradients"):
        optimizer.step()


def flushed(ddp, optimizer):
    with ddp.samples(2):
        ddp.flush()


@pytest.mark.parametrize(
    "use",
    [
        lambda ddp, optimizer: ddp.module[0].bias.grad,
        lambda ddp, optimizer: clip_grad_norm_(ddp.parameters(), 1.0),
        lambda ddp, optimizer: SGD(ddp.parameters(), lr=0.1).step(),
        lambda ddp, optimizer: optimizer.inner.step(),
        lambda ddp, optimizer: GradScaler().unscale_(optimizer.inner),
        lambda ddp, optimizer: ddp(Tensor(np.ones((2, 5), np.float32))).mean().backward(),
        flushed,
    ],
    ids=["grad", "clip", "plain step", "inner step", "unscale", "backward", "flush"],
)
def test_what_is_not_ones_own_is_never_taken_for_a_gradient(use):
    for world in (1, 2):
        run(divided, world, use)


def test_what_else_is_refused():
    def body(comm):
        ddp, optimizer = make_both(comm, OPTIMIZERS["sgd"], True)
        with pytest.raises(ArgumentError, match="not sharded"):
            ShardedOptimizer(optimizer, ddp)
        with pytest.raises(ArgumentError, match="which no other rank trains"):
            ShardedOptimizer(SGD(small_net().parameters(), lr=0.1), ddp)
        with pytest.raises(ArgumentError, match="shares of 2 ranks"):
            ShardedOptimizer(SGD(ddp.parameters(), lr=0.1), ddp, shares=[1.0])
        with pytest.raises(ArgumentError, match="first sharded optimizer"):
            ShardedOptimizer(SGD(ddp.parameters(), lr=0.1), ddp, shares=[0.25, 0.75])
        with pytest.raises(ArgumentError, match="gradients are whole"):
            copy.deepcopy(ddp)
        with pytest.raises(ArgumentError, match="got join"), ddp.join():
            backward(ddp, Tensor(np.ones((2, 5), np.float32)))
        ddp.module[0].bias.requires_grad_(False)
        optimizer.zero_grad()
        with pytest.raises(LayoutError, match="make the wrapper and the optimizer anew"):
            backward(ddp, Tensor(np.ones((2, 5), np.float32)))
        ddp.unwrap()
        with pytest.raises(LayoutError, match="make the wrapper and the optimizer anew"):
            optimizer.step()
        hooked, plain = make_both(comm, OPTIMIZERS["sgd"], False)
        hooked.register_comm_hook(None, fp16_compress_hook)
        with pytest.raises(ArgumentError, match="expected no hook yet"):
            ShardedOptimizer(plain, hooked)
        other, plain = make_both(comm, OPTIMIZERS["sgd"], False)
        with pytest.raises(ReplicaMismatchError, match="runs"):
            ShardedOptimizer(plain, other, shares=[0.5, 0.5] if comm.rank else [1.0, 0.0])

    run(body, 2)
