"""The smallest input of each fault in FAULTS.md, with the value that is right."""

import numpy as np
import pytest

import minigrad
from minigrad import FlowBuilder, nn, optim
from minigrad.data import BatchSampler, ChunkPool, DistributedSampler, SequentialSampler
from minigrad.data.dispatch import DISPATCHES, overshoot_left
from minigrad.distributed import (
    DDP,
    Balance,
    BalanceConfig,
    Balancer,
    CadenceConfig,
    CostModel,
    Dispatcher,
    ElChe,
    Reading,
    SyncBatchNorm,
    run,
)
from minigrad.distributed.balance import clamp_total, compute_shard_sizes, is_balanced, rebalance
from minigrad.errors import ArgumentError
from tests.balance.dispatched import fetched
from tests.balance.virtual import train


@pytest.mark.parametrize(
    "batch, sizes",
    [(1, (1, 0)), (1, (1, 0, 0)), (0, (0, 0)), (2, (1, 1, 0, 0)), (2, (1, 1, 0)), (3, (1, 1, 1, 0))],
)
def test_a_batch_smaller_than_the_number_of_ranks(batch, sizes):
    assert compute_shard_sizes(batch, [1 / len(sizes)] * len(sizes)) == sizes


def test_a_time_stays_with_its_rank():
    balance, _, _ = Balance.start(3).observe(2, [None, Reading(1, 0.5), Reading(1, 2.0)])
    windows = [history.window for history in balance.histories]
    assert windows == [(), (Reading(1, 0.5),), (Reading(1, 2.0),)]


@pytest.mark.parametrize(
    "batch, ranks, counts", [(40, 16, {3: 8, 2: 8}), (24, 16, {2: 8, 1: 8}), (100, 7, {15: 2, 14: 5})]
)
def test_rounding_is_spread_over_all_ranks(batch, ranks, counts):
    sizes = compute_shard_sizes(batch, [1 / ranks] * ranks)
    assert {size: sizes.count(size) for size in sizes} == counts


@pytest.mark.parametrize(
    "speeds, shares",
    [
        ([1000.0] + [1.0] * 19, [0.05] * 20),
        ([100.0] + [0.0] * 19, [0.05] * 20),
        ([25.0] * 3 + [25 / 12] * 12, [2 / 15] * 3 + [0.05] * 12),
        ([0.0, 94.9, 5.1], [0.05, 0.9, 0.05]),
        ([100.0, 1.0], [0.95, 0.05]),
    ],
)
def test_the_floor_is_kept(speeds, shares):
    assert rebalance(speeds, 0.05) == pytest.approx(shares, rel=1e-12)
    assert min(rebalance(speeds, 0.05)) >= 0.05


def test_a_floor_for_too_many_ranks_is_refused():
    with pytest.raises(ArgumentError, match="expected min_ratio <= 1/25 for 25 ranks, got 0.05"):
        rebalance([1.0] * 25, 0.05)
    assert rebalance([1.0] * 25) == pytest.approx([0.04] * 25)


def test_an_unmeasured_rank_is_not_slow():
    assert rebalance([None, 10.0]) == (0.5, 0.5)
    assert rebalance([None, 10.0, 30.0, 50.0]) == rebalance([30.0, 10.0, 30.0, 50.0])


def test_time_that_does_not_depend_on_samples():
    config = BalanceConfig(speed_hint=(1, 9.0))
    balance, steps = train([CostModel(10.0, 0.0)] * 2, 100, 10, config=config)
    assert steps[0].shards == (90, 10) and balance.division.shards == (50, 50)


def test_a_fixed_part_of_the_time():
    config = BalanceConfig(speed_hint=(1, 1.5))
    balance, steps = train([CostModel(10.0, 0.1)] * 2, 100, 10, config=config)
    assert steps[0].shards == (60, 40) and balance.division.shards == (50, 50)


def test_a_decision_shows_in_the_next_step():
    _, steps = train([CostModel(0.0, 0.3), CostModel(0.0, 0.7)], 100, 11)
    assert steps[10].shards == (70, 30)


