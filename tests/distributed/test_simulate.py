"""A virtual cluster: true numbers, modelled time, the same trace in every run."""

import math
from dataclasses import replace

import numpy as np
import pytest

import minigrad
from minigrad import FlowBuilder, nn, optim
from minigrad.distributed import DDP, compute_shard_sizes, init, rebalance, run, simulate
from minigrad.distributed.simulate import Cluster, Link, RankCost, SimulatedDevices, Slowdown, SyncReading, forecast
from minigrad.distributed.simulate.trace import Recorder, Step, Trace
from minigrad.errors import ArgumentError, ShapeError
from tests.benchmarks.simulation import train_digits


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


def wasted(trace):
    """What each rank waited for in each step: the others, and the network."""
    return [[(round(s.idle_s, 6), round(s.exposed_s, 6)) for s in rank.steps] for rank in trace.ranks]


def test_nothing_is_hidden_behind_a_backward_that_is_over():
    """Gradients that were accumulated travel after the last backward."""

    def body(comm, sync):
        ddp = DDP(nn.Linear(3, 1), comm, sync=sync)
        with ddp.no_sync():
            ddp(minigrad.randn(5, 3)).square().mean().backward()
        if sync == "auto":
            ddp.flush()
        else:
            ddp.sync_gradients()

    cluster = Cluster.of_speeds([1, 1], per_sample_s=0.01, link=Link(0.02))
    for sync in ("auto", "manual"):
        assert wasted(simulate.run(body, cluster, sync)) == [[(0.0, 0.08)]] * 2  # the count, and one bucket


def test_a_collective_that_is_called_before_computing_travels_meanwhile():
    def body(comm):
        work = comm.all_reduce(np.zeros(1))
        comm.clock.compute(comm.rank + 2)
        work.wait()
        return comm.clock.now_s()

    trace = simulate.run(body, Cluster.of_speeds([1, 1], per_sample_s=1.0, link=Link(1.25)))
    assert trace.results == [2.5, 3.0] and wasted(trace) == [[(0.0, 0.5)], [(0.0, 0.0)]]


def test_collectives_go_one_after_the_other():
    def body(comm):
        for work in [comm.all_reduce(np.zeros(1)) for _ in range(2)]:
            work.wait()
        return comm.clock.now_s()

    assert simulate.run(body, Cluster.of_speeds([1, 1], link=Link(1.5))).results == [6.0, 6.0]


def test_backward_takes_its_part_of_a_step():
    def body(comm):
        times = []
        comm.clock.compute(8)
        for fraction in (0.0, 0.5, 1.0):
            comm.clock.progress(fraction)
            times.append(comm.clock.now_s())
        return times

    cluster = replace(Cluster.of_speeds([1], per_sample_s=1.0), backward_fraction=0.75)
    assert simulate.run(body, cluster).results == [[2.0, 5.0, 8.0]]


def test_time_passes_for_a_rank_that_does_nothing_but_ask():
    def body(comm):
        comm.clock.compute(1)
        work = comm.all_reduce(np.zeros(1))
        while not work.done():
            pass
        return comm.clock.now_s()

    cluster = Cluster.of_speeds([1, 2], per_sample_s=1.0, link=Link(1.5))
    assert simulate.run(body, cluster, timeout_s=5).results == [4.0, 4.0]


def test_asking_in_the_midst_of_a_backward_takes_no_time():
    def body(comm):
        comm.clock.compute(3)
        comm.clock.progress(0.0)
        work = comm.all_reduce(np.zeros(1))
        asked = [work.done() for _ in range(3)]
        comm.clock.progress(0.5)
        return asked, work.done(), comm.clock.now_s()

    cluster = Cluster.of_speeds([1, 1], per_sample_s=1.0, link=Link(0.25))
    assert simulate.run(body, cluster).results == [([False] * 3, True, 2.0)] * 2


def test_a_decision_says_when_it_was_taken():
    def body(comm):
        comm.clock.compute(2)
        comm.barrier()
        comm.event("mine", step=1)

    trace = simulate.run(body, Cluster.of_speeds([1, 2], per_sample_s=1.0, link=Link(0.5)))
    assert trace.decisions == [{"kind": "mine", "at_s": 2.5, "step": 1}]


