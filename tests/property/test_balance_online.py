"""Ranks of unknown cost are measured, balanced, and balanced again when they change."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed.balance import (
    Balance,
    BalanceConfig,
    CostModel,
    Reading,
    allocate,
    default_min_ratio,
    fit_cost,
    step_s,
)
from minigrad.testing import strategies
from tests.balance.virtual import efficiency, noise, train

SPEEDS_3_2_1 = [CostModel(0.0, 1 / 3), CostModel(0.0, 1 / 2), CostModel(0.0, 1.0)]
WITH_FIXED_PARTS = [CostModel(4.0, 1 / 3), CostModel(6.0, 1 / 2), CostModel(3.0, 1.0), CostModel(2.0, 0.7)]


def costs(ranks=5):
    return st.lists(strategies.cost_models(), min_size=1, max_size=ranks)


@given(cost=strategies.cost_models(), sizes=st.lists(st.integers(20, 40), min_size=2, max_size=20))
def test_exact_readings_at_two_sizes_give_both_parts(cost, sizes):
    model = fit_cost([Reading(n, cost.time_s(n)) for n in sizes])
    for n in sizes:
        assert math.isclose(model.time_s(n), cost.time_s(n), rel_tol=1e-6)
    if len(set(sizes)) > 1:
        assert math.isclose(model.time_s(5), cost.time_s(5), rel_tol=1e-4)
    else:
        assert model.fixed_s == 0.0


@given(
    cost=strategies.cost_models(),
    rate=st.sampled_from([0.2, 3.0, 50.0]),
    where=st.sets(st.integers(0, 19), max_size=4),
)
def test_a_fifth_of_outliers_changes_nothing(cost, rate, where):
    sizes = [(16, 18, 16, 14)[i % 4] for i in range(20)]
    readings = [Reading(n, cost.time_s(n) * (rate if i in where else 1.0)) for i, n in enumerate(sizes)]
    model = fit_cost(readings)
    assert all(math.isclose(model.time_s(n), cost.time_s(n), rel_tol=1e-3) for n in sizes)


@given(costs=costs(), each=st.integers(4, 200))
def test_one_rebalance_after_calibration_is_within_one_sample_of_the_optimum(costs, each):
    batch = each * len(costs)
    balance, _ = train(costs, batch, 10, config=BalanceConfig(min_ratio=0.0))
    best = allocate(batch, costs)
    assert all(abs(size - other) <= 1 for size, other in zip(balance.division.shards, best))
    assert math.isclose(step_s(balance.division.shards, costs), step_s(best, costs), rel_tol=0.02)
    assert balance.shard_sizes(batch) == balance.division.shards


def test_a_few_samples_of_a_rank_with_a_fixed_part_are_no_outliers():
    """One sample less of three takes a ninth less where a third was expected, and only every fifth step shows it."""
    costs = [CostModel(3.35, 0.685), CostModel(0.0, 0.856), CostModel(0.0, 0.787)]
    balance, _ = train(costs, 8, 10, config=BalanceConfig(min_ratio=0.0))
    assert balance.division.shards == allocate(8, costs) == (0, 4, 4)


@given(costs=costs(), batch=st.integers(0, 400), steps=st.integers(0, 25), data=st.data())
def test_any_readings_give_whole_shards_over_the_floor(costs, batch, steps, data):
    config = BalanceConfig(calibration_steps=3, interval_steps=4, granularity=data.draw(st.integers(1, 4)))
    chance = noise(data.draw(st.integers(0, 9)), 1.0)
    seen = data.draw(st.integers(1, 4))
    balance, _ = train(costs, batch, steps, config=config, factor=chance, measured=lambda t, r: (t + r) % seen == 0)
    sizes = balance.shard_sizes(batch)
    assert sum(sizes) == batch and min(sizes) >= 0
    assert math.isclose(math.fsum(balance.division.ratios), 1.0, rel_tol=1e-12)
    assert min(balance.division.ratios) >= default_min_ratio(len(costs)) * (1 - 1e-15)


@given(
    costs=st.lists(strategies.cost_models(), min_size=2, max_size=5, unique_by=lambda cost: cost.per_sample_s),
    data=st.data(),
)
def test_permuted_ranks_get_permuted_divisions(costs, data):
    """Where all ranks differ; the readings go with the rank."""
    order = data.draw(st.permutations(range(len(costs))))
    chance, divisions = noise(1, 0.1), []
    for places in (range(len(costs)), order):
        balance = Balance.start(len(costs), BalanceConfig(calibration_steps=4))
        for step in range(4):
            readings = [Reading(60 + step, costs[i].time_s(60 + step) * chance(step, i)) for i in places]
            balance, division, _ = balance.observe(64 * len(costs), readings)
        divisions.append({i: (division.shards[at], division.ratios[at]) for at, i in enumerate(places)})
    assert divisions[0] == divisions[1]


@pytest.mark.parametrize("costs", [SPEEDS_3_2_1, WITH_FIXED_PARTS], ids=["3:2:1", "fixed parts"])
def test_under_twenty_percent_noise_nearly_all_of_the_throughput_is_there(costs):
    """Over 20 seeds, steps 60 to 300, against the best shards on the same draws."""
    reached = []
    for seed in range(20):
        _, steps = train(costs, 96, 300, factor=noise(seed, 0.2))
        reached.append(efficiency(steps[59:]))
    assert sum(reached) / len(reached) >= 0.99
    assert min(reached) >= 0.97


@pytest.mark.parametrize(
    "costs, deviation, least",
    [
        (SPEEDS_3_2_1, 0.0, 0.99),
        (SPEEDS_3_2_1, 0.02, 0.90),
        (SPEEDS_3_2_1, 0.1, 0.90),
        (WITH_FIXED_PARTS, 0.0, 0.99),
        (WITH_FIXED_PARTS, 0.02, 0.85),  # noise in ten steps leaves open how much of the time is fixed
    ],
)
def test_a_rank_that_slows_down_by_half_is_made_up_for_within_sixty_steps(costs, deviation, least):
    for at in (5, 30, 61, 63, 68, 72, 99, 109, 130):
        for slow in range(len(costs)):
            _, steps = train(
                costs,
                96,
                at + 70,
                factor=noise(0, deviation),
                speed=lambda step, rank: 2.0 if rank == slow and step >= at else 1.0,
            )
            assert efficiency(steps[at + 59 :]) > least, (at, slow)


def test_a_slow_drift_is_followed():
    """The rank gets slower by a factor of 3 over 400 steps; an interval's worth behind is all that may be lost."""
    _, steps = train(SPEEDS_3_2_1, 96, 400, speed=lambda step, rank: 1.0 + step / 200 if rank == 0 else 1.0)
    assert min(step.best_s / step.seconds for step in steps[60:]) > 0.80


def test_constant_speeds_keep_one_division():
    for costs in (SPEEDS_3_2_1, WITH_FIXED_PARTS):
        _, steps = train(costs, 96, 300)
        assert len({step.shards for step in steps[10:]}) == 1
