"""Bitwise mode: fixed shards give the same bits on 1, 2 and 4 ranks; without them they do not."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad import nn, ops, optim
from minigrad.distributed import DDP, collectives, fp16_compress_hook, run
from minigrad.distributed.ddp.bitwise import ShardedBackward
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    DtypeError,
    ReplicaMismatchError,
    UnreducedGradientError,
)
from tests.distributed.models import Mlp, assert_gradients_close, cuts_of, data, gradients, mean_loss, values
from tests.distributed.worlds import run_ranks

SHARDS = 4
UNEVEN = [5, 0, 7, 2]


class Dropped(nn.Module):
    """Affine maps in float32 with dropout between them."""

    def __init__(self, seed):
        super().__init__()
        minigrad.manual_seed(seed)
        self.first, self.second, self.drop = nn.Linear(6, 33), nn.Linear(33, 3), nn.Dropout(0.4)

    def forward(self, x):
        return self.second(self.drop(ops.tanh(self.first(x))))


def shards_of(sizes, rank, world_size, seed, inputs=6, outputs=3, dtype=np.float32):
    """A rank's shards of a batch, as (inputs, targets)."""
    x, y = data(sum(sizes), seed, inputs, outputs, dtype)
    parts = [(minigrad.Tensor(x[part]), y[part]) for part in cuts_of(sizes)]
    per_rank = len(sizes) // world_size
    return parts[rank * per_rank : (rank + 1) * per_rank]


