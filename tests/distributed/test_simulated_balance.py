"""The balancer in a training script on ranks: on a virtual cluster, on threads, and on processes."""

import io
import math

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import ArrayDataset, BatchSampler, RandomSampler
from minigrad.distributed import (
    DDP,
    Balance,
    BalanceConfig,
    Balancer,
    Reading,
    SoloCommunicator,
    allocate,
    simulate,
)
from minigrad.distributed.balance import replay
from minigrad.distributed.simulate import Cluster, Link, RankCost, forecast
from tests.distributed.worlds import run_ranks

BATCH, INPUTS = 60, 6
LINK = Link(2e-4, 1e8)


def data(samples=240):
    """A linear problem with noise, float64."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, INPUTS))
    return ArrayDataset(x, x[:, :1] - x[:, 1:2] ** 2 + 0.1 * rng.standard_normal((samples, 1)))


def make_model():
    minigrad.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, 1)).to("float64")


def batches_of(dataset, steps, batch=BATCH):
    """The same global batches on every rank."""
    sampler = BatchSampler(RandomSampler(dataset, seed=1), batch)
    while True:
        for indices in sampler:
            if not steps:
                return
            steps -= 1
            yield indices


def train(comm, steps, *, batch=BATCH, samples=240, config=None, momentum=0.9, journal=None):
    """A training as a user writes it; the parameters, and the samples of this rank in each step."""
    balancer = Balancer(comm, config, journal=journal)
    ddp = DDP(make_model(), balancer.comm)
    optimizer = optim.SGD(ddp.parameters(), lr=0.02, momentum=momentum)
    dataset, taken = data(samples), []
    for mine in balancer.deal(batches_of(dataset, steps, batch)):
        x, y = (minigrad.Tensor(array[mine]) for array in dataset.arrays)
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        taken.append(mine.tolist())
    return [p.detach().numpy().copy() for p in ddp.module.parameters()], taken


def efficiency(trace, cluster, first, last):
    """The throughput over steps [first, last) over that of the best integer division, communication aside."""
    best = math.fsum(cluster.best_step_s(BATCH, step) for step in range(first, last))
    return best / math.fsum(trace.slowest_s()[first:last])


# ----------------------------------------------------------------------------------------------- on a virtual cluster


@pytest.mark.parametrize("fixed_s", [0.0, 0.004])
def test_three_speeds_are_balanced_after_the_first_decision(fixed_s):
    cluster = Cluster.of_speeds([3, 2, 1], fixed_s=fixed_s, link=LINK)
    trace = simulate.run(train, cluster, 40)
    assert efficiency(trace, cluster, 0, 10) < 0.8 < 0.95 <= efficiency(trace, cluster, 10, 40)
    assert trace.idle_fraction(11, 40) < 0.05 < 0.2 < trace.idle_fraction(0, 10)
    (decision,) = trace.decisions
    assert decision["kind"] == "balance" and decision["step"] == 10 and " takes " in decision["reason"]
    assert sum(decision["shards"]) == BATCH
    assert all(rank.decisions[0]["shards"] == decision["shards"] for rank in trace.ranks)


@pytest.mark.parametrize("when", [56, 59, 75, 104, 107])
def test_a_rank_that_slows_by_half_is_made_up_for_within_sixty_steps(when):
    cluster = Cluster.of_speeds([3, 2, 1], fixed_s=0.002, link=LINK).slow_down(0, when, 2.0)
    trace = simulate.run(train, cluster, when + 80)
    assert efficiency(trace, cluster, when, when + 3) < 0.75
    assert efficiency(trace, cluster, when + 60, when + 80) >= 0.9


@pytest.mark.parametrize("when", range(50, 101))
def test_the_same_whenever_it_slows_without_numbers(when):
    cluster = Cluster.of_speeds([3, 2, 1], fixed_s=0.002).slow_down(0, when, 2.0)

    def ours(balance, batch, readings):
        after, _, reason = (balance or Balance.start(3)).observe(batch, [Reading(*row) for row in readings])
        return after, after.shard_sizes(batch), reason

    result = forecast(cluster, Balance.start(3).shard_sizes(BATCH), when + 80, strategy=ours)
    best = math.fsum(cluster.best_step_s(BATCH, step) for step in range(when + 60, when + 80))
    assert best / math.fsum(result.step_s[when + 60 :]) >= 0.9


def test_one_seed_gives_one_trace():
    cluster = Cluster.of_speeds([3, 2, 1], jitter_fraction=0.1, link=LINK, seed=3).slow_down(1, 40, 1.5)
    first, second = (simulate.run(train, cluster, 120) for _ in range(2))
    assert first.ranks == second.ranks and first.decisions == second.decisions
    assert [taken for _, taken in first.results] == [taken for _, taken in second.results]
    assert all((a == b).all() for a, b in zip(first.results[0][0], second.results[0][0]))


def test_jitter_does_not_keep_it_from_balancing():
    cluster = Cluster.of_speeds([3, 2, 1], fixed_s=0.004, jitter_fraction=0.2, link=LINK, seed=1)
    trace = simulate.run(train, cluster, 160)
    shards = allocate(BATCH, [cost.at(0) for cost in cluster.ranks])
    best = [max(cluster.compute_s(rank, shards[rank], step) for rank in range(3)) for step in range(60, 160)]
    assert math.fsum(best) / math.fsum(trace.slowest_s()[60:]) >= 0.95


def test_the_journal_of_a_run_gives_its_decisions_again():
    stream = io.StringIO()
    cluster = Cluster.of_speeds([3, 1], link=LINK, jitter_fraction=0.1)
    trace = simulate.run(lambda comm: train(comm, 70, journal=stream if comm.rank == 0 else None), cluster)
    decisions = replay(stream.getvalue().splitlines())
    assert len(decisions) == 60  # those observed when the last decision was due
    assert [d.reason for d in (decisions[9], decisions[59])] == [d["reason"] for d in trace.decisions]


# ------------------------------------------------------------------------------------------------------- true numbers


def on_one_device(steps, **options):
    return train(SoloCommunicator(), steps, **options)[0]


@pytest.mark.parametrize("speeds", [[1], [3, 2, 1], [5, 1, 1, 1]])
def test_the_training_is_that_of_one_device_on_the_same_samples(speeds):
    trace = simulate.run(train, Cluster.of_speeds(speeds, fixed_s=0.002, link=LINK), 30)
    for params, _ in trace.results:
        for value, expected in zip(params, on_one_device(30)):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch, samples", [(7, 23), (2, 5), (1, 4)])
def test_ranks_without_samples_take_part(batch, samples):
    """Batches of fewer samples than ranks, and a short last one."""
    trace = simulate.run(lambda comm: train(comm, 30, batch=batch, samples=samples), Cluster.of_speeds([4, 2, 1]))
    assert [len(taken) for _, taken in trace.results] == [30] * 3
    for params, _ in trace.results:
        for value, expected in zip(params, on_one_device(30, batch=batch, samples=samples)):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["threads", "shm", "simulated"])
def test_every_sample_once_and_all_ranks_alike(kind):
    config = BalanceConfig(calibration_steps=4, interval_steps=5, min_ratio=0.1)
    if kind == "simulated":
        results = simulate.run(lambda comm: train(comm, 16, config=config), Cluster.of_speeds([3, 2, 1])).results
    else:
        results = run_ranks(kind, lambda comm: train(comm, 16, config=config), 3)
    assert [len(taken) for _, taken in results] == [16] * 3
    for dealt, batch in zip(zip(*(taken for _, taken in results)), batches_of(data(), 16)):
        assert sum(dealt, []) == list(batch)
    for params, _ in results:
        for value, expected, exact in zip(params, results[0][0], on_one_device(16)):
            assert (value == expected).all()
            np.testing.assert_allclose(value, exact, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------------------------- faults


def test_a_step_that_fails_is_left_out():
    def body(comm):
        balancer = Balancer(comm, BalanceConfig(calibration_steps=2))
        for i in range(3):
            try:
                with balancer.step(10) as rows:
                    if i == 1:
                        raise ZeroDivisionError
                    comm.clock.compute(rows.stop - rows.start)
                    balancer.comm.barrier()
            except ZeroDivisionError:
                pass
        return balancer.balance.step, balancer.shard_sizes(10)

    trace = simulate.run(body, Cluster((RankCost(0.0, 1e-3), RankCost(0.0, 4e-3))))
    assert trace.results == [(2, (8, 2))] * 2
