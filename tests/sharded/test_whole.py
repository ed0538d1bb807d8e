"""Optimizers that need each parameter whole, of which each rank has some: the bits and bytes of DDP, and one owner."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad import Tensor, manual_seed, nn
from minigrad.distributed import DDP, Recording, ShardedOptimizer, run
from minigrad.distributed.comm.wire_bytes import wire_bytes
from minigrad.distributed.sharded import Extent, Ownership, extents_of, own_evenly, own_whole
from minigrad.errors import ArgumentError, LayoutError
from minigrad.optim import LAMB, SGD, AdamW, Muon, clip_grad_norm_
from minigrad.testing.conformance import MinigradAdapter, report, shards
from minigrad.testing.conformance.own import MinigradReplica, optimizer_of

TIMEOUT_S, STEPS = 10.0, 2
WHOLE = {"muon": functools.partial(Muon, lr=0.02), "lamb": functools.partial(LAMB, lr=0.02)}


class Net(nn.Module):
    """Matrices of three sizes, vectors beside them, and a table that is larger than all matrices."""

    def __init__(self, dtype="float32"):
        super().__init__()
        manual_seed(0)
        self.table = nn.Linear(40, 5, bias=False)
        self.first, self.second, self.third = nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(3, 4)
        self.to(dtype)

    def forward(self, x):
        return self.third(self.second(self.first(self.table(x)).tanh()).tanh())

    def matrices(self):
        return [layer.weight for layer in (self.first, self.second, self.third)]

    def others(self):
        return [param for name, param in self.named_parameters() if "bias" in name or "table" in name]


def train(comm, make, sharded, *, cap=200, dtype="float32", steps=STEPS, **options):
    """Parameters and whole state in bytes; bytes on the wire; state that the rank keeps of each optimizer."""
    recording, net = Recording(comm), Net(dtype)
    ddp = DDP(net, recording, bucket_cap_bytes=cap)
    optimizers = [make(net.matrices()), AdamW(net.others(), lr=0.01)]
    if sharded:
        optimizers = [ShardedOptimizer(each, ddp, **(options if i == 0 else {})) for i, each in enumerate(optimizers)]
    recording.calls.clear()
    for step in range(steps):
        x = np.random.default_rng([comm.rank, step]).standard_normal((1 + comm.rank, 40)).astype(dtype)
        ddp(Tensor(x)).square().mean().backward()
        for each in optimizers:
            each.step()
        for each in optimizers:
            each.zero_grad()
    moved = recording.wire_bytes
    states = [whole_state(each) for each in optimizers]
    return [param.detach().numpy().tobytes() for param in net.parameters()], states, moved, kept(optimizers)


def trained(world_size, *args, **options):
    """What each rank has."""
    return run(functools.partial(train, **options), world_size, *args, timeout_s=TIMEOUT_S)


def whole_state(optimizer):
    state = optimizer.state_dict()["state"]
    return {
        index: {name: value.numpy().tobytes() if isinstance(value, Tensor) else value for name, value in entry.items()}
        for index, entry in state.items()
    }


def kept(optimizers):
    return [each.state_bytes() for each in optimizers if isinstance(each, ShardedOptimizer)]


@pytest.mark.parametrize("name, world_size", [("muon", 1), ("muon", 2), ("muon", 3), ("muon", 4), ("lamb", 3)])
def test_bits_and_bytes_of_ddp(name, world_size):
    """Beside AdamW for the rest, whose large table is cut; with a bucket a matrix, and with one of all."""
    padding = STEPS * len(list(Net().parameters())) * wire_bytes("all_reduce", 4 * (world_size - 1), world_size)
    for cap in (100, None):
        expected, found = (trained(world_size, WHOLE[name], sharded, cap=cap) for sharded in (False, True))
        for (params, states, moved, _), (wanted, whole, least, _) in zip(found, expected):
            assert params == wanted and states == whole
            assert least <= moved <= least + padding if cap else moved == least


def test_16_bit_gradients_travel_as_float32():
    for (params, states, *_), (wanted, whole, *_) in zip(
        *(trained(2, WHOLE["lamb"], sharded, dtype="float16") for sharded in (True, False)), strict=True
    ):
        assert params == wanted and states == whole


def test_each_rank_keeps_its_own():
    """Muon keeps a number an element; its matrices have 3 owners, with padding to a cache line behind each."""
    found = trained(3, WHOLE["muon"], True)
    assert sorted(kept[0] for *_, kept in found) == [64, 128, 192]  # of 12, 21 and 35 elements
    whole_bytes = 2 * 4 * (200 + 3 * 16)  # two numbers an element of the table, and of the biases
    assert all(kept[1] <= whole_bytes / 3 + 2 * 4 * 48 for *_, kept in found)
    capped = trained(3, WHOLE["muon"], True, caps=[None, 100, None], steps=1)
    assert capped[1][3][0] == 0


def test_clipped_and_resumed_on_another_world():
    """State of three ranks goes on on two, as with plain optimizers, but that norms are summed in another order."""

    def body(comm, sharded, saved):
        net = Net("float64")
        ddp = DDP(net, comm, bucket_cap_bytes=400)
        optimizers = [Muon(net.matrices(), lr=0.02), AdamW(net.others(), lr=0.01)]
        if sharded:
            optimizers = [ShardedOptimizer(each, ddp) for each in optimizers]
        if saved:
            ddp.module.load_state_dict(saved[0])
            for optimizer, state in zip(optimizers, saved[1]):
                optimizer.load_state_dict(state)
        for step in range(2):
            x = np.random.default_rng([comm.rank, step]).standard_normal((2, 40))
            ddp(Tensor(x)).square().mean().backward()
            for each in optimizers:
                if sharded:
                    each.clip_grad_norm_(0.05)
                else:
                    clip_grad_norm_(each.params(), 0.05)
                each.step()
            for each in optimizers:
                each.zero_grad()
        return net.state_dict(), [each.state_dict() for each in optimizers]

    saved = {sharded: run(body, 3, sharded, None, timeout_s=TIMEOUT_S)[0] for sharded in (True, False)}
    ends = [run(body, 2, sharded, saved[sharded], timeout_s=TIMEOUT_S)[1][0] for sharded in (True, False)]
    for name, value in ends[0].items():
        np.testing.assert_allclose(value.numpy(), ends[1][name].numpy(), rtol=0, atol=1e-12)


def test_what_would_be_cut_is_refused_on_all_ranks():
    """Never a part of a matrix: not where another sharded optimizer has cut it, nor by an ownership of one's own."""

    def body(comm):
        net = Net()
        ddp = DDP(net, comm, bucket_cap_bytes=100)
        ShardedOptimizer(AdamW(net.others()), ddp)
        with pytest.raises(LayoutError, match="ShardedOptimizer of Muon: expected each parameter whole on one rank"):
            ShardedOptimizer(Muon(net.matrices()), ddp)
        net = Net()
        ddp = DDP(net, comm, bucket_cap_bytes=100)
        sizes = [bucket.stop - bucket.start for bucket in ddp.plan.buckets]
        with pytest.raises(LayoutError, match=r"got \w+.weight of shape .* in parts"):
            ShardedOptimizer(LAMB(net.parameters()), ddp, ownership=own_evenly(sizes, comm.world_size))
        net = Net()
        with pytest.raises(ArgumentError, match="expected caps of ranks for Muon, which cuts nothing, got shares"):
            ShardedOptimizer(Muon(net.matrices()), DDP(net, comm), shares=[0.5, 0.5])
        net = Net()
        with pytest.raises(ArgumentError, match="own_whole: expected caps with room for what is cut evenly"):
            ShardedOptimizer(Muon(net.matrices()), DDP(net, comm), caps=[0, 10])

    run(body, 2, timeout_s=TIMEOUT_S)