def test_jitter_is_log_normal_and_of_its_own_for_each_seed_rank_and_step():
    cluster, size = Cluster.of_speeds([1] * 100, jitter_fraction=0.5), np.ones(100)
    single = np.array([[cluster.jitter(rank, step) for rank in range(100)] for step in range(20)])
    at_once = np.array([cluster.compute_all_s(size, step) for step in range(20)]) / 1e-3
    for factors in (single, at_once):
        assert (factors > 0.0).all() and np.median(factors) == pytest.approx(1.0, abs=0.05)
        assert len(np.unique(factors)) == factors.size
        assert np.log(factors).std() == pytest.approx(0.5, abs=0.03)
    other = replace(cluster, seed=1)
    assert other.jitter(0, 0) != single[0, 0] and (other.compute_all_s(size, 0) != at_once[0] * 1e-3).all()


def test_a_rank_that_computes_nothing_in_a_step_has_it_in_its_trace():
    """The second rank in the first step, the first in the second; what it waits for is of that step."""

    def body(comm):
        ddp = DDP(nn.Linear(3, 1), comm)
        for step in range(3):
            ddp.zero_grad()
            if (comm.rank, step) not in ((1, 0), (0, 1)):
                with ddp.no_sync():
                    ddp(minigrad.randn(5, 3)).square().mean().backward()
            ddp.flush()

    trace = simulate.run(body, Cluster.of_speeds([1, 1], per_sample_s=0.01, link=Link(0.02)))
    assert [[step.samples for step in rank.steps] for rank in trace.ranks] == [[5, 0, 5], [0, 5, 5]]
    assert wasted(trace) == [[(0.0, 0.08), (0.05, 0.08), (0.0, 0.08)], [(0.05, 0.08), (0.0, 0.08), (0.0, 0.08)]]
    assert trace.step_times_s() == pytest.approx([0.13] * 3) and trace.steps() == 3
    assert trace.idle_fraction() == pytest.approx(0.1 / 0.78) and trace.exposed_fraction() == pytest.approx(0.48 / 0.78)
    assert trace.idle_fraction(2) == 0.0 and trace.throughput(0, 1) == pytest.approx(5 / 0.13)


def test_a_device_without_samples_has_its_steps_too():
    graph = FlowBuilder.from_(nn.Linear(3, 1)).build()
    devices = SimulatedDevices(Cluster.of_speeds([1, 1], per_sample_s=0.01))
    graph.distribute(graph.replicate, devices)
    graph.set_optimizer(lambda params: optim.SGD(params, lr=0.1))
    for samples in (2, 1, 4):
        graph(minigrad.randn(samples, 3)).square().mean().backward()
        graph.step()
    trace = devices.trace
    assert [[step.samples for step in rank.steps] for rank in trace.ranks] == [[1, 1, 2], [1, 0, 2]]
    assert trace.step_times_s() == pytest.approx([0.01, 0.01, 0.02])
    assert trace.ranks[1].steps[1].begin_s == pytest.approx(0.01) and wasted(trace)[1][1] == (0.01, 0.0)


def test_a_broadcast_between_devices_takes_its_time():
    devices = SimulatedDevices(Cluster.of_speeds([1, 1], link=Link(0.5, 8.0)))
    devices.clocks[0].compute(1)
    devices.collectives.broadcast([np.zeros(2), np.ones(2)], 1)
    assert [clock.now_s() for clock in devices.clocks] == pytest.approx([1e-3 + 0.5 + 2.0] * 2)


def test_all_that_a_rank_computes_before_a_collective_is_one_step():
    def body(comm):
        comm.barrier()  # setting up
        for _ in range(2):
            for samples in (2, 3):
                comm.clock.compute(samples)
            comm.barrier()
            comm.barrier()
        return comm.timeout_s

    trace = simulate.run(body, Cluster.of_speeds([1, 5], per_sample_s=1.0, link=Link(0.5)), timeout_s=7.0)
    assert trace.results == [7.0, 7.0]
    first, second = trace.ranks[1].steps
    assert (first.begin_s, first.end_s, first.samples, first.compute_s) == pytest.approx((0.5, 6.5, 5, 1.0))
    assert (second.begin_s, second.idle_s, second.exposed_s) == pytest.approx((6.5, 4.0, 1.0))
    assert trace.step_times_s() == pytest.approx([6.0, 6.0])


