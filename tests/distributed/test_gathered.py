"""`distributed.nn.all_gather`: what weighs a gradient that comes from other ranks, and where nobody can know it."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, cat, nn
from minigrad.distributed import DDP, Wrapper, average_gradients, run
from minigrad.distributed import nn as gathering
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.nn import all_gather
from minigrad.errors import AbsentNameError, ArgumentError, AutogradError, DistributedError, DtypeError, ShapeError
from tests.distributed.contrastive import (
    UNEVEN,
    Encoder,
    assert_same,
    gradients,
    info_nce,
    on_one_device,
    own_rows,
    views,
)

COUNTS = UNEVEN[2]


def shard(comm, counts=tuple(COUNTS), seed=0):
    """This rank's part of a batch."""
    stop = sum(counts[: comm.rank + 1])
    return Tensor(views(sum(counts), seed)[stop - counts[comm.rank] : stop])


def leaf(comm, rows=None, dtype=np.float64):
    """Rank r has r + 1 rows of ones, which require grad."""
    return Tensor(np.ones((comm.rank + 1 if rows is None else rows, 2), dtype), requires_grad=True)


def test_what_comes_of_a_row_is_weighted_by_what_the_losses_weigh():
    """Rank r's loss says r + 1 of each element; the weights are those of `samples`, or the rows."""

    def body(comm):
        found = []
        for samples in (None, [5.0, 2.5][comm.rank]):
            x = leaf(comm)
            (cat(all_gather(x, samples=samples)) * (comm.rank + 1)).sum().backward()
            found.append(x.grad.tolist())
        return found

    first, second = run(body, 2)
    by_rows, by_samples = 1 * 1 + 2 * 2, 5 * 1 + 2.5 * 2
    assert first == [[[by_rows / 1] * 2], [[by_samples / 5] * 2]]
    assert second == [[[by_rows / 2] * 2] * 2, [[by_samples / 2.5] * 2] * 2]


def test_what_is_made_of_the_parts_of_all_ranks():
    """In place of the other collectives of PyTorch that gradients flow through."""

    def body(comm):
        x, rank = leaf(comm, rows=2), comm.rank
        parts = all_gather(x)
        (sum(parts) * (rank + 1)).sum().backward(retain_graph=True)  # an all-reduce
        total = x.grad.tolist()
        x.grad = None
        (parts[1] * (rank + 1)).sum().backward()  # a broadcast
        return sum(parts).tolist(), total, x.grad.tolist()

    whole = [[3.0, 3.0]] * 2
    assert run(body, 2) == [([[2.0] * 2] * 2, whole, [[0.0] * 2] * 2), ([[2.0] * 2] * 2, whole, whole)]
    for place in (gathering, gathering.functional):
        with pytest.raises(AbsentNameError, match=r"distributed.nn: .* got 'all_reduce': write sum\(all_gather\(x\)\)"):
            place.all_reduce


def weighted(comm, weights, combine):
    """The gradients where rank r's mean over its own rows counts weights[r], and those computed alone."""
    model, other = Encoder(), Encoder()
    combine(comm, model, weights[comm.rank])
    z = other(Tensor(views(sum(COUNTS))))
    pieces = [z[: COUNTS[0]], z[COUNTS[0] :]]
    losses = [own_rows(piece, pieces, r) for r, piece in enumerate(pieces)]
    (sum(loss * weight for loss, weight in zip(losses, weights)) / sum(weights)).backward()
    assert_same(gradients(model), gradients(other))


def by_wrapper(comm, model, weight):
    ddp = DDP(model, comm)
    with ddp.samples(weight):
        z = ddp(shard(comm))
    own_rows(z, all_gather(z), comm.rank).backward()
    ddp.unwrap()


def by_hand(comm, model, weight):
    z = model(shard(comm))
    own_rows(z, all_gather(z, samples=weight), comm.rank).backward()
    average_gradients(model.parameters(), comm, weight)


@pytest.mark.parametrize("combine", [by_wrapper, by_hand])
def test_what_samples_says_counts_for_the_rows_too(combine):
    run(weighted, 2, [4.0, 0.5], combine)


def test_rows_are_given_as_they_are():
    def body(comm):
        with minigrad.no_grad():
            parts = gathering.functional.all_gather(leaf(comm) * comm.rank)
        assert not any(part.requires_grad for part in parts)
        half = leaf(comm, dtype=np.float16)
        (cat(all_gather(half)) * 300).sum().backward()  # 300 · 300 rows would not fit into 16 bits
        empty = all_gather(leaf(comm, rows=0))
        whole = cat(all_gather(leaf(comm, rows=3)))
        whole.sum().backward(retain_graph=True)
        whole.sum().backward()
        return [part.tolist() for part in parts], half.grad.tolist(), [part.shape for part in empty]

    parts = [[[0.0, 0.0]], [[1.0, 1.0]] * 2]
    assert run(body, 2) == [(parts, [[900.0] * 2], [(0, 2)] * 2), (parts, [[450.0] * 2] * 2, [(0, 2)] * 2)]
    assert run(lambda comm: all_gather(leaf(comm))[0].shape, 1) == [(1, 2)]