def test_a_rank_that_was_slow_once_comes_back_to_samples():
    once = dict(speed=lambda step, rank: 40.0 if rank and step <= 12 else 1.0)
    balance, steps = train([CostModel(0.0, 1.0)] * 2, 16, 62, **once)
    assert steps[10].shards == (16, 0) and steps[59].shards == (15, 1) and steps[60].shards == (8, 8)
    slow, steps = train([CostModel(0.0, 1.0), CostModel(0.0, 40.0)], 16, 115)
    assert [step.number for step in steps[10:] if step.shards != (16, 0)] == [60, 110]
    capped, steps = train([CostModel(0.0, 1.0)] * 2, 16, 60, config=BalanceConfig(caps=(None, 0)))
    assert {step.shards for step in steps} == {(16, 0)}
    never, _ = train([CostModel(0.0, 1.0)] * 2, 16, 62, config=BalanceConfig(min_ratio=0.0), **once)
    assert never.division.shards == (16, 0)


def test_balanced_is_said_of_shards():
    assert not is_balanced(compute_shard_sizes(11, [0.5, 0.5])) and is_balanced(compute_shard_sizes(12, [0.5, 0.5]))


def test_a_hint_counts_until_there_are_readings():
    balance = Balance.start(2, BalanceConfig(speed_hint=(1, 3.0), calibration_steps=1))
    assert balance.shard_sizes(40) == (30, 10)
    balance, _, _ = balance.observe(40, [None, Reading(10, 10.0)])
    assert balance.division.shards == (20, 20)  # one rank measured, the other like it


def test_the_cap_of_an_anchor_holds_for_counts():
    with pytest.raises(ArgumentError, match="expected min_anchor <= anchor <= max_anchor, got 10, 10 and 3"):
        CadenceConfig(max_anchor=3)
    assert ElChe.start(2, CadenceConfig.fixed(3)).batch_counts == (3, 3)


def test_the_last_batches_of_an_epoch():
    assert clamp_total([10, 10, 10], 2) == (1, 1, 0)
    assert clamp_total([10, 20, 30], 5) == (1, 2, 2)


def test_a_lowered_anchor_stays_low():
    el_che, _, _ = ElChe.start(2, CadenceConfig(anchor=20)).report_timing([1000.0, 2000.0], [20, 20], 150.0)
    el_che, counts, _ = el_che.nudge_anchor_down(0.5)
    assert counts == (20, 10)
    for sync_ms in (101.0, 20.0):
        after, counts, _ = el_che.report_timing([1000.0, 1000.0], [20, 10], sync_ms)
        assert (after.anchor, counts) == (10, (20, 10))


@pytest.mark.parametrize("sync_ms", [220.0, 10_000.0])
def test_the_first_report_sets_speeds_only(sync_ms):
    el_che, counts, _ = ElChe.start(2).report_timing([500.0, 1000.0], [10, 10], sync_ms)
    assert (el_che.anchor, counts) == (10, (20, 10))


def test_the_limit_on_changes_is_in_the_arithmetic():
    el_che, counts, _ = ElChe.start(2, CadenceConfig(max_batch_diff=3)).report_timing([5000.0, 1000.0], [10, 10], 300.0)
    assert counts == (10, 50)
    assert el_che.report_timing([5000.0, 25_000.0], [10, 50], 500.0)[1] == (10, 47)


def test_growth_is_held_before_it_happens():
    el_che, _, _ = ElChe.start(2).report_timing([1000.0, 1000.0], [10, 10], 100.0)
    held, counts, _ = el_che.report_timing([1000.0, 1000.0], [10, 10], 200.0, allow_growth=False)
    assert (held.anchor, counts) == (10, (10, 10))
    assert el_che.report_timing([1000.0, 1000.0], [10, 10], 200.0)[0].anchor == 20
    assert held.nudge_anchor_down(0.5)[0].anchor == 5


def test_adam_on_the_mean_gradient():
    """The mean of 1 and -0.01 is positive, so the first step goes down; steps of each rank's own would cancel."""

    def body(comm):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.data[...] = 0.0
        ddp = DDP(layer, comm)
        ddp(minigrad.full((1, 1), -0.01 if comm.rank else 1.0)).mean().backward()
        optim.Adam(ddp.parameters(), lr=0.1).step()
        return float(layer.weight.data.item())

    assert run(body, 2) == pytest.approx([-0.1, -0.1], abs=1e-6)


