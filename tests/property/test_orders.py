"""Index plans for any length, number of ranks, mode and shares."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.data import ArrayDataset, DistributedSampler, random_split
from minigrad.data.order import largest_remainder, permutation, shard

lengths = st.integers(0, 200)
seeds = st.integers(0, 2**64 - 1)
worlds = st.integers(1, 9)


@st.composite
def shares(draw):
    """Fractions of sum 1 to rounding; some are zero, some are equal, some are tiny."""
    weights = draw(st.lists(st.sampled_from([0.0, 1.0, 1.0, 2.0, 1e-9]) | st.floats(0.0, 10.0), min_size=1, max_size=9))
    total = sum(weights)
    return [weight / total for weight in weights] if total > 1e-300 else [1.0] + [0.0] * (len(weights) - 1)


def shards(length, world_size, mode, shares=None):
    return [shard(length, rank, world_size, mode, shares).tolist() for rank in range(world_size)]


@given(length=lengths, seed=seeds, epoch=seeds)
def test_a_permutation_holds_each_index_once(length, seed, epoch):
    order = permutation(length, seed, epoch)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(length))
    assert order.tolist() == permutation(length, seed, epoch).tolist()


@given(length=st.integers(20, 200), seed=seeds, epoch=st.integers(0, 2**64 - 2))
def test_epochs_and_seeds_differ(length, seed, epoch):
    order = permutation(length, seed, epoch).tolist()
    assert order != permutation(length, seed, epoch + 1).tolist()
    assert order != permutation(length, seed ^ 1, epoch).tolist()


@given(length=lengths, world_size=worlds)
def test_pad_covers_all_with_equal_lengths(length, world_size):
    parts = shards(length, world_size, "pad")
    assert {len(part) for part in parts} == {-(-length // world_size)}
    assert set(sum(parts, [])) == set(range(length))


@given(length=lengths, world_size=worlds)
def test_drop_repeats_nothing_and_has_equal_lengths(length, world_size):
    parts = shards(length, world_size, "drop")
    assert {len(part) for part in parts} == {length // world_size}
    taken = sum(parts, [])
    assert sorted(taken) == list(range(length - length % world_size))


@given(length=lengths, world_size=worlds)
def test_exact_takes_each_once(length, world_size):
    parts = shards(length, world_size, "exact")
    assert sorted(sum(parts, [])) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(length=lengths, shares=shares())
def test_exact_with_shares_takes_each_once(length, shares):
    parts = shards(length, len(shares), "exact", shares)
    assert sorted(sum(parts, [])) == list(range(length))
    assert [len(part) for part in parts] == largest_remainder(length, shares)


@given(length=lengths, world_size=worlds)
def test_equal_shares_are_no_shares(length, world_size):
    equal = [Fraction(1, world_size)] * world_size
    assert shards(length, world_size, "exact", equal) == shards(length, world_size, "exact")


@given(length=st.integers(1, 200), shares=shares())
def test_every_beginning_of_the_order_is_shared_in_proportion(length, shares):
    for part in shards(length, len(shares), "exact", shares):
        expected = len(part) / length * np.arange(length + 1)
        taken = np.searchsorted(part, np.arange(length + 1))
        assert np.abs(taken - expected).max() <= 1 + len(shares) / 2


@given(length=lengths, shares=shares(), seed=seeds, epoch=st.integers(0, 2**64 - 1))
def test_ranks_of_one_epoch_are_disjoint(length, shares, seed, epoch):
    samplers = [
        DistributedSampler(length, rank=rank, world_size=len(shares), seed=seed, mode="exact", shares=shares)
        for rank in range(len(shares))
    ]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    parts = [list(sampler) for sampler in samplers]
    assert sorted(sum(parts, [])) == list(range(length))
    assert [len(sampler) for sampler in samplers] == [len(part) for part in parts]


@given(length=lengths, world_size=worlds, seed=seeds, batch_size=st.integers(1, 8))
def test_batches_of_all_ranks_make_global_batches(length, world_size, seed, batch_size):
    """For mode "exact": stretch k of the global order is what the k-th batches of all ranks hold together."""
    order = permutation(length, seed).tolist()
    ranks = [
        list(DistributedSampler(length, rank=rank, world_size=world_size, seed=seed, mode="exact"))
        for rank in range(world_size)
    ]
    for start in range(0, length, batch_size * world_size):
        batches = [part[start // world_size : start // world_size + batch_size] for part in ranks]
        assert sorted(sum(batches, [])) == sorted(order[start : start + batch_size * world_size])


@given(total=st.integers(0, 1000) | st.integers(0, 2**63), shares=shares())
def test_largest_remainder_is_exact_close_and_monotone(total, shares):
    counts = largest_remainder(total, shares)
    whole = sum(map(Fraction, shares))
    exact = [total * Fraction(share) / whole for share in shares]
    assert sum(counts) == total
    assert all(abs(count - ideal) < 1 for count, ideal in zip(counts, exact))
    assert [count for _, count in sorted(zip(shares, counts))] == sorted(counts)


@given(total=st.integers(0, 1000), shares=shares(), data=st.data())
def test_largest_remainder_follows_the_shares_when_ranks_change_places(total, shares, data):
    order = data.draw(st.permutations(range(len(shares))))
    counts = largest_remainder(total, shares)
    moved = largest_remainder(total, [shares[i] for i in order])
    assert sorted(zip((shares[i] for i in order), moved)) == sorted(zip(shares, counts))


@given(length=lengths, fractions=shares(), seed=seeds)
def test_random_split_is_a_partition(length, fractions, seed):
    parts = random_split(ArrayDataset(np.arange(length)), fractions, seed=seed)
    assert sorted(i for part in parts for i in part.indices) == list(range(length))
    floors = [int(length * fraction) for fraction in fractions]
    more = [len(part) - floor for part, floor in zip(parts, floors)]
    assert max(more) - min(more) <= 1 and more == sorted(more, reverse=True)


@pytest.mark.parametrize("total", [0, 1, 5, 10])
def test_shares_that_only_nearly_sum_to_one(total):
    assert sum(largest_remainder(total, [0.1] * 10)) == total
    assert sum(largest_remainder(total, [0.3, 0.7 - 1e-7])) == total
