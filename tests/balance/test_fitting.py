"""Ranks that are fitted together get what each would get alone."""

import numpy as np
import pytest

from minigrad.distributed import Reading
from minigrad.distributed.balance.cost import History, Point, fit_cost, settle


def histories(seed, ranks, outliers=True):
    """Windows and earlier points of many lengths, some ranks that slow down, some without a reading."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(ranks):
        fixed_s, per_sample_s = rng.choice([0.0, 0.01]), rng.uniform(1e-4, 1e-3)
        sizes = rng.integers(1, 40, size=rng.choice([0, 1, 2, 7, 10, 30]))
        seconds = (fixed_s + per_sample_s * sizes) * np.exp(rng.choice([0.0, 0.05]) * rng.standard_normal(len(sizes)))
        if rng.random() < 0.4:
            seconds[len(sizes) // 2 :] *= 2.0
        if outliers and len(sizes) > 5:
            seconds[rng.integers(len(sizes))] *= 10.0
        earlier = [Point(n, fixed_s + per_sample_s * n, 1e4) for n in range(1, 1 + int(rng.integers(0, 4)))]
        made.append(History(tuple(earlier), tuple(map(Reading, sizes.tolist(), seconds.tolist()))))
    return made


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_gets_the_same_bits_in_whatever_company(seed):
    many = histories(seed, 60)
    together = settle(many)
    assert together == [settle([history])[0] for history in many]
    assert together[::-1] == settle(many[::-1])


def test_the_number_of_ranks_that_are_alike_makes_no_difference():
    """More than are fitted at once."""
    some = [history for history in histories(0, 100) if len(history.window) == 10][:5]
    assert settle(some * 1000) == settle(some) * 1000


def test_who_was_never_read_has_no_model_and_who_was_once_keeps_it():
    point = Point(4.0, 2.0, 1.0)
    (_, none), (kept, model) = settle([History(), History((point,))])
    assert none is None and kept == History((point,)) and model.time_s(4) == pytest.approx(2.0)
    assert settle([]) == []
    assert fit_cost([], [point]) == model


@pytest.mark.parametrize("fixed_s, per_sample_s", [(0.0, 0.5), (3.0, 0.25), (2.0, 0.0)])
def test_exact_readings_at_two_sizes_give_both_parts_exactly_whatever_one_outlier_says(fixed_s, per_sample_s):
    sizes = [8, 9, 10] * 4
    readings = [Reading(n, fixed_s + per_sample_s * n) for n in sizes] + [Reading(9, 50.0)]
    model = fit_cost(readings)
    assert (model.fixed_s, model.per_sample_s) == pytest.approx((fixed_s, per_sample_s), abs=1e-6)