def test_statistics_over_ranks_are_those_of_the_mixture():
    def body(comm):
        norm = SyncBatchNorm(1, comm, momentum=1.0)
        norm(minigrad.Tensor(np.array([[-1.0], [1.0]], np.float32) + 10.0 * comm.rank))
        return float(norm.running_mean.data.item()), float(norm.running_var.data.item()) * 3 / 4  # it is unbiased

    assert run(body, 2) == [pytest.approx((5.0, 26.0))] * 2


def test_the_rate_is_that_of_the_user():
    def build(device):
        return FlowBuilder.from_(nn.Linear(1, 1, bias=False)).build()

    graph = build("cpu")
    graph.distribute(build, ["cpu"] * 8)
    graph.set_optimizer(lambda params: optim.Adam(params, lr=1e-3))
    before = [param.data.item() for param in graph.parameters()]
    graph(minigrad.ones(8, 1)).mean().backward()
    graph.step()
    assert [param.data.item() for param in graph.parameters()] == pytest.approx([before[0] - 1e-3], abs=1e-7)


@pytest.mark.parametrize("shares", [[0.5, 0.25, 0.25], [1.0]])
def test_shares_of_partitions_fit_the_ranks(shares):
    with pytest.raises(ArgumentError, match=f"a share for each of 2 ranks, got {len(shares)}"):
        DistributedSampler(10, rank=0, world_size=2, mode="exact", shares=shares)


@pytest.mark.parametrize("samples, each", [(10, [5]), (128, [16] * 4)])
def test_a_dataset_smaller_than_a_batch(samples, each):
    def body(comm):
        balancer, taken = Balancer(comm), []
        for mine in balancer.deal(BatchSampler(SequentialSampler(samples), 32)):
            balancer.comm.barrier()
            taken.append(mine)
        return taken

    first, second = run(body, 2)
    assert sum(map(len, first)) == sum(map(len, second)) == sum(each) and len(first) == len(second) == len(each)
    assert sorted(np.concatenate(first + second).tolist()) == list(range(samples))


@pytest.mark.parametrize("mode", DISPATCHES)
@pytest.mark.parametrize("samples, sizes", [(10, [(5, 5)]), (128, [(32, 32), (32, 32)])])
def test_it_is_divided_where_ranks_fetch_their_work_too(mode, samples, sizes):
    given, order = fetched(mode, samples)
    assert given == sizes and sorted(order) == list(range(samples))
    pool, first = ChunkPool(samples, 32).take(0, (1, 1))
    chunks = [first]
    while pool.remaining:
        pool, chunk = pool.take(1, (1, 1))
        chunks.append(chunk)
    assert first == ((0, samples // 2),) and all(chunks)


@pytest.mark.parametrize("mode", DISPATCHES)
def test_shares_and_seed_count_in_every_mode(mode):
    for shares in ((0.5, 0.25, 0.25), (1.0,)):
        with pytest.raises(ArgumentError, match=f"a share for each of 2 ranks, got {len(shares)}"):
            fetched(mode, 10, shares=shares)
    sizes, order = fetched(mode, 64, 8, shares=(0.75, 0.25))
    assert [sum(rank) for rank in zip(*sizes)] == [48, 16]
    assert fetched(mode, 64, 8, shares=(0.75, 0.25))[1] == order != fetched(mode, 64, 8, seed=1, shares=(0.75, 0.25))[1]


def test_a_limit_on_running_ahead_is_the_one_that_was_given():
    assert overshoot_left(10, 10, 0)[1].startswith("waits") and overshoot_left(10, 10, 40) == (
        40, "runs: 10 batches of a plan of 10, and 40 past it"
    )

    def body(comm, limit):
        dispatcher = Dispatcher(comm, ChunkPool(240, 2), "static", max_overshoot=limit, epochs=2)
        mine = dispatcher.rounds(lambda: (20, 1))  # the first has run its 60 batches when the second has run 3
        return max(dispatcher.dispatch.over[0] for _ in mine)

    assert [run(body, 2, limit)[0] for limit in (0, 1, 40)] == [0, 1, 40]


def test_throughput_is_of_all_batches_over_all_their_time():
    assert ElChe.start(1).report_timing([30.0], [3], 1.0)[0].ms_per_batch == (10.0,)
    balance = Balance.start(1, BalanceConfig(calibration_steps=3))
    for _ in range(3):
        balance, _, _ = balance.observe(100, [Reading(100, 10.0)])
    assert balance.throughput == pytest.approx((10.0,))