def test_a_rank_that_does_not_even_wait_has_an_empty_step():
    recorders = Recorder(), Recorder()
    for recorder in recorders:
        recorder.compute(0.0, 1.0, 4.0)
        recorder.called()
    recorders[0].compute(1.0, 2.0, 8.0)
    trace = Trace.of(recorders)
    assert [rank.steps[1] for rank in trace.ranks] == [Step(1.0, 3.0, 2.0, samples=8.0), Step(1.0, 1.0)]


def test_costs_of_collectives():
    link = Link(2.0, 4.0)
    assert link.cost_s("all_reduce", 100, 1) == 0.0
    assert link.cost_s("all_reduce", 100, 5) == pytest.approx(8 * (2.0 + 20 / 4.0))
    assert link.cost_s("all_gather", 100, 5) == pytest.approx(4 * (2.0 + 20 / 4.0))
    assert link.cost_s("broadcast", 100, 5) == pytest.approx(3 * (2.0 + 100 / 4.0))
    tree = Link(2.0, 4.0, "tree")
    assert tree.cost_s("all_reduce", 100, 8) == pytest.approx(6 * (2.0 + 25.0))
    assert tree.cost_s("broadcast", 100, 8) == link.cost_s("broadcast", 100, 8) == pytest.approx(3 * (2.0 + 25.0))
    assert tree.cost_s("all_gather", 100, 8) == pytest.approx(3 * 2.0 + 7 / 8 * 25.0)
    inner = Link(0.1, 100.0)
    both = Link(2.0, 4.0, "hierarchical", 4, inner)
    expected = inner.cost_s("all_reduce", 100, 4) + link.cost_s("all_reduce", 100, 2) + 2 * (0.1 + 1.0)
    assert both.cost_s("all_reduce", 100, 8) == pytest.approx(expected)
    assert both.cost_s("all_reduce", 100, 6) == both.cost_s("all_reduce", 100, 8)  # a node that is not full
    for kind in ("broadcast", "all_gather"):  # within one node
        assert both.cost_s(kind, 100, 3) == pytest.approx(inner.cost_s(kind, 100, 3))
    assert both.cost_s("barrier", 0, 8) == pytest.approx(2 * 0.1 + 2.0 + 2 * 0.1)
    assert both.cost_s("reduce_scatter", 100, 8) == pytest.approx(3 * (0.1 + 0.25) + 2.0 + 12.5)
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


def test_a_rank_without_samples_takes_no_time_in_a_forecast():
    cluster = Cluster((RankCost(1.0, 0.5), RankCost(9.0, 9.0)))
    assert forecast(cluster, [4, 0], 1).step_s.tolist() == [3.0] == [cluster.best_step_s(4)]


def test_a_strategy_moves_samples_between_the_steps_of_a_forecast():
    def to_the_first(state, batch_size, readings):
        assert batch_size == 10 and [s for _, s in readings] == pytest.approx([1e-3 * n for n, _ in readings])
        return (state or 0) + 1, [6 + (state or 0), 4 - (state or 0)], "on and on"

    cluster = Cluster.of_speeds([1, 1])
    seen = []
    slow = cluster.slow_down(0, 8, 4.0)
    later = forecast(slow, [5, 5], 3, strategy=lambda batch, speeds: seen.append(speeds) or (5, 5), first_step=7)
    assert np.array(seen) == pytest.approx(np.array([[1e3, 1e3], [625.0, 1e3]]))  # medians of both readings
    assert later.step_s.tolist() == pytest.approx([5e-3, 2e-2, 2e-2])
    result = forecast(cluster, [5, 5], 3, strategy=to_the_first)
    assert result.samples.tolist() == [7, 3] and result.step_s.tolist() == pytest.approx([5e-3, 6e-3, 7e-3])
    with pytest.raises(ArgumentError, match=r"expected 2 sizes, one a rank, got 1: \(10\)"):
        forecast(cluster, [5, 5], 3, strategy=lambda batch, speeds: [10])
    with pytest.raises(ArgumentError, match=r"forecast: expected a whole batch for a strategy to divide, got 5.5"):
        forecast(cluster, [5, 0.5], 3, strategy=to_the_first)


