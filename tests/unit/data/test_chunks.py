"""ChunkPool: whole batches, each sample once, all ranks done at one time."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minigrad.data import ChunkPool
from minigrad.data.intervals import cut, size_of, split, united, without
from minigrad.data.order import permutation

SOME_INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair))))
COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


def members(intervals):
    return [place for start, stop in intervals for place in range(start, stop)]


def fetched(pool, counts, speeds=None):
    """The chunks of each rank, which come when they are done at their speeds, the lower rank first."""
    chunks = [[] for _ in counts]
    times = {rank: Fraction(0) for rank in range(len(counts))}
    while times:
        rank = min(times, key=lambda rank: (times[rank], rank))
        pool, chunk = pool.take(rank, counts)
        if chunk:
            chunks[rank].append(chunk)
            times[rank] += Fraction(size_of(chunk), (speeds or counts)[rank])
        else:
            del times[rank]
    return pool, chunks


@given(SOME_INTERVALS, SOME_INTERVALS, st.integers(0, 40))
def test_intervals_are_sets_of_places(some, others, count):
    assert members(united(some)) == sorted({*members(some)})
    assert members(without(some, others)) == sorted({*members(some)} - {*members(others)})
    first, rest = split(united(some), count)
    assert members(first) + members(rest) == members(united(some))
    assert len(members(first)) == min(count, size_of(united(some)))
    assert [size_of(part) for part in cut(((0, 50),), [count, 3])] == [count, 3]


@given(st.integers(0, 300), st.integers(1, 40), COUNTS)
def test_ranks_that_come_for_work_are_done_at_one_time(length, batch_size, counts):
    """Each sample once; all batches whole but for one of each rank; each rank has what its speed is worth."""
    pool, chunks = fetched(ChunkPool(length, batch_size), counts)
    assert pool.remaining == 0
    assert sorted(place for rank in chunks for chunk in rank for place in members(chunk)) == list(range(length))
    for count, rank in zip(counts, chunks):
        sizes = [size_of(batch) for chunk in rank for batch in pool.batches(chunk)]
        assert sum(size != batch_size for size in sizes) <= 1 and (set(sizes[:-1]) <= {batch_size})
        assert abs(sum(sizes) - Fraction(length * count, sum(counts))) <= len(counts)


@given(st.integers(0, 300), st.integers(1, 40), st.lists(COUNTS.map(lambda c: (c * 4)[:4]), min_size=1, max_size=5))
def test_ranks_that_meet_take_whole_batches_until_the_end_is_divided(length, batch_size, rounds):
    pool, seen, number = ChunkPool(length, batch_size), [], 0
    while pool.remaining:
        before, counts = pool.remaining, rounds[number % len(rounds)]
        pool, parts = pool.deal(counts)
        sizes = [size_of(part) for part in parts]
        if pool.remaining:
            assert sizes == [count * batch_size for count in counts]
        else:
            assert all(abs(size - Fraction(before * n, sum(counts))) < 1 for size, n in zip(sizes, counts))
        seen += [place for part in parts for place in members(part)]
        number += 1
    assert seen == list(range(length))


@settings(max_examples=50)
@given(st.integers(1, 200), st.integers(1, 20), COUNTS, st.data())
def test_what_is_given_back_is_dealt_again(length, batch_size, counts, data):
    pool, kept = ChunkPool(length, batch_size), []
    for _ in range(20):
        pool, chunk = pool.take(data.draw(st.integers(0, len(counts) - 1)), counts)
        if data.draw(st.booleans()):
            pool = pool.give_back(chunk)
        else:
            kept.append(chunk)
    pool = ChunkPool(length, batch_size).loaded(pool.state_dict())
    pool, rest = fetched(pool, counts)
    every = [place for chunk in [*kept, *(chunk for rank in rest for chunk in rank)] for place in members(chunk)]
    assert sorted(every) == list(range(length)) and not pool.remaining


def test_a_rank_that_comes_again_does_not_get_what_is_left_for_a_late_one():
    pool, first = ChunkPool(10, 32).take(0, (1, 1))
    pool, again = pool.take(0, (1, 1))
    assert (first, again, pool.remaining) == (((0, 5),), (), 5)


def test_chunks_grow_smaller_and_follow_speeds():
    """Batches of one sample: rank 0 of 2 : 1 takes 2/3 of 90 at once, the other what its speed leaves it, in parts."""
    _, chunks = fetched(ChunkPool(90, 1), (2, 1))
    assert [[size_of(chunk) for chunk in rank] for rank in chunks] == [[60], [10, 7, 5, 3, 2, 1, 1, 1]]


def test_speeds_that_were_misjudged_are_made_up_for_by_those_of_the_next_counts():
    pool, parts = ChunkPool(100, 5).deal((9, 1))
    assert [size_of(part) for part in parts] == [45, 5]
    assert [size_of(part) for part in pool.deal((9, 9))[1]] == [25, 25]


def test_an_epoch_has_the_order_of_its_seed_and_number():
    pool = ChunkPool(20, 4, seed=3)
    np.testing.assert_array_equal(pool.next_epoch().order(), permutation(20, 3, 1))
    assert pool.order().tolist() != ChunkPool(20, 4, seed=4).order().tolist()
    assert ChunkPool(3, 4, shuffle=False, epoch=7).order().tolist() == [0, 1, 2]


@pytest.mark.parametrize("shares, sizes", [((0.5, 0.5), [5, 5]), ((0.7, 0.2, 0.1), [7, 2, 1])])
def test_contiguous_parts(shares, sizes):
    pool, parts = ChunkPool(10, 4).divide(shares)
    assert [size_of(part) for part in parts] == sizes and members(parts[0]) == list(range(sizes[0]))
    assert pool.remaining == 0
