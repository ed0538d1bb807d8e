"""Shares, shards and allocation for any batch, ranks, shares, costs, caps and granularity."""

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed.balance import (
    CostModel,
    allocate,
    calibration_sizes,
    clamp_total,
    compute_shard_sizes,
    default_min_ratio,
    is_balanced,
    rebalance,
    step_s,
)
from minigrad.errors import ArgumentError
from minigrad.testing import strategies

batches = st.integers(0, 300)
ratios = strategies.ratios(9)
speeds = strategies.throughputs(9)


@given(batch=batches, ratios=ratios)
def test_shards_are_the_batch_each_within_one_of_exact(batch, ratios):
    sizes = compute_shard_sizes(batch, ratios)
    total = sum(map(Fraction, ratios))
    assert sum(sizes) == batch and min(sizes) >= 0
    assert all(abs(size - batch * Fraction(ratio) / total) < 1 for size, ratio in zip(sizes, ratios))


@given(batch=batches, ratios=ratios)
def test_a_larger_share_never_gets_less_and_equal_ones_differ_by_one(batch, ratios):
    pairs = sorted(zip(ratios, compute_shard_sizes(batch, ratios)))
    for (low, size), (high, other) in zip(pairs, pairs[1:]):
        assert size <= other if low < high else abs(size - other) <= 1


@given(batch=batches, weights=st.lists(st.integers(0, 6), min_size=1, max_size=9).filter(any))
def test_equal_remainders_go_to_the_larger_share_then_to_the_lower_rank(batch, weights):
    ratios = [Fraction(weight, sum(weights)) for weight in weights]
    exact = [batch * ratio for ratio in ratios]
    sizes = compute_shard_sizes(batch, ratios)
    raised = [rank for rank, size in enumerate(sizes) if size > math.floor(exact[rank])]
    order = sorted(range(len(ratios)), key=lambda i: (math.floor(exact[i]) - exact[i], -ratios[i], i))
    assert sorted(raised) == sorted(order[: len(raised)])


def test_who_gets_what_is_left_by_hand():
    assert compute_shard_sizes(2, [0.25, 0.75]) == (0, 2)
    assert compute_shard_sizes(3, [0.5, 0.5]) == (2, 1)
    assert compute_shard_sizes(10, [0.5, 0.5], granularity=4) == (6, 4)
    assert compute_shard_sizes(10, [0.5, 0.3, 0.2], caps=[2, 3, None]) == (2, 3, 5)


@given(batch=batches, ratios=ratios, data=st.data())
def test_permuted_ranks_get_permuted_shards_up_to_equal_shares(batch, ratios, data):
    moved = data.draw(st.permutations(ratios))
    assert sorted(zip(moved, compute_shard_sizes(batch, moved))) == sorted(
        zip(ratios, compute_shard_sizes(batch, ratios))
    )


@given(batch=batches, ratios=ratios, data=st.data())
def test_caps_and_granularity_hold_or_the_error_says_so(batch, ratios, data):
    granule = data.draw(st.integers(1, 8))
    caps = data.draw(st.lists(st.none() | st.integers(0, 200), min_size=len(ratios), max_size=len(ratios)))
    try:
        sizes = compute_shard_sizes(batch, ratios, caps=caps, granularity=granule)
    except ArgumentError as error:
        assert "caps that hold" in str(error)
        assert sum(math.inf if cap is None else cap // granule * granule for cap in caps) < batch + granule
        return
    assert sum(sizes) == batch
    assert all(cap is None or size <= cap for size, cap in zip(sizes, caps))
    assert sum(size % granule != 0 for size in sizes) <= 1


# -------------------------------------------------------------------------------------------------------- the floor


@given(speeds=speeds, floor=st.none() | st.floats(0.0, 1.0))
def test_the_floor_holds_or_the_error_says_why_it_cannot(speeds, floor):
    if floor is not None and floor * len(speeds) > 1.0:
        with pytest.raises(ArgumentError, match=f"expected min_ratio <= 1/{len(speeds)}"):
            rebalance(speeds, floor)
        return
    shares = rebalance(speeds, floor)
    least = default_min_ratio(len(speeds)) if floor is None else floor
    assert abs(math.fsum(shares) - 1.0) <= 1e-12
    assert min(shares) >= least * (1 - 1e-15)
    above = [(share, speed) for share, speed in zip(shares, speeds) if share > least * (1 + 1e-12)]
    for (share, speed), (other, fast) in zip(above, above[1:]):  # the others keep their proportions
        assert math.isclose(share * fast, other * speed, rel_tol=1e-9)


def test_the_floor_by_default():
    assert [default_min_ratio(ranks) for ranks in (1, 10, 20, 100)] == [0.05, 0.05, 0.025, 0.005]


@given(speeds=speeds, data=st.data())
def test_permuted_ranks_get_permuted_shares(speeds, data):
    order = data.draw(st.permutations(range(len(speeds))))
    shares = rebalance(speeds)
    assert rebalance([speeds[i] for i in order]) == tuple(shares[i] for i in order)


@given(speeds=speeds)
def test_shares_are_monotone_in_speed(speeds):
    pairs = sorted(zip(speeds, rebalance(speeds)))
    assert all(share <= other for (_, share), (_, other) in zip(pairs, pairs[1:]))


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_balanced_means_equal_shards(sizes):
    assert is_balanced(sizes) == (max(sizes) == min(sizes))


# ------------------------------------------------------------------------------------------------------- allocation


def brute_force_s(batch, costs, caps, granule, fewest):
    """The time of the best of all divisions: multiples of the granule, but for one rank's remainder."""
    units, rest = divmod(batch, granule)
    best = math.inf
    for cut in itertools.product(range(units + 1), repeat=len(costs) - 1):
        counts = [*cut, units - sum(cut)]
        if any(count < low for count, low in zip(counts, fewest)):
            continue
        for last in range(len(costs)) if rest else [0]:
            sizes = [count * granule + (rest if rank == last else 0) for rank, count in enumerate(counts)]
            if all(cap is None or size <= cap for size, cap in zip(sizes, caps)):
                best = min(best, step_s(sizes, costs))
    return best


@st.composite
def problems(draw):
    ranks = draw(st.integers(1, 4))
    granule = draw(st.integers(1, 5))
    batch = draw(st.integers(0, 40 if ranks < 4 else 20))
    models = st.builds(CostModel, st.integers(0, 20).map(float), st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 3.7]))
    costs = draw(st.lists(models | strategies.cost_models(), min_size=ranks, max_size=ranks))
    caps = draw(st.lists(st.none() | st.integers(0, 40), min_size=ranks, max_size=ranks))
    at_least = draw(st.lists(st.sampled_from([0, 0, 1, 5]), min_size=ranks, max_size=ranks))
    return batch, costs, caps, granule, at_least