def test_the_best_step_is_that_of_the_best_integer_division():
    cluster = Cluster.of_speeds([3, 2, 1], per_sample_s=0.006).slow_down(0, 5, 2.0)
    assert cluster.best_step_s(60) == pytest.approx(0.06)
    assert cluster.best_step_s(9, step=5) == pytest.approx(0.012)  # 3, 4 and 2 samples
    assert cluster.best_step_s(0) == 0.0


def test_the_last_slowdown_that_has_come_holds_in_whatever_order_they_were_given():
    for cluster in (
        Cluster((RankCost(),)).slow_down(0, 50, 2.0).slow_down(0, 20, 3.0),
        Cluster((RankCost(),)).slow_down(0, 20, 3.0).slow_down(0, 50, 2.0),
    ):
        assert [cluster.ranks[0].factor(step) for step in (0, 19, 20, 49, 50, 99)] == [1.0, 1.0, 3.0, 3.0, 2.0, 2.0]


def test_sizes_that_a_laptop_has_to_manage():
    """The digits on 64 ranks with true numbers, and 100,000 ranks that rebalance without; the benchmark measures."""
    trace = simulate.run(train_digits, Cluster.of_speeds([3, 2, 1, 1] * 16, link=Link(1e-5, 1e9)), 2)
    assert trace.steps() == 2 and len(trace.ranks) == 64
    size = 100_000

    def by_speed(batch, speeds):
        return compute_shard_sizes(batch, rebalance(speeds))

    many = Cluster.of_speeds(np.linspace(1, 3, size), jitter_fraction=0.01)
    result = forecast(many, np.full(size, 32.0), 2, strategy=by_speed)
    assert result.samples.sum() == 32 * size and result.step_s[1] < 0.8 * result.step_s[0]


