"""Ranks with different numbers of batches: who has no more counts as having no samples."""

from contextlib import nullcontext

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, SyncBatchNorm, run
from minigrad.errors import ArgumentError, AutogradError, CollectiveTimeoutError, RankFailedError
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss, values
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 10.0


def _batches(rank, count, samples=4):
    return [data(samples, 10 * rank + step) for step in range(count)]


def _train(comm, counts, accumulate=1, **options):
    """Values after each rank has used up its batches; gradients of every step of this rank."""
    ddp = DDP(Mlp(0), comm)
    step = optim.SGD(ddp.module.parameters(), lr=0.01)
    seen = []
    with ddp.join(**options):
        for i, (inputs, targets) in enumerate(_batches(comm.rank, counts[comm.rank])):
            loss = mean_loss(ddp(minigrad.Tensor(inputs)), targets) / accumulate
            if (i + 1) % accumulate:
                with ddp.no_sync():
                    loss.backward()
                continue
            loss.backward()
            seen.append(gradients(ddp.module))
            step.step()
            step.zero_grad()
    return values(ddp.module), seen


def _alone(counts):
    """One device on the same samples: in step k those of the ranks that still have a batch k."""
    model = Mlp(0)
    step = optim.SGD(model.parameters(), lr=0.01)
    seen = []
    for k in range(max(counts)):
        parts = [_batches(rank, count)[k] for rank, count in enumerate(counts) if k < count]
        inputs, targets = (np.concatenate(arrays) for arrays in zip(*parts))
        mean_loss(model(minigrad.Tensor(inputs)), targets).backward()
        seen.append(gradients(model))
        step.step()
        step.zero_grad()
    return values(model), seen


@pytest.mark.parametrize("kind", ["threads", "shm"])
@pytest.mark.parametrize("counts", [[5, 3], [3, 5], [0, 2], [2, 2], [1, 4, 2]])
def test_the_mean_is_over_the_samples_that_are_there(kind, counts):
    expected, steps = _alone(counts)
    ranks = run_ranks(kind, lambda comm: _train(comm, counts), len(counts), TIMEOUT_S)
    for actual, seen in ranks:
        assert_gradients_close(actual, expected, 1e-11)
        assert all(actual[name].tobytes() == ranks[0][0][name].tobytes() for name in actual)
        for mine, one in zip(seen, steps):
            assert_gradients_close(mine, one, 1e-11)


def test_dividing_by_the_initial_world_size():
    """Ranks without data count as a zero gradient of full size: 3 ranks, one left, a third of its gradient."""
    counts = [1, 2, 1]
    _, whole = _alone(counts)
    seen = run(_train, 3, counts, timeout_s=TIMEOUT_S)[1][1]
    divided = run(lambda comm: _train(comm, counts, divide_by_initial_world_size=True), 3, timeout_s=TIMEOUT_S)[1][1]
    assert_gradients_close(seen[0], whole[0])
    assert_gradients_close(divided[0], whole[0])
    assert_gradients_close(divided[1], {name: g / 3 for name, g in seen[1].items()})


def test_join_with_accumulation_ending_at_odd_places():
    counts = [4, 7]
    ranks = run(_train, 2, counts, 2, timeout_s=TIMEOUT_S)
    assert all(ranks[0][0][name].tobytes() == ranks[1][0][name].tobytes() for name in ranks[0][0])


def test_throwing_on_all_ranks_together():
    def body(comm):
        with pytest.raises(RankFailedError, match=r"ran out on ranks \[1\]"):
            _train(comm, [5, 3], throw_on_early_termination=True)
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_sync_batch_norm_is_refused_on_all_ranks_together():
    def body(comm):
        ddp = DDP(nn.Sequential(nn.Linear(3, 4), SyncBatchNorm(4, comm)), comm)
        with pytest.raises(ArgumentError, match="join: expected no SyncBatchNorm or"), ddp.join():
            pass
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]


def test_without_join_the_rank_that_left_is_named():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        for inputs, targets in _batches(comm.rank, [3, 2][comm.rank]):
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()

    with pytest.raises((RankFailedError, CollectiveTimeoutError), match="rank 1 has returned"):
        run(body, 2, timeout_s=2.0)