@given(problem=problems())
def test_allocation_is_as_fast_as_the_best_of_all(problem):
    batch, costs, caps, granule, at_least = problem
    best_s = brute_force_s(batch, costs, caps, granule, [low // granule for low in at_least])
    if best_s == math.inf:
        with pytest.raises(ArgumentError, match="allocate: expected (caps that hold|minima that fit)"):
            allocate(batch, costs, caps=caps, at_least=at_least, granularity=granule)
        return
    sizes = allocate(batch, costs, caps=caps, at_least=at_least, granularity=granule)
    assert sum(sizes) == batch
    assert all(cap is None or size <= cap for size, cap in zip(sizes, caps))
    assert all(size >= low // granule * granule for size, low in zip(sizes, at_least))
    assert sum(size % granule != 0 for size in sizes) <= 1
    assert step_s(sizes, costs) == best_s


def last_end_s(batch, costs):
    """When the last sample of a batch ends, if each rank worked on: any division has one that ends no earlier."""
    return sorted(cost.time_s(size) for cost in costs for size in range(1, batch + 1))[batch - 1]


def test_the_last_end_is_the_time_of_the_best_of_all():
    costs = [CostModel(3.0, 0.4), CostModel(0.0, 1.1), CostModel(7.5, 0.0), CostModel(1.0, 0.9)]
    for batch in (1, 2, 5, 13, 20):
        assert last_end_s(batch, costs) == brute_force_s(batch, costs, [None] * 4, 1, [0] * 4)


@given(costs=st.lists(strategies.cost_models(), min_size=4, max_size=9), batch=st.integers(30, 400))
def test_allocation_of_hundreds_of_samples_is_the_best_of_all(costs, batch):
    assert step_s(allocate(batch, costs), costs) == last_end_s(batch, costs)


@given(batch=st.integers(0, 10_000), costs=st.lists(strategies.cost_models(), min_size=1, max_size=9), data=st.data())
def test_allocation_follows_permuted_ranks(batch, costs, data):
    order = data.draw(st.permutations(range(len(costs))))
    sizes, moved = allocate(batch, costs), allocate(batch, [costs[i] for i in order])
    named = sorted((cost.fixed_s, cost.per_sample_s, size) for cost, size in zip(costs, sizes))
    assert named == sorted((costs[i].fixed_s, costs[i].per_sample_s, size) for i, size in zip(order, moved))


def test_ends_that_coincide_go_to_fewer_samples_then_to_the_cheaper_one_then_to_the_lower_rank():
    plain, late = CostModel(0.0, 1.0), CostModel(2.0, 1.0)
    assert allocate(3, [plain, late]) == (2, 1) and allocate(3, [late, plain]) == (1, 2)
    assert allocate(1, [CostModel(1.0, 2.0), late]) == (0, 1)
    assert allocate(3, [plain, plain]) == (2, 1)


@given(batch=st.integers(0, 10_000), costs=st.lists(strategies.cost_models(), min_size=1, max_size=9))
def test_no_sample_would_end_earlier_elsewhere(batch, costs):
    """What makes large allocations optimal too, which nobody can try one by one."""
    sizes = allocate(batch, costs)
    slowest = step_s(sizes, costs)
    earliest = min(cost.time_s(size + 1) for cost, size in zip(costs, sizes))
    assert sum(sizes) == batch and (slowest <= earliest or batch == 0)


# ------------------------------------------------------------------------------------------- calibration and cadence


@given(batch=batches, ratios=ratios, step=st.integers(0, 20))
def test_calibration_divides_the_whole_batch(batch, ratios, step):
    sizes = calibration_sizes(batch, ratios, step)
    assert sum(sizes) == batch and min(sizes) >= 0
    assert step % 2 or sizes == compute_shard_sizes(batch, ratios)


@given(ranks=st.integers(2, 9), each=st.integers(2, 50))
def test_calibration_shows_every_rank_more_than_one_size(ranks, each):
    seen = [calibration_sizes(ranks * each, [1 / ranks] * ranks, step) for step in range(10)]
    assert all(len(set(column)) >= 2 for column in zip(*seen))


@given(counts=st.lists(st.integers(0, 60), min_size=1, max_size=9), limit=st.integers(0, 200))
def test_clamped_counts_fit_and_keep_their_order(counts, limit):
    clamped = clamp_total(counts, limit)
    assert sum(clamped) == min(limit, sum(counts))
    assert all(0 <= now <= before for now, before in zip(clamped, counts))
    pairs = sorted(zip(counts, clamped))
    assert all(now <= later for (a, now), (b, later) in zip(pairs, pairs[1:]) if a < b)
