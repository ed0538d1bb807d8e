"""A virtual cluster: true numbers, modelled time, the same trace in every run."""

import math
import time

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.data import digits
from minigrad.distributed import DDP, Balancer, compute_shard_sizes, init, rebalance, run, simulate
from minigrad.distributed.simulate import Cluster, Link, RankCost, Slowdown, forecast
from minigrad.errors import ArgumentError, ShapeError


def train(comm, samples=8, steps=4, cap=1 << 20):
    """A small training, as a user writes it; the sum of all parameters."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    ddp = DDP(model, comm, bucket_cap_bytes=cap)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        (ddp(minigrad.randn(samples, 16)) ** 2).mean().backward()
        optimizer.step()
    return sum(float(p.detach().sum()) for p in model.parameters())


def train_digits(comm, steps):
    """The digits MLP, 8 samples a rank, balanced."""
    images, labels = (minigrad.Tensor(array) for array in digits("train").arrays)
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    balancer = Balancer(comm)
    ddp = DDP(model, balancer.comm)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        with balancer.step(8 * comm.world_size) as rows:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(images[rows]), labels[rows]).backward()
            optimizer.step()


def test_numbers_are_those_of_plain_thread_ranks():
    trace = simulate.run(train, Cluster.of_speeds([3, 2, 1], link=Link(1e-4, 1e6)))
    assert trace.results == run(train, 3)


def test_one_seed_gives_one_trace():
    cluster = Cluster.of_speeds([3, 2, 1], link=Link(1e-4, 1e6), jitter_fraction=0.2, seed=5)
    traces = [simulate.run(train, cluster, 8, 4, 4096) for _ in range(3)]
    assert traces[0].ranks == traces[1].ranks == traces[2].ranks
    other = simulate.run(train, Cluster.of_speeds([3, 2, 1], link=Link(1e-4, 1e6), jitter_fraction=0.2, seed=6))
    assert other.ranks[0].steps[0].compute_s != traces[0].ranks[0].steps[0].compute_s


def test_the_fast_wait_for_the_slow():
    trace = simulate.run(train, Cluster.of_speeds([4, 1], per_sample_s=0.01), 10, 3)
    assert trace.steps() == 3
    for fast, slow in zip(trace.ranks[0].steps, trace.ranks[1].steps):
        assert fast.compute_s == pytest.approx(0.025) and slow.compute_s == pytest.approx(0.1)
        assert fast.idle_s == pytest.approx(0.075) and slow.idle_s == pytest.approx(0.0)
    assert trace.step_times_s() == pytest.approx([0.1] * 3)
    assert trace.idle_fraction() == pytest.approx(0.075 / 0.2)
    assert trace.throughput() == pytest.approx(20 / 0.1)


def test_buckets_travel_while_backward_still_runs():
    """With one bucket all of the communication is exposed; with several, most of it is hidden."""
    cluster = Cluster.of_speeds([1, 1], per_sample_s=0.01, link=Link(0.0, 1e6))
    one, several = (simulate.run(train, cluster, 10, 3, cap) for cap in (1 << 20, 4096))
    assert one.results == several.results
    exposed = [trace.ranks[0].steps[1].exposed_s for trace in (one, several)]
    assert 0.0 < exposed[1] < 0.7 * exposed[0]


def test_a_script_that_asks_for_its_rank_runs_unchanged():
    trace = simulate.run(lambda comm: init().world_size, Cluster.of_speeds([1, 1, 1]))
    assert trace.results == [3, 3, 3]


def test_a_slowdown_begins_at_its_step():
    trace = simulate.run(train, Cluster.of_speeds([1, 1], per_sample_s=0.01).slow_down(1, 2, 3.0), 10, 4)
    assert [round(step.compute_s, 6) for step in trace.ranks[1].steps] == [0.1, 0.1, 0.3, 0.3]
    assert trace.step_times_s() == pytest.approx([0.1, 0.1, 0.3, 0.3])


def test_a_raising_rank_ends_the_simulation():
    def body(comm):
        if comm.rank == 1:
            raise ZeroDivisionError("boom")
        comm.barrier()

    with pytest.raises(ZeroDivisionError):
        simulate.run(body, Cluster.of_speeds([1, 1]))


def test_costs_of_collectives():
    link = Link(2.0, 4.0)
    assert link.cost_s("all_reduce", 100, 1) == 0.0
    assert link.cost_s("all_reduce", 100, 5) == pytest.approx(8 * (2.0 + 20 / 4.0))
    assert link.cost_s("all_gather", 100, 5) == pytest.approx(4 * (2.0 + 20 / 4.0))
    assert link.cost_s("broadcast", 100, 5) == pytest.approx(3 * (2.0 + 100 / 4.0))
    tree = Link(2.0, 4.0, "tree")
    assert tree.cost_s("all_reduce", 100, 8) == pytest.approx(6 * (2.0 + 25.0))
    inner = Link(0.1, 100.0)
    both = Link(2.0, 4.0, "hierarchical", 4, inner)
    expected = inner.cost_s("all_reduce", 100, 4) + link.cost_s("all_reduce", 100, 2) + 2 * (0.1 + 1.0)
    assert both.cost_s("all_reduce", 100, 8) == pytest.approx(expected)
    assert Link().cost_s("all_reduce", 10**9, 64) == 0.0


def test_a_gather_costs_what_all_ranks_hand_in_whoever_comes_last():
    def body(comm):
        comm.clock.compute(1)
        comm.all_gather_object("x" * (100 * comm.rank))
        comm.all_gather(np.zeros(20), np.zeros(10)).wait()

    link = Link(0.0, 1.0)
    trace = simulate.run(body, Cluster.of_speeds([1, 1], link=link))
    texts = len('""') * 2 + 100
    assert trace.step_times_s()[0] == pytest.approx(1e-3 + link.cost_s("all_gather", texts + 160, 2))


def test_forecast_follows_the_same_model():
    cluster = Cluster(tuple(RankCost(0.01, 0.001 * (r + 1)) for r in range(3)), Link(1e-3, 1e6)).slow_down(0, 1, 10.0)
    result = forecast(cluster, [10, 10, 10], 2, gradient_bytes=3000)
    assert result.step_s.tolist() == pytest.approx([0.04 + 4 * 2e-3, 0.2 + 4 * 2e-3])
    assert result.idle_fraction[0] == pytest.approx(1 - (0.02 + 0.03 + 0.04) / 3 / 0.04)


def test_a_policy_moves_samples_between_the_steps_of_a_forecast():
    def to_the_first(step, samples, compute_s):
        assert compute_s.tolist() == pytest.approx([1e-3 * n for n in samples])
        return [samples[0] + 1, samples[1] - 1]

    cluster = Cluster.of_speeds([1, 1])
    result = forecast(cluster, [5, 5], 3, policy=to_the_first)
    assert result.samples.tolist() == [7, 3] and result.step_s.tolist() == pytest.approx([5e-3, 6e-3, 7e-3])
    with pytest.raises(ShapeError, match=r"shape \(2,\), got \(1,\)"):
        forecast(cluster, [5, 5], 3, policy=lambda *_: [10])


def test_the_best_step_is_that_of_the_best_integer_plan():
    cluster = Cluster.of_speeds([3, 2, 1], per_sample_s=0.006).slow_down(0, 5, 2.0)
    assert cluster.best_step_s(60) == pytest.approx(0.06)
    assert cluster.best_step_s(9, step=5) == pytest.approx(0.012)  # 3, 4 and 2 samples
    assert cluster.best_step_s(0) == 0.0


def test_sizes_that_a_laptop_has_to_manage():
    """The digits on 64 ranks with true numbers, and 100,000 ranks that rebalance without: measured, not asserted."""
    started = time.perf_counter()
    steps = 5
    trace = simulate.run(train_digits, Cluster.of_speeds([3, 2, 1, 1] * 16, link=Link(1e-5, 1e9)), steps)
    assert trace.steps() == steps
    print(f"64 ranks with numbers: {(time.perf_counter() - started) / steps:.2f} s a step")

    started, size = time.perf_counter(), 100_000

    def by_speed(step, samples, compute_s):
        return compute_shard_sizes(32 * size, rebalance((samples / compute_s).tolist())) if step % 10 == 9 else samples

    many = Cluster.of_speeds(np.linspace(1, 3, size), jitter_fraction=0.01)
    result = forecast(many, np.full(size, 32.0), 30, policy=by_speed)
    assert result.samples.sum() == 32 * size and result.step_s[10] < 0.8 * result.step_s[9]
    print(f"100,000 ranks without numbers, 30 steps and 2 decisions: {time.perf_counter() - started:.2f} s")


def test_wrong_arguments():
    for speeds in ([0.0], [-1.0], [math.nan]):
        with pytest.raises(ArgumentError, match="speeds > 0"):
            Cluster.of_speeds(speeds)
    with pytest.raises(ArgumentError, match="at least one rank"):
        Cluster(())
    with pytest.raises(ArgumentError, match="fixed_s >= 0, got -1"):
        RankCost(-1)
    with pytest.raises(ArgumentError, match="factor > 0"):
        Slowdown(0, 0.0)
    with pytest.raises(ArgumentError, match="latency >= 0"):
        Link(-1.0)
    with pytest.raises(ArgumentError, match="bandwidth > 0"):
        Link(0.0, 0.0)
    with pytest.raises(ArgumentError, match="topology"):
        Link(topology="star")
    with pytest.raises(ArgumentError, match="inner link"):
        Link(topology="hierarchical")
    with pytest.raises(ArgumentError, match=r"backward_fraction in \[0, 1\]"):
        Cluster((RankCost(),), backward_fraction=2.0)
    with pytest.raises(ShapeError, match=r"shape \(2,\), got \(3,\)"):
        forecast(Cluster.of_speeds([1, 1]), [1, 1, 1], 1)