def train(comm, sizes, steps=20, **options):
    """Losses and final bits after some steps with Adam, a fresh batch each."""
    minigrad.manual_seed(7)
    ddp = DDP(Dropped(3), comm, **options)
    optimizer = optim.Adam(ddp.module.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(
            ddp.backward_shards(
                lambda x, y: mean_loss(ddp(x), y), shards_of(sizes, comm.rank, comm.world_size, step)
            )
        )
        optimizer.step()
    return losses, {name: value.tobytes() for name, value in values(ddp.module).items()}


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("sizes", [[4] * SHARDS, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("cap", [256, 10**6])
def test_any_number_of_ranks_gives_the_same_bits(kind, sizes, cap):
    results = [
        result
        for world_size in (1, 2, 4)
        for result in run_ranks(kind, lambda comm: train(comm, sizes, bucket_cap_bytes=cap), world_size)
    ]
    assert all(result == results[0] for result in results)


def test_without_fixed_shards_the_bits_depend_on_the_ranks():
    """The negative twin."""

    def body(comm):
        minigrad.manual_seed(7)
        ddp = DDP(Dropped(3).eval(), comm)
        optimizer = optim.Adam(ddp.module.parameters(), lr=0.01)
        for step in range(20):
            optimizer.zero_grad()
            mine = shards_of([16 // comm.world_size] * comm.world_size, comm.rank, comm.world_size, step)
            mean_loss(ddp(mine[0][0]), mine[0][1]).backward()
            optimizer.step()
        return {name: value.tobytes() for name, value in values(ddp.module).items()}

    assert run(body, 1)[0] != run(body, 4)[0]


def sharded_gradients(comm, sizes, **options):
    ddp = DDP(Mlp(1), comm, **options)
    mine = shards_of(sizes, comm.rank, comm.world_size, 5, 3, 2, np.float64)
    loss = ddp.backward_shards(lambda x, y: mean_loss(ddp(x), y), mine)
    return loss, gradients(ddp.module)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("sizes", [[3] * 8, [0, 1, 2, 3], [0, 0, 0, 9], [1, 0, 0, 0, 0, 0, 0, 1]])
def test_gradients_and_loss_are_those_of_the_whole_batch(world_size, sizes):
    inputs, targets = data(sum(sizes), 5)
    model = Mlp(1)
    whole = mean_loss(model(minigrad.Tensor(inputs)), targets)
    whole.backward()
    for loss, actual in run(sharded_gradients, world_size, sizes):
        assert_gradients_close(actual, gradients(model))
        assert loss == pytest.approx(whole.item(), rel=1e-12)


def test_no_samples_at_all():
    for loss, actual in run(sharded_gradients, 2, [0, 0]):
        assert np.isnan(loss)
        assert all(not gradient.any() for gradient in actual.values())


def test_an_empty_shard_is_not_run():
    """Its mean would be 0 / 0, and a NaN would stay one whatever its weight."""

    def body(comm):
        ddp = DDP(Mlp(1), comm)
        mine = shards_of([2, 0, 0, 2], comm.rank, comm.world_size, 0, 3, 2, np.float64)

        def loss_fn(x, y):
            assert len(y) > 0
            return mean_loss(ddp(x), y)

        return np.isfinite(ddp.backward_shards(loss_fn, mine))

    assert run(body, 2) == [True, True]


def test_counts_weigh_what_is_no_sample():
    """Tokens, say: 3 in the first shard and 1 in the second."""
    factors = [2.0, 10.0]

    def body(comm):
        ddp = DDP(nn.Linear(1, 1, bias=False), comm)
        mine = range(comm.rank * 2 // comm.world_size, (comm.rank + 1) * 2 // comm.world_size)
        loss = ddp.backward_shards(
            lambda i: (ddp(minigrad.ones(1, 1)) * 0.0 + ddp.module.weight * factors[i]).sum(),
            list(mine),
            counts=[(3.0, 1.0)[i] for i in mine],
        )
        return ddp.module.weight.grad.item(), loss / ddp.module.weight.item()

    for gradient, ratio in run(body, 1) + run(body, 2):
        assert gradient == 4.0 and ratio == pytest.approx(4.0, rel=1e-6)


def test_sums_are_added_up_without_weights():
    sizes = [1, 2, 0, 4]
    inputs, targets = data(7, 5)
    model = Mlp(1)
    (mean_loss(model(minigrad.Tensor(inputs)), targets) * 7).backward()

    def body(comm):
        ddp = DDP(Mlp(1), comm, reduce="sum")
        mine = shards_of(sizes, comm.rank, comm.world_size, 5, 3, 2, np.float64)
        for _ in range(2):
            ddp.zero_grad()
            ddp.backward_shards(lambda x, y: mean_loss(ddp(x), y) * len(y), mine)
        return gradients(ddp.module)

    for actual in run(body, 1) + run(body, 2):
        assert_gradients_close(actual, gradients(model))


@given(power=st.integers(0, 5), seed=st.integers(0, 999))
def test_the_tree_is_that_of_the_collectives(power, seed):
    """The sums that are carried along give the bits of the pairwise sum of all gradients."""
    rng = np.random.default_rng(seed)
    given = [rng.standard_normal(3).astype(np.float32) for _ in range(2**power)]
    array = np.empty(3, np.float32)
    folding = object.__new__(ShardedBackward)
    folding._levels = [[np.empty(3, np.float32)] for _ in range(power)]
    for i, gradient in enumerate(given):
        array[...] = gradient
        folding._fold([array], i, last=i + 1 == len(given))
    copies = [gradient.copy() for gradient in given]
    collectives.all_reduce(copies)
    assert array.tobytes() == copies[0].tobytes()


def test_no_memory_is_taken_after_the_first_step():
    def body(comm):
        ddp = DDP(Mlp(1), comm)
        places = []
        for _ in range(3):
            ddp.zero_grad()
            ddp.backward_shards(lambda x, y: mean_loss(ddp(x), y), shards_of([2] * 4, 0, 1, 0, 3, 2, np.float64))
            places.append([id(array) for level in ddp._sharded._levels for array in level])
        assert len(places[0]) == 2 * len(ddp.plan.buckets)
        return places[0] == places[1] == places[2]

    assert run(body, 1) == [True]


def test_unused_parameters():
    """A parameter that some shard uses gets a gradient on all ranks, one that none uses does not."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(np.ones(2)) for _ in range(3))

        def forward(self, which):
            return ((self.a if which == 0 else self.b) * 3.0).sum()

    def body(comm, find):
        ddp = DDP(Branches(), comm, find_unused_parameters=find)
        mine = [0, 1][comm.rank * 2 // comm.world_size : (comm.rank + 1) * 2 // comm.world_size]
        ddp.backward_shards(ddp.module, mine, counts=[1] * len(mine))
        return {name: None if g is None else g.tolist() for name, g in gradients(ddp.module).items()}

    for actual in run(body, 1, True) + run(body, 2, True):
        assert actual == {"a": [1.5, 1.5], "b": [1.5, 1.5], "c": None}
    with pytest.raises(UnreducedGradientError, match="shard 0 of this rank: .*, got none for c .*, [ab] "):
        run(body, 2, False)


# ------------------------------------------------------------------------------------------------ what is refused


def attempt(shards_by_rank, error, words, change=lambda ddp: None, counts=None, dtype=np.float64):
    """Every rank raises."""

    def body(comm):
        ddp = DDP(Mlp(1, dtype=dtype), comm)
        change(ddp)
        mine = [minigrad.ones(2, 3, dtype=dtype)] * shards_by_rank[comm.rank]
        with pytest.raises(error, match=words):
            ddp.backward_shards(lambda x: ddp(x).sum(), mine, counts)
        return True

    assert all(run(body, len(shards_by_rank), timeout_s=5.0))


@pytest.mark.parametrize("shards_by_rank", [[0], [3], [0, 0], [1, 2], [3, 3], [0, 4], [1, 1, 1], [2, 2, 4]])
def test_wrong_numbers_of_shards_are_refused_on_all_ranks(shards_by_rank):
    words = rf"the same number of shards on each of {len(shards_by_rank)} ranks, a power of two in all, got \["
    attempt(shards_by_rank, ReplicaMismatchError, words)


def test_wrong_arguments_are_refused():
    attempt([2], ArgumentError, "a count for each of 2 shards, got 1", counts=[1])
    attempt([1], ArgumentError, "number of samples >= 0", counts=[-1])
    used = minigrad.ones(2, 3, dtype="float64")
    attempt([1], AutogradError, "no gradients yet", lambda ddp: ddp(used).sum().backward())
    attempt([1], ArgumentError, "no comm hook", lambda ddp: ddp.register_comm_hook(None, fp16_compress_hook))
    attempt([1], DtypeError, "float32 or float64 parameters, got float16", dtype=np.float16)

    ddp = DDP(Mlp(1), minigrad.distributed.SoloCommunicator())
    with pytest.raises(ArgumentError, match="a tensor with axis batch_dim=0 in shard 1, got none"):
        ddp.backward_shards(ddp, [minigrad.ones(2, 3), (1, 2)])
    with pytest.raises(ArgumentError, match=r"batch_dim=0 in shard 0, got shape \(\)"):
        ddp.backward_shards(ddp, [minigrad.tensor(1.0)])
    with pytest.raises(ArgumentError, match="loss_fn to return a tensor, got float"):
        ddp.backward_shards(lambda x: 1.0, [minigrad.ones(2, 3)])


def test_what_it_would_not_heed_is_refused():
    """It combines at once, and counts rows or what it is told."""

    def refuses(words, ddp, around):
        with pytest.raises(ArgumentError, match=words), around:
            ddp.backward_shards(lambda x: ddp(x).sum(), [minigrad.ones(2, 3, dtype="float64")])

    def body(comm):
        ddp = DDP(Mlp(1), comm)
        refuses("expected no no_sync.. around it", ddp, ddp.no_sync())
        refuses("counts=..... for other counts than rows, got samples.. around it", ddp, ddp.samples(3))
        refuses("sync='auto'", DDP(Mlp(1), comm, sync="manual"), nullcontext())

    run(body, 2, timeout_s=5.0)


def test_other_ranks_hear_of_a_loss_that_raises():
    def body(comm):
        ddp = DDP(Mlp(1), comm)

        def loss_fn(x):
            if comm.rank == 1:
                raise ZeroDivisionError("boom")
            return ddp(x).sum()

        try:
            ddp.backward_shards(loss_fn, [minigrad.ones(2, 3, dtype="float64")])
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    first, second = run(body, 2, timeout_s=5.0)
    assert second == "ZeroDivisionError: boom"
    assert first.startswith("RankFailedError: rank 0: rank 1 aborted: backward_shards raised ZeroDivisionError: boom")