class Head(nn.Module):
    """There are parameters behind the gathering too; in front of it each rank may use some of its own."""

    def __init__(self, unused):
        super().__init__()
        self.encoder = Encoder()
        self.lanes = nn.ModuleList([nn.Linear(3, 3, dtype="float64") for _ in range(2)])
        self.last = nn.Linear(3, 3, dtype="float64")
        self.unused = unused

    def forward(self, views, counts, rank):
        z = self.encoder(views)
        parts = [z] if counts is None else [z[: counts[0]], z[counts[0] :]]
        if self.unused:
            parts = [part + self.lanes[rank + r](part) for r, part in enumerate(parts)]
        own, parts = parts, parts if counts is not None else all_gather(parts[0])
        if not self.unused:
            own = [self.lanes[0](part) + self.lanes[1](part) for part in own]
        everything, losses = self.last(cat(parts)), []
        for r, part in enumerate(own):
            first = sum(len(p) for p in parts[: rank + r])
            losses.append(info_nce(part[:, 0], everything[:, 1], first) * len(part))
        return sum(losses)


class Unhurried(Wrapper):
    """No work of rank 1 is over before that rank waits for it."""

    def around(self, call, arrays, make):
        work = make()
        return NotYet(work) if self.rank == 1 and call.kind == "all_reduce" else work


class NotYet(WorkAround):
    def done(self):
        return False


@pytest.mark.parametrize("unused", [False, True])
def test_parameters_behind_the_gathering_and_in_front_of_it(unused):
    """In small buckets, some of which are complete before the gradient goes back to other ranks."""

    def body(comm):
        comm = Unhurried(comm)
        for step in range(2):
            minigrad.manual_seed(0)
            ddp = DDP(Head(unused), comm, find_unused_parameters=unused, bucket_cap_bytes=64)
            minigrad.manual_seed(0)
            alone = Head(unused)
            (ddp(shard(comm, seed=step), None, comm.rank) / COUNTS[comm.rank]).backward()
            (alone(Tensor(views(sum(COUNTS), step)), COUNTS, 0) / sum(COUNTS)).backward()
            assert_same(gradients(ddp.unwrap()), gradients(alone))

    run(body, 2)


def test_what_is_gathered_beside_a_wrapper():
    """Buckets are on their way when its gradient comes, on one rank sooner than on the other."""
    total = sum(COUNTS)

    def body(comm):
        comm, first = Unhurried(comm), sum(COUNTS[: comm.rank])
        keys = np.random.default_rng(1).standard_normal((total, 3))
        x, every = Tensor(keys[first : first + COUNTS[comm.rank]].copy(), True), Tensor(keys, True)
        ddp, alone = DDP(Encoder(), comm, bucket_cap_bytes=64), Encoder()
        everything = cat(all_gather(x))
        info_nce(ddp(shard(comm))[:, 0], everything, first).backward()
        info_nce(alone(Tensor(views(total)))[:, 0], every, 0).backward()
        own = every.grad.data[first : first + len(x)] * total / len(x)  # the wrapper does not weight it
        assert_same({**gradients(ddp.unwrap()), "x": x.grad.data}, {**gradients(alone), "x": own})

    run(body, 2)


def test_the_last_of_several_backwards_weighs_what_all_weigh_together():
    """Under no_sync itself nobody knows that yet; what is gathered in the backward that combines is right."""

    def body(comm):
        model, other = Encoder(), Encoder()
        ddp = DDP(model, comm)
        with ddp.no_sync():
            z = ddp(shard(comm, [4, 1], 1))
            parts = all_gather(z)
            with pytest.raises(AutogradError, match="expected a backward that combines gradients, got one that leaves"):
                own_rows(z, parts, comm.rank).backward()
            model.zero_grad()
            ddp(shard(comm, [4, 1], 1))[:, 0].square().mean().backward()
        z = ddp(shard(comm))
        own_rows(z, all_gather(z), comm.rank).backward()
        early, late = (other(Tensor(views(sum(counts), seed))) for counts, seed in (([4, 1], 1), (COUNTS, 0)))
        total, weights = 4 + 1 + sum(COUNTS), [4 + COUNTS[0], 1 + COUNTS[1]]
        early, late = [early[:4], early[4:]], [late[: COUNTS[0]], late[COUNTS[0] :]]
        losses = [early[r][:, 0].square().mean() + own_rows(late[r], late, r) for r in range(2)]
        (sum(weight * loss for weight, loss in zip(weights, losses)) / total).backward()
        assert_same(gradients(model), gradients(other))

    run(body, 2)