# -------------------------------------------------------------------------------------------------------- who owns what

EXTENTS = st.lists(st.lists(st.builds(Extent, st.integers(0, 40), st.booleans()), max_size=5), max_size=4)


@settings(max_examples=25)
@given(EXTENTS, st.integers(1, 4))
def test_what_has_to_stay_whole_does(buckets, world_size):
    owned = own_whole(buckets, world_size)
    largest = max((one.elements for each in buckets for one in each if one.is_whole), default=0)
    for bucket, extents in enumerate(buckets):
        start = 0
        for elements, is_whole in extents:
            holding = [
                sum(max(0, min(stop, start + elements) - max(first, start)) for first, stop in runs)
                for runs in owned.runs[bucket]
            ]
            assert sum(holding) == elements and (not is_whole or max(holding) == elements)
            start += elements
    loads = [owned.elements(rank) for rank in range(world_size)]
    cuts = sum(len(extents) for extents in buckets)  # a rounding of each
    assert max(loads) <= sum(loads) / world_size + largest + cuts
    if not largest:
        assert owned == own_evenly([sum(one.elements for one in each) for each in buckets], world_size) or not buckets


def test_caps_count_what_is_cut_too():
    buckets = [[Extent(6, True), Extent(2, False)], [Extent(4, False)]]
    assert own_whole(buckets, 2, caps=[4, None]).runs == ((((6, 8),), ((0, 6),)), (((0, 2),), ((2, 4),)))
    with pytest.raises(ArgumentError, match="owners_of: expected caps with room for an array of 6 elements"):
        own_whole(buckets, 2, caps=[7, 7])
    assert isinstance(own_whole([], 2), Ownership)