WRONG = {
    "each speed": lambda: Cluster.of_speeds([math.nan]),
    "each speed to be": lambda: Cluster.of_speeds(["fast"]),
    "each speed to be a finite number > 0, got 0.0": lambda: Cluster.of_speeds([0.0]),
    "per_sample_s to be": lambda: Cluster.of_speeds([1], per_sample_s=-1.0),
    "at least one rank": lambda: Cluster(()),
    "expected the RankCost of each rank, got 5": lambda: Cluster(5),
    r"RankCost of each rank, got \(1.0,\)": lambda: Cluster((1.0,)),
    "a Link, got None": lambda: Cluster((RankCost(),), None),
    r"seed to be an integer in \[0, 2\*\*64\), got -1": lambda: Cluster((RankCost(),), seed=-1),
    r"backward_fraction to be a number in \[0, 1\]": lambda: Cluster((RankCost(),), backward_fraction=2.0),
    r"rank to be an integer in \[0, 1\), got -1": lambda: Cluster((RankCost(),)).slow_down(-1, 0, 2.0),
    r"rank to be an integer in \[0, 1\), got 1": lambda: Cluster((RankCost(),)).slow_down(1, 0, 2.0),
    "fixed_s to be a finite number >= 0, got -1": lambda: RankCost(-1),
    "jitter_fraction to be": lambda: RankCost(jitter_fraction=None),
    "tuple of Slowdown": lambda: RankCost(slowdowns=(2.0,)),
    "factor to be a finite number > 0": lambda: Slowdown(0, 0.0),
    "step to be an integer >= 0, got 1.5": lambda: Slowdown(1.5, 2.0),
    "latency_s to be": lambda: Link(-1.0),
    "bandwidth_bytes_s to be a number > 0": lambda: Link(0.0, 0.0),
    "bandwidth_bytes_s to be": lambda: Link(0.0, math.nan),
    "topology": lambda: Link(topology="star"),
    "inner link": lambda: Link(topology="hierarchical"),
    "ranks_per_node to be an integer >= 1, got 0": lambda: Link(ranks_per_node=0),
    "inner, ranks_per_node for 'hierarchical' only, got 'ring'": lambda: Link(ranks_per_node=4, inner=Link()),
    "only, got 'tree'": lambda: Link(topology="tree", ranks_per_node=4),
    r"Link: expected efficiency to be a number in \(0, 1\], got 90": lambda: Link(efficiency=90),
    "ramp_s to be a finite number >= 0, got -1": lambda: Link(ramp_s=-1),
    "skew_s_per_step to be a finite number >= 0": lambda: Link(skew_s_per_step=math.inf),
    "local_steps to be a finite number >= 0": lambda: Link().cost_s("all_reduce", 1, 2, local_steps=-1),
    "SyncReading: expected seconds to be a finite number > 0, got 0": lambda: SyncReading(0, 1, 1, 2),
    "SyncReading: expected nbytes to be": lambda: SyncReading(1, None, 1, 2),
    "SyncReading: expected bandwidth_bytes_s to be a finite": lambda: SyncReading(1, 1, math.inf, 2),
    "SyncReading: expected world_size to be an integer >= 2, got 1": lambda: SyncReading(1, 1, 1, 1),
    "SyncReading: expected local_steps to be": lambda: SyncReading(1, 1, 1, 2, -1),
    "Link.fit: expected rows": lambda: Link.fit(3),
    "rows as at least one SyncReading, got \\[\\]": lambda: Link.fit([]),
    "rows as at least one SyncReading, got \\[\\(1": lambda: Link.fit([(1.0, 1.0, 1.0, 2)]),
    "like to be a Link, got 5": lambda: Link.fit([SyncReading(1, 1, 1, 2)], 5),
    r"of one bandwidth, got \[1.0, 2.0\]: say which": lambda: Link.fit([SyncReading(1, 1, b, 2) for b in (1, 2)]),
    "Link: expected bandwidth_bytes_s": lambda: Link.fit([SyncReading(1, 1, 1, 2)], bandwidth_bytes_s=0),
    "as its bytes need at its bandwidth, got at most 0.5 of that": lambda: Link.fit([SyncReading(0.5, 1, 1, 2)]),
    "kind to be one of 'all_reduce'": lambda: Link().cost_s("send", 1, 2),
    "nbytes to be": lambda: Link().cost_s("all_reduce", -1, 2),
    "world_size to be an integer >= 1": lambda: Link().cost_s("all_reduce", 1, 0),
    "message_s: expected nbytes to be": lambda: Link().message_s(math.nan),
    "message_s: expected src to be": lambda: Link().message_s(1, -1),
    "message_s: expected dst to be": lambda: Link().message_s(1, 0, 0.5),
    "expected a function of a communicator, got 3": lambda: simulate.run(3, TWO),
    "simulate.run: expected a Cluster": lambda: simulate.run(train, 2),
    "samples to be a finite number >= 0, got -1": lambda: simulate.run(lambda comm: comm.clock.compute(-1), TWO),
    r"fraction to be a number in \[0, 1\], got 2": lambda: simulate.run(lambda comm: comm.clock.progress(2), TWO),
    "SimulatedDevices: expected a Cluster": lambda: SimulatedDevices(2),
    "forecast: expected a Cluster": lambda: forecast(2, [1, 1], 1),
    r"shape \(2,\), got \(3,\)": lambda: forecast(TWO, [1, 1, 1], 1),
    "finite samples >= 0": lambda: forecast(TWO, [1, math.inf], 1),
    "finite samples >= 0, got .-1, 1.": lambda: forecast(TWO, [-1, 1], 1),
    "samples as numbers": lambda: forecast(TWO, [1, "x"], 1),
    "steps to be an integer >= 0": lambda: forecast(TWO, [1, 1], 1.5),
    "first_step to be an integer >= 0": lambda: forecast(TWO, [1, 1], 1, first_step=-1),
    "forecast: expected a strategy": lambda: forecast(TWO, [1, 1], 1, strategy=[1, 1]),
    "nbytes to be a finite": lambda: forecast(TWO, [1, 1], 1, gradient_bytes=-1),
}
TWO = Cluster.of_speeds([1, 1])


@pytest.mark.parametrize("told", WRONG)
def test_wrong_arguments(told):
    with pytest.raises((ArgumentError, ShapeError), match=told):
        WRONG[told]()
