"""Lesson 15: its division and its balancer beside minigrad's own, and the figures that its check reports."""

from fractions import Fraction

import numpy as np
import pytest

from minigrad.course.lesson15_unequal_ranks.checks import cases, over_best, train
from minigrad.course.lesson15_unequal_ranks.solution import choose_shards, divide_batch
from minigrad.data.order import largest_remainder
from minigrad.distributed import simulate
from minigrad.distributed.balance import balance_strategy, stateless
from minigrad.distributed.simulate import Cluster


def test_the_division_is_that_of_minigrad():
    drawn = np.random.default_rng(15)
    for _ in range(300):
        speeds = drawn.choice([1.0, 2.0, 3.0, 7.0], drawn.integers(1, 9)).tolist()
        batch = int(drawn.integers(0, 200))
        shares = [Fraction(speed) / sum(map(Fraction, speeds)) for speed in speeds]
        assert divide_batch(batch, speeds) == list(largest_remainder(batch, shares)), (batch, speeds)


@pytest.mark.parametrize("case", cases()[:4], ids=lambda case: case.name)
def test_equal_shards_are_far_from_the_best_and_other_balancers_near(case):
    def equal(state, batch_size, readings):
        return None, divide_batch(batch_size, [1.0] * len(readings)), "equal"

    by_speed = stateless(lambda batch, speeds: divide_batch(batch, speeds))
    assert over_best(equal, case) > 1.2
    assert over_best(by_speed, case) <= 1.05  # the median of five readings, another right answer


def test_sizes_may_be_an_array():
    def in_an_array(state, batch_size, readings):
        state, sizes, reason = choose_shards(state, batch_size, readings)
        return state, np.array(sizes), reason

    assert over_best(in_an_array, cases()[0]) == over_best(choose_shards, cases()[0])


def test_what_minigrad_decides_by_default_passes_too():
    assert over_best(balance_strategy(), cases()[0]) <= 1.05


def test_times_of_the_check_are_those_of_a_simulation():
    trace = simulate.run(train, Cluster.of_speeds([3, 2, 1]), choose_shards, 6, 3)
    assert trace.step_times_s() == pytest.approx([0.02] * 3 + [0.01] * 3)
    assert trace.idle_fraction(0, 3) == pytest.approx(1 - (1 / 3 + 1 / 2 + 1) / 3)
    assert trace.idle_fraction(3) == pytest.approx(0.0)
