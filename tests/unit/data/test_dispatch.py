"""Dispatch, pure: each sample of an epoch once, in every mode; limits on running ahead; the smallest data sets."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.data import ChunkPool, Dispatch
from minigrad.data.dispatch import DISPATCHES, Portion, counts_of, overshoot_left, throttled
from minigrad.data.intervals import size_of
from minigrad.errors import ArgumentError, StateDictError


def places(batches):
    """(epoch, place) of each sample of a round."""
    return [
        (portion.epoch, place)
        for mine in batches.of_ranks
        for portion in mine
        for start, stop in portion.places
        for place in range(start, stop)
    ]


def members(intervals):
    return [place for start, stop in intervals for place in range(start, stop)]


def sizes(batches):
    return [[size_of(portion.places) for portion in mine] for mine in batches.of_ranks]


@st.composite
def runs(draw):
    """A dispatch of several epochs, and the counts of its rounds."""
    world, epochs = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    pool = ChunkPool(draw(st.integers(0, 120)), draw(st.integers(1, 20)), shuffle=False)
    weights = draw(st.none() | st.lists(st.integers(0, 4), min_size=world, max_size=world).filter(any))
    shares = None if weights is None else tuple(weight / sum(weights) for weight in weights)
    options = {
        "mode": draw(st.sampled_from(DISPATCHES)),
        "max_overshoot": draw(st.sampled_from([0, 0, 1, 40])),
        "max_batch_diff": draw(st.sampled_from([None, 0, 2])),
    }
    counts = st.lists(st.integers(1, 6), min_size=world, max_size=world)
    rounds = draw(st.lists(counts, min_size=1, max_size=4))
    return Dispatch(pool, world, shares=shares, epochs=epochs, **options), rounds, epochs


@given(runs())
def test_every_dispatch_gives_each_sample_once_an_epoch(run):
    dispatch, rounds, epochs = run
    seen, number, fresh = [], 0, dispatch
    for epoch in range(epochs):
        while dispatch.remaining:
            given_counts = rounds[number % len(rounds)] if number % 2 else None
            counts = dispatch.counts if given_counts is None else given_counts
            dispatch, batches = dispatch.round(given_counts)
            again, same = fresh.loaded(json.loads(json.dumps(dispatch.state_dict()))), batches
            assert again == dispatch and same.reason.startswith(f"epoch {epoch}: counts ")
            assert all(len(mine) <= count for mine, count in zip(batches.of_ranks, counts))
            ahead = [sum(portion.epoch > epoch for portion in mine) for mine in batches.of_ranks]
            assert max(ahead) <= dispatch.max_overshoot
            seen += places(batches)
            number += 1
        dispatch = dispatch.next_epoch()
    assert sorted(seen) == [(epoch, place) for epoch in range(epochs) for place in range(fresh.pool.length)]


@pytest.mark.parametrize("mode", DISPATCHES)
@pytest.mark.parametrize("samples, each", [(10, [5]), (128, [32, 32])])
def test_a_dataset_smaller_than_a_batch_of_each_rank_trains_them_alike(mode, samples, each):
    dispatch, taken = Dispatch(ChunkPool(samples, 32), 2, mode), []
    while dispatch.remaining:
        dispatch, batches = dispatch.round()
        taken.append(sizes(batches))
    assert taken == [[[size], [size]] for size in each]


def test_static_parts_are_equal_and_proportional_ones_follow_speeds_or_shares():
    def parts(mode, shares=None):
        dispatch, _ = Dispatch(ChunkPool(100, 5), 2, mode, shares).round((3, 1))
        return [15 * (rank == 0) + 5 * (rank == 1) + size_of(part) for rank, part in enumerate(dispatch.parts)]

    assert parts("static") == [50, 50] and parts("proportional") == [75, 25]
    assert parts("static", (0.6, 0.4)) == parts("proportional", (0.6, 0.4)) == [60, 40]


def test_shares_say_the_counts_of_a_progressive_dispatch():
    dispatch = Dispatch(ChunkPool(40, 5), 3, shares=(0.5, 0.25, 0.25))
    assert dispatch.counts == (2, 1, 1) and sizes(dispatch.round()[1]) == [[5, 5], [5], [5]]
    assert counts_of((0.5, 0.3, 0.2)) == (3, 2, 1)


def test_a_rank_runs_past_its_plan_as_far_as_it_may():
    assert overshoot_left(10, 10, 0)[0] == 0 and overshoot_left(10, 4, 0)[0] == 6
    assert overshoot_left(10, 10, 40)[0] == 40 and overshoot_left(10, 50, 40)[1].startswith("waits")

    def last_round(limit, epochs=2):
        dispatch, _ = Dispatch(ChunkPool(60, 5), 2, "static", max_overshoot=limit, epochs=epochs).round((6, 1))
        for _ in range(5):
            dispatch, batches = dispatch.round((6, 1))
        return dispatch.over, batches.reason

    assert last_round(0)[0] == (0, 0) and last_round(2)[0] == (2, 0)
    assert last_round(40)[0] == (6, 0) and last_round(40, epochs=1)[0] == (0, 0)


def test_what_was_run_of_the_next_epoch_is_left_out_of_it():
    dispatch = Dispatch(ChunkPool(10, 5, shuffle=False), 2, max_overshoot=1, epochs=2)
    dispatch, batches = dispatch.round((4, 1))
    assert [[portion.epoch for portion in mine] for mine in batches.of_ranks] == [[0, 0, 1], [0]]
    assert batches.reason == "epoch 0: counts (4, 1), 0 samples left; [1, 0] batches of epoch 1"
    assert dispatch.remaining == 0 and dispatch.next_epoch().pool.left == ((5, 10),)


def test_a_leader_waits_for_the_slowest():
    assert throttled((6, 4, 2), 0)[0] == (2, 2, 2) and throttled((6, 4, 2), None) == ((6, 4, 2), "")
    assert throttled((6, 4, 0), 1) == ((5, 4, 0), "rank 0 waits after 5 batches, 1 more than the slowest")
    batches = Dispatch(ChunkPool(100, 5), 3, max_batch_diff=1).round((6, 4, 2))[1]
    assert list(map(len, batches.of_ranks)) == [3, 3, 2] and "ranks 0, 1 wait after 3 batches" in batches.reason


def test_ranks_do_not_run_ahead_without_an_end():
    with pytest.raises(ArgumentError, match="expected epochs with max_overshoot=3"):
        Dispatch(ChunkPool(10, 5), 2, max_overshoot=3)


@given(runs(), st.data())
def test_what_one_rank_takes_and_gives_back_is_dealt_once_also_among_fewer_ranks(run, data):
    dispatch, *_ = run
    world, counts = dispatch.world_size, (1,) * dispatch.world_size
    held = [[] for _ in range(world)]
    for rank in data.draw(st.lists(st.integers(0, world - 1), max_size=12)):
        dispatch, portions, reason = dispatch.take(rank, counts, data.draw(st.integers(0, 3)))
        held[rank] += portions
        assert reason.startswith("epoch 0: ")
        assert sum(portion.epoch == 1 for portion in held[rank]) == dispatch.over[rank] <= dispatch.max_overshoot
    kept = [mine[:1] for mine in held]
    dispatch = dispatch.give_back([mine[1:] for mine in held])
    assert dispatch.over == tuple(sum(portion.epoch == 1 for portion in mine) for mine in kept)
    with pytest.raises(ArgumentError, match="give"):
        dispatch.give_back([[Portion(0, ((0, 1),))] * 2, *([()] * (world - 1))])
    ranks = sorted(data.draw(st.sets(st.integers(0, world - 1), min_size=1)))
    dispatch = dispatch.among(ranks)
    found = [(portion.epoch, place) for mine in kept for portion in mine for place in members(portion.places)]
    for _ in range(dispatch.epochs or 1):
        while dispatch.remaining:
            dispatch, batches = dispatch.round([1] * len(ranks))
            found += places(batches)
        dispatch = dispatch.next_epoch()
    length, epochs = dispatch.pool.length, dispatch.epochs or 1
    assert sorted(found) == [(epoch, place) for epoch in range(epochs) for place in range(length)]


@given(runs(), st.integers(1, 5), st.integers(0, 6))
def test_what_is_left_is_dealt_once_among_other_ranks(run, world, rounds):
    before, counts, epochs = run
    left, found = before, []
    for number in range(rounds):
        if left.remaining:
            left, batches = left.round(counts[number % len(counts)])
            found += places(batches)
    shares = None if before.shares is None else (1 / world,) * world
    others = Dispatch(before.pool, world, before.mode, shares, before.max_overshoot, before.max_batch_diff, epochs)
    after = others.resumed(json.loads(json.dumps(left.state_dict())))
    assert (after.world_size, after.remaining, after.over) == (world, left.remaining, (0,) * world) or after == left
    for _ in range(epochs):
        while after.remaining:
            after, batches = after.round()
            found += places(batches)
        after = after.next_epoch()
    assert sorted(found) == [(epoch, place) for epoch in range(epochs) for place in range(before.pool.length)]


def test_a_state_of_another_pool_or_of_none_is_refused_whatever_the_ranks():
    two, three = (Dispatch(ChunkPool(10, 5), world, epochs=1) for world in (2, 3))
    for state, words in (
        ({**two.state_dict(), "max_overshoot": 2}, "Dispatch: expected a state with max_overshoot 0, got 2"),
        (Dispatch(ChunkPool(11, 5), 2, epochs=1).state_dict(), "ChunkPool: expected a state with length 10, got 11"),
        ({**two.state_dict(), "world_size": 0}, "Dispatch: expected a usable state"),
        ({}, "Dispatch: expected a state with the keys"),
    ):
        with pytest.raises(StateDictError, match=words):
            three.resumed(state)


def test_there_may_be_more_epochs_than_there_were_to_be():
    few, more = (Dispatch(ChunkPool(10, 5), 2, epochs=epochs, max_overshoot=1) for epochs in (2, 3))
    assert more.loaded(few.state_dict()) == more
    with pytest.raises(StateDictError, match="Dispatch: expected a state with epochs 2, got 3"):
        few.loaded(more.state_dict())  # of which some may have been run already


def test_one_rank_takes_its_part_and_no_more():
    static = Dispatch(ChunkPool(20, 2, shuffle=False), 2, "static", epochs=2)
    static, first, _ = static.take(1, (1, 1), most=2)
    static, rest, _ = static.take(1, (1, 1), most=9)
    assert [portion.places for portion in first] == [((10, 12),), ((12, 14),)]
    assert sum(size_of(portion.places) for portion in rest) == 6 and static.take(1, (1, 1), most=9)[1] == ()
    assert static.among([1]).take(0, (1,), most=1)[1][0].places == ((0, 2),)