def test_sums_are_added_up_as_they_are_also_under_no_sync():
    def body(comm):
        model = Encoder()
        ddp = DDP(model, comm, reduce="sum")
        with ddp.no_sync():
            for seed in range(2):
                z = ddp(shard(comm, seed=seed))
                (own_rows(z, all_gather(z), comm.rank) * len(z)).backward()
        ddp.flush()
        expected = [on_one_device(views(sum(COUNTS), seed)) for seed in range(2)]
        first, second = expected
        assert_same(gradients(model), {name: sum(COUNTS) * (first[name] + second[name]) for name in first})

    run(body, 2)


def test_two_wrappers_in_one_loss():
    """As for images and texts: they must count alike."""

    def body(comm):
        models, alone = [Encoder(), Encoder()], [Encoder(), Encoder()]
        for encoder in (models[1], alone[1]):
            encoder.body[0].weight.data[...] *= 2
        first, second = (DDP(model, comm, bucket_cap_bytes=64) for model in models)
        z, t = first(shard(comm))[:, 0], second(shard(comm))[:, 1]
        info_nce(z, cat(all_gather(t)), sum(COUNTS[: comm.rank])).backward()
        both = Tensor(views(sum(COUNTS)))
        info_nce(alone[0](both)[:, 0], alone[1](both)[:, 1], 0).backward()
        for model, other in zip(models, alone):
            assert_same(gradients(model), gradients(other))
        with second.samples(11):
            t = second(shard(comm))[:, 1]
        with pytest.raises(AutogradError, match="expected wrappers that count alike, got"):
            info_nce(first(shard(comm))[:, 0], cat(all_gather(t)), 0).backward()

    run(body, 2)


WRONG = {
    r"of one shape but for their rows, got \(1, 2\) on rank 0 and \(1, 3\) on rank 1": (
        ShapeError,
        lambda comm: all_gather(Tensor(np.ones((1, 2 + comm.rank)))),
    ),
    r"of one shape but for their rows, got \(\) on rank 0 and \(\) on": (
        ShapeError,
        lambda comm: all_gather(Tensor(np.ones(()))),
    ),
    "expected one dtype, got float64 on rank 0 and float32 on rank 1": (
        DtypeError,
        lambda comm: all_gather(Tensor(np.ones(2, [np.float64, np.float32][comm.rank]))),
    ),
    "on all ranks or on none, got requires_grad=True on rank 0 and False on rank 1": (
        AutogradError,
        lambda comm: all_gather(leaf(comm).requires_grad_(comm.rank == 0)),
    ),
    "expected a tensor, got ndarray": (DtypeError, lambda comm: all_gather(np.ones(2))),
    "a finite number of samples >= 0, got -1": (ArgumentError, lambda comm: all_gather(leaf(comm), samples=-1)),
    "expected rows of ranks whose gradients count, got some of rank 1, where no samples do": (
        AutogradError,
        lambda comm: cat(all_gather(leaf(comm), samples=1 - comm.rank)).sum().backward(),
    ),
    "expected samples as the wrapper counts them, [35], got 1": (
        AutogradError,
        lambda comm: cat(all_gather(DDP(Encoder(), comm)(shard(comm)), samples=1)).sum().backward(),
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_refused_on_all_ranks(words):
    kind, call = WRONG[words]

    def body(comm):
        with pytest.raises(kind, match=words):
            call(comm)
        comm.barrier()

    run(body, 2)


def test_nothing_counts_where_no_rank_has_samples():
    def body(comm):
        x = leaf(comm)
        (cat(all_gather(x, samples=0)) * float("nan")).sum().backward()
        return x.grad.tolist()

    assert run(body, 2) == [[[0.0, 0.0]], [[0.0, 0.0]] * 2]


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_rank_whose_backward_does_not_reach_it_is_noticed(wrapped):
    """It goes on to its next call, or to none: neither passes for the one that others wait for."""

    def body(comm):
        model = DDP(Encoder(), comm) if wrapped else Encoder()
        z = model(shard(comm))
        parts = all_gather(z)
        loss = own_rows(z, parts if comm.rank == 0 else [part.detach() for part in parts], comm.rank)
        if comm.rank == 0 or wrapped:
            with pytest.raises(DistributedError, match=r"distributed.nn.all_gather \d+, weights in backward"):
                loss.backward()

    run(body, 2, timeout_s=5.0)


def test_a_backward_does_not_meet_that_of_another_call():
    """Each rank uses what it gathered by one call, which is not the same one: gradients would change places."""

    def body(comm):
        x = leaf(comm, rows=1)
        called = [all_gather(x), all_gather(x * 2)]
        with pytest.raises(DistributedError, match=r"weights in backward\) of .* and .* weights in backward\) of"):
            sum(called[comm.rank]).sum().backward()

    run(body, 2, timeout_s=5.0)
