"""When decisions come, what they say, and what a configuration may be."""

import numpy as np
import pytest

from minigrad.distributed.balance import (
    Balance,
    BalanceConfig,
    CostModel,
    Reading,
    allocate,
    calibration_sizes,
    clamp_total,
    compute_shard_sizes,
    hint_ratios,
    is_balanced,
    median_cost,
    rebalance,
    relative_speeds,
)
from minigrad.errors import ArgumentError
from tests.balance.virtual import train

TWO = [CostModel(0.0, 0.1), CostModel(0.0, 0.3)]


def test_decisions_come_after_ten_steps_and_then_every_fifty():
    _, steps = train(TWO, 40, 170)
    decided = [step.number for step in steps if "no decision is due" not in step.reason]
    assert decided == [10, 60, 110, 160]


def test_the_intervals_are_options():
    _, steps = train(TWO, 40, 9, config=BalanceConfig(calibration_steps=2, interval_steps=3))
    assert [step.number for step in steps if "no decision" not in step.reason] == [2, 5, 8]


def test_calibration_goes_round_the_hint():
    balance = Balance.start(2, BalanceConfig(speed_hint=(1, 3.0)))
    assert balance.is_calibrating and balance.shard_sizes(40) == (30, 10)
    balance, _, _ = balance.observe(40, [None, None])
    assert balance.shard_sizes(40) == (32, 8)


def test_the_first_decision_is_taken_even_if_little_is_won():
    balance, steps = train([CostModel(0.0, 0.1), CostModel(0.0, 0.1005)], 1000, 10)
    assert balance.division.shards == (501, 499)
    assert "step 10: (500, 500) would take 50.25 s, (501, 499) takes" in steps[-1].reason


def test_a_later_change_has_to_be_worth_it():
    def speed(step, rank):
        return 1.02 if rank == 0 and step > 10 else 1.0

    balance, steps = train(TWO, 400, 60, speed=speed)
    assert balance.division.shards == (300, 100)
    assert "(300, 100) stays" in steps[-1].reason and "not 0.01 less" in steps[-1].reason
    changed, _ = train(TWO, 400, 60, speed=speed, config=BalanceConfig(hysteresis=0.0))
    assert changed.division.shards == (299, 101)


def test_ranks_not_measured_count_as_the_median():
    costs = [CostModel(0.0, 0.1), CostModel(0.0, 0.4), CostModel(0.0, 0.2), CostModel(0.0, 9.0)]
    balance, steps = train(costs, 400, 10, measured=lambda step, rank: rank != 3)
    assert balance.division.costs[3] == median_cost(balance.division.costs[:3])
    assert balance.division.shards[3] == balance.division.shards[2]
    assert steps[-1].reason.endswith("; ranks [3], not measured, count as the median")


def test_without_any_reading_the_shares_stay():
    balance, division, reason = Balance.start(2, BalanceConfig(calibration_steps=1)).observe(8, [None, None])
    assert division.ratios == (0.5, 0.5) and division.shards == ()
    assert reason == "step 1: no rank was measured, so the shares stay"
    assert balance.shard_sizes(8) == (4, 4) and balance.throughput == (0.0, 0.0)


def test_a_batch_of_another_size_is_divided_by_the_shares():
    balance, _ = train(TWO, 40, 10)
    assert balance.shard_sizes(40) == (30, 10)
    assert balance.shard_sizes(9) == compute_shard_sizes(9, (0.75, 0.25)) == (7, 2)
    assert balance.shard_sizes(0) == (0, 0)


def test_a_division_is_for_the_largest_batch_since_the_last():
    """The last batch of an epoch is a short one, and a decision may come with it."""
    balance = Balance.start(2, BalanceConfig(calibration_steps=3, interval_steps=3))
    for costs, batches, shards in ((TWO, (40, 40, 7), (30, 10)), (TWO[::-1], (20, 8, 8), (5, 15))):
        for batch in batches:
            sizes = balance.shard_sizes(batch)
            balance, division, _ = balance.observe(batch, [Reading(n, c.time_s(n)) for n, c in zip(sizes, costs)])
        assert division.batch_size == sum(shards) and division.shards == shards


def test_throughput_is_in_samples_per_second():
    balance, _ = train(TWO, 40, 10)
    assert balance.throughput == pytest.approx((10.0, 10 / 3))
    assert balance.division.expected_step_s == pytest.approx(3.0)


def test_memory_caps_hold_in_and_after_calibration():
    config = BalanceConfig(caps=(24, None), granularity=4)
    balance, steps = train(TWO, 40, 12, config=config)
    assert all(step.shards[0] <= 24 for step in steps)
    assert balance.division.shards == (24, 16)
    tight, _ = train(TWO, 20, 10, config=BalanceConfig(caps=(None, 2), min_ratio=0.3))
    assert tight.division.shards == (18, 2)  # a cap goes before a floor


def test_the_floor_binds_shares_and_not_whole_samples():
    balance, _ = train([CostModel(0.0, 0.001), CostModel(0.0, 1.0)], 400, 10)
    assert balance.division.shards == (380, 20) and balance.division.ratios == (0.95, 0.05)
    assert balance.shard_sizes(5) == (5, 0)


def test_the_readings_kept_are_those_of_the_window():
    balance, _ = train(TWO, 40, 40, config=BalanceConfig(window_steps=7))
    assert [len(history.window) for history in balance.histories] == [7, 7]


def test_all_steps_of_calibration_count_however_short_the_interval():
    costs = [CostModel(5.0, 0.1), CostModel(0.0, 0.2)]
    balance, _ = train(costs, 100, 10, config=BalanceConfig(interval_steps=1, min_ratio=0.0))
    assert balance.division.shards == allocate(100, costs)


def test_speeds_may_come_as_an_array():
    assert rebalance(np.array([3.0, 1.0])) == (0.75, 0.25)


def test_hints_for_any_number_of_ranks():
    assert hint_ratios(3, (2, 3.0)) == pytest.approx((3 / 7, 3 / 7, 1 / 7))
    assert hint_ratios(1, (0, 2.0)) == (1.0,)
    assert relative_speeds(5, {4: 0.25}) == (1.0, 1.0, 1.0, 1.0, 0.25)
    assert hint_ratios(2, {0: 1e9}) == (0.95, 0.05)


def test_the_order_of_ranks_has_no_say_in_the_shares():
    speeds = [0.1, 0.2, 0.3, 0.7, 1e-9, 1e9, 3.3]
    assert rebalance(speeds) == rebalance(speeds[::-1])[::-1]


def test_calibration_leaves_one_of_an_odd_number_out_at_a_time():
    steps = [calibration_sizes(48, [1 / 3] * 3, step) for step in (1, 3, 5)]
    assert steps == [(18, 14, 16), (14, 16, 18), (16, 18, 14)]


@pytest.mark.parametrize("values", [None, 0.5, "ab"])
def test_what_is_no_sequence_of_values_is_refused(values):
    clamp, shard = (lambda given: clamp_total(given, 3)), (lambda given: compute_shard_sizes(10, given))
    for function in (rebalance, is_balanced, clamp, shard):
        with pytest.raises(ArgumentError, match=f"as a sequence with a value for each rank, got {values!r}"):
            function(values)