# ------------------------------------------------------------------------------------------- what the checks would see


class Planted(MinigradReplica):
    """Steps by `sharded_step` as a subclass says; right as it stands here."""

    def __init__(self, comm, setup):
        super().__init__(comm, setup)
        self.lr = setup.lr

    def sharded_step(self, batch, rule):
        self._sharded = self._sharded or self.shared_out(optimizer_of(rule, self._model, self.lr))
        self.zero_grad()
        self._sharded.zero_grad()
        self.backward(batch)
        self.update()

    def shared_out(self, plain):
        return ShardedOptimizer(plain, self._ddp)

    def update(self):
        self._sharded.step()


class PlainStep(Planted):
    """A plain optimizer in the place of the sharded one, on the gradients that the latter shares out."""

    def update(self):
        self._optimizer.step()


class PlainState(Planted):
    """A plain optimizer in the place of the sharded one, whose values are right."""

    def shared_out(self, plain):
        return plain

    def state_bytes(self):
        return sum(array.nbytes for state in self._sharded._state.values() for array in state.values())


class Cut(Planted):
    """A Muon whose matrices are in parts."""

    def shared_out(self, plain):
        sizes = [bucket.stop - bucket.start for bucket in self._ddp.plan.buckets]
        return ShardedOptimizer(plain, self._ddp, ownership=own_evenly(sizes, 2))


@pytest.mark.parametrize(
    "replica, check, words",
    [
        (Planted, shards.check_sharded_step, ""),
        (PlainStep, shards.check_sharded_step, "AutogradError"),
        (PlainState, shards.check_sharded_state, "expected at most 384 bytes of state, of 512, got 512"),
        (Cut, shards.check_matrices_are_whole, "LayoutError"),
    ],
)
def test_planted_faults_are_seen(replica, check, words):
    class Adapter(MinigradAdapter):
        def wrap(self, place, setup):
            return replica(place, setup)

    found = report(Adapter(functools.partial(run, timeout_s=TIMEOUT_S)), [check])
    assert found.rows[0].verdict == ("fails" if words else "passes") and words in found.rows[0].message


def test_two_optimizers_that_need_parameters_whole_share_an_ownership():
    def body(comm, sharded):
        manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 4))
        ddp = DDP(net, comm, bucket_cap_bytes=64)
        made = [Muon([net[0].weight], lr=0.1), LAMB([net[1].weight], lr=0.1), SGD([net[0].bias, net[1].bias], lr=0.1)]
        if sharded:
            owned = own_whole(extents_of(ddp, [net[0].weight, net[1].weight]), comm.world_size)
            made = [ShardedOptimizer(each, ddp, ownership=owned) for each in made]
        ddp(Tensor(np.ones((2, 5), np.float32))).square().mean().backward()
        for each in made:
            each.step()
        return [x.detach().numpy().tobytes() for x in net.parameters()]

    assert run(body, 2, True) == run(body, 2, False)