def test_an_old_gradient_of_a_rank_that_waits_is_no_use_of_its_parameter():
    """A layer that no rank with data uses keeps no gradient, although one that waits has one of before."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1)

        def forward(self, x, both):
            return self.b(x) + self.a(x) if both else self.a(x)

    def body(comm):
        ddp, missing = DDP(Two(), comm, find_unused_parameters=True), []
        with ddp.join():
            for step in range(3 if comm.rank == 0 else 1):
                ddp.zero_grad()
                ddp(minigrad.ones(2, 2), step == 0).sum().backward()
                missing.append(ddp.module.b.weight.grad is None)
        return missing

    assert run(body, 2, timeout_s=TIMEOUT_S) == [[False, True, True], [False]]


def accumulate(ddp, samples, gradient):
    with ddp.no_sync():
        (ddp(minigrad.ones(samples, 1)).mean() * gradient).backward()


def all_have_accumulated(ddp, rank):
    accumulate(ddp, [1, 3][rank], [2.0, 6.0][rank])


def one_has_accumulated(ddp, rank):
    accumulate(ddp, 3, 6.0) if rank else (ddp(minigrad.ones(1, 1)).mean() * 2.0).backward()


def one_has_looked_at_a_loss(ddp, rank):
    ddp(minigrad.ones(3, 1)) if rank else (ddp(minigrad.ones(1, 1)).mean() * 2.0).backward()


@pytest.mark.parametrize(
    "last, expected", [(all_have_accumulated, 5.0), (one_has_accumulated, 5.0), (one_has_looked_at_a_loss, 2.0)]
)
def test_who_leaves_hands_in_what_it_accumulated_and_nothing_else(last, expected):
    """Where all left at once each rank kept its own; a forward without a backward weighed as if it had had one."""

    def body(comm):
        ddp = DDP(nn.Linear(1, 1, bias=False), comm)
        with ddp.join():
            last(ddp, comm.rank)
        return ddp.module.weight.grad.item()

    assert run(body, 2, timeout_s=TIMEOUT_S) == [expected] * 2


@pytest.mark.parametrize("reduce, seen", [("mean", [[3.0], [3.0, 8.0]]), ("sum", [[6.0], [6.0, 8.0]])])
def test_who_has_left_adds_neither_what_is_said_around_join_nor_a_combined_gradient(reduce, seen):
    """The latter was refused as one that is combined twice, so that join and reduce="sum" did not go together."""

    def body(comm):
        ddp, found = DDP(nn.Linear(1, 1, bias=False), comm, reduce=reduce), []
        with ddp.samples(1) if reduce == "mean" else nullcontext(), ddp.join():
            for gradient in [[2.0], [4.0, 8.0]][comm.rank]:
                ddp.zero_grad()
                (ddp(minigrad.ones(2, 1)).mean() * gradient).backward()
                found.append(ddp.module.weight.grad.item())
        return found, ddp.module.weight.grad.item()

    assert run(body, 2, timeout_s=TIMEOUT_S) == [(found, 8.0) for found in seen]


def test_rates_that_a_schedule_did_not_set_are_handed_on():
    """Such as those of ReduceLROnPlateau after a warm-up: the warm-up is named behind the optimizer here."""

    def body(comm):
        ddp = DDP(nn.Linear(1, 1), comm)
        optimizer = optim.SGD(ddp.parameters(), lr=1.0)
        warmup = optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1)
        with ddp.join(also=[optimizer, warmup]):
            for _ in range(1 + comm.rank):
                ddp(minigrad.ones(1, 1)).mean().backward()
            if comm.rank == 1:
                optimizer.param_groups[0]["lr"] = 0.3
        return optimizer.param_groups[0]["lr"]

    assert run(body, 2, timeout_s=TIMEOUT_S) == [0.3, 0.3]


def test_a_gradient_set_by_hand_is_refused_where_its_rank_leaves():
    def body(comm):
        ddp = DDP(nn.Linear(1, 1, bias=False), comm)
        with pytest.raises((AutogradError, RankFailedError), match="such as set by hand, of weight"):
            with ddp.join():
                if comm.rank == 1:
                    ddp.module.weight.grad = minigrad.ones(1, 1)
                else:
                    ddp(minigrad.ones(1, 1)).mean().backward()
        return True

    assert run(body, 2, timeout_s=TIMEOUT_S) == [True, True]
