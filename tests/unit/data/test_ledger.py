"""SampleLedger: what was combined is written, what was not is missing; an audit names who took what."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.data import (
    ArrayDataset,
    BatchSampler,
    ChunkPool,
    DataLoader,
    Dispatch,
    DistributedSampler,
    RandomSampler,
    SampleLedger,
)
from minigrad.data.dispatch import DISPATCHES
from minigrad.data.ledger import joined
from minigrad.distributed import Balancer, Rounds, run
from minigrad.errors import ArgumentError, StateDictError


def merged(ledgers):
    """Each with the entries of all."""
    told = [ledger.told() for ledger in ledgers]
    for ledger in ledgers:
        ledger.merge(told)
    return ledgers[0]


def ledgers(length, world_size):
    return [SampleLedger(length, rank=rank, world_size=world_size) for rank in range(world_size)]


def epochs_of(samplers, length, batch_size, accumulate=1, epochs=1):
    """What ranks with these samplers combine together, each going on after its last batch, as in join."""
    ranks = ledgers(length, len(samplers))
    for _ in range(epochs):
        loaders = [ledger.wrap(BatchSampler(sampler, batch_size)) for ledger, sampler in zip(ranks, samplers)]
        while True:
            given_out = [[next(loader, None) for _ in range(accumulate)] for loader in loaders]
            if not any(batch for batches in given_out for batch in batches):
                break
            for ledger in ranks:
                ledger.combined()
    return merged(ranks)


@st.composite
def samplers(draw):
    """Those of 1 to 4 ranks, of any mode and shares."""
    length, world = draw(st.integers(1, 60)), draw(st.integers(1, 4))
    mode = draw(st.sampled_from(["pad", "drop", "exact"]))
    weights = draw(st.lists(st.integers(0, 4), min_size=world, max_size=world).filter(any))
    is_shared = mode == "exact" and draw(st.booleans())
    shares = [weight / sum(weights) for weight in weights] if is_shared else None
    return length, mode, [
        DistributedSampler(length, rank=rank, world_size=world, mode=mode, shares=shares) for rank in range(world)
    ]


@given(samplers(), st.integers(1, 7), st.integers(1, 3), st.integers(1, 2))
def test_samplers_take_each_sample_once_and_their_padding_is_named(case, batch_size, accumulate, epochs):
    length, mode, of_ranks = case
    ledger, world = epochs_of(of_ranks, length, batch_size, accumulate, epochs), len(of_ranks)
    each = length // world if mode == "drop" else -(-length // world)
    for epoch in range(epochs):
        audit, taken = ledger.audit(epoch), ledger.taken(epoch)
        assert audit.repeated == ()
        assert audit.missing == (((each * world, length),) if mode == "drop" and each * world < length else ())
        beyond = sum(stop - start for taking in audit.padded for start, stop in taking.places)
        assert beyond == (each * world - length if mode == "pad" else 0)
        assert audit.is_exact == (not audit.missing and not audit.padded)
        assert set(taken.weights.tolist()) <= {1.0}
    assert ledger.audit(epochs).missing == ((0, length),)


@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 4), st.sampled_from(DISPATCHES), st.data())
def test_a_dispatch_takes_each_sample_once_also_where_steps_are_lost(length, batch_size, world, mode, data):
    """What is dealt and not combined is dealt again, from the state before it."""
    ranks, dispatch = ledgers(length, world), Dispatch(ChunkPool(length, batch_size), world, mode)
    while dispatch.remaining:
        after, batches = dispatch.round(data.draw(st.lists(st.integers(1, 4), min_size=world, max_size=world)))
        for ledger, mine in zip(ranks, batches.of_ranks):
            for portion in mine:
                for start, stop in portion.places:
                    ledger.dealt(start, stop - start, epoch=portion.epoch)
        fate = data.draw(st.sampled_from(["combined", "combined", "failed", "skipped"]))
        for ledger in ranks:
            if fate == "failed":
                ledger.give_back()
            else:
                ledger.combined()
            if fate == "skipped":
                ledger.skipped()
        dispatch = after if fate == "combined" else dispatch
    assert merged(ranks).audit().is_exact
    assert sorted(ranks[-1].taken().places.tolist()) == list(range(length))


def by_twos(world=2):
    """An epoch of 8 samples, each rank's batches of two in turn: two steps."""
    ranks = ledgers(8, world)
    for step in range(2):
        for ledger in ranks:
            ledger.dealt(4 * step + 2 * ledger.rank, 2)
            ledger.combined()
    return ranks


def test_a_double_deal_is_named():
    ranks = by_twos()
    ranks[0].dealt(6, 2)
    for ledger in ranks:
        ledger.combined()
    assert str(merged(ranks).audit()) == (
        "epoch 0 of 8 samples: repeated 6-7 by rank 1 in step 1, 6-7 by rank 0 in step 2"
    )


def test_a_lost_round_is_named():
    ranks = by_twos()
    for ledger in ranks:
        ledger.skipped()
    audit = merged(ranks).audit()
    assert str(audit) == "epoch 0 of 8 samples: missing 4-7" and not audit.is_exact
    ranks[0].dealt(4, 4)
    assert ranks[0].audit().missing == ((4, 8),) and ranks[0].pending == [(0, (4, 4, 1))]


def test_a_padded_end_is_named():
    of_ranks = [DistributedSampler(5, rank=rank, world_size=2) for rank in range(2)]
    assert str(epochs_of(of_ranks, 5, 2).audit()) == "epoch 0 of 5 samples: padded 0 by rank 1 in step 1"


def test_each_once_is_said():
    assert str(merged(by_twos()).audit()) == "epoch 0 of 8 samples: each once"


def test_a_rank_that_combined_less_often_is_named():
    ranks = by_twos()
    ranks[1].combined()
    with pytest.raises(ArgumentError, match=r"as many combinations on all ranks, got \{0: 2, 1: 3\}"):
        merged(ranks)


def test_an_audit_waits_for_the_entries_of_all():
    with pytest.raises(ArgumentError, match="entries of 2 ranks, got those of rank 1 alone since step 0: merge_ledger"):
        by_twos()[1].audit()


def test_the_weight_is_what_each_sample_counted_by():
    ledger = SampleLedger(8)
    ledger.dealt(0, 4)
    ledger.combined(10.0)  # of tokens, say
    ledger.dealt(4, 4)
    ledger.combined()
    assert ledger.taken().weights.tolist() == [2.5] * 4 + [1.0] * 4


def test_a_million_samples_are_few_entries():
    def entries(batches, length=10**6):
        ledger = SampleLedger(length)
        for start, count, stride in batches:
            ledger.dealt(start, count, stride)
            ledger.combined()
        assert json.loads(json.dumps(ledger.state_dict())) == ledger.state_dict()
        return len(ledger.entries()), len(json.dumps(ledger.state_dict())), len(ledger.taken().places)

    contiguous = [(start, min(32, 500_000 - start), 1) for start in range(0, 500_000, 32)]
    in_turns = [(32 * 4 * step + 32, 32, 1) for step in range(7812)]
    strided = [(1 + 4 * 32 * step, 32, 4) for step in range(7812)]
    for batches in (contiguous, in_turns, strided):
        count, characters, samples = entries(batches)
        assert count <= 2 and characters < 300 and samples == sum(size for _, size, _ in batches)


def test_a_state_that_was_merged_serves_any_rank_and_any_number_of_them():
    ranks = by_twos()
    alone = ranks[1].state_dict()
    with pytest.raises(StateDictError, match="rank 0 of 2 saved, or what was merged, got that of rank 1 of 2"):
        SampleLedger(8, rank=0, world_size=2).load_state_dict(alone)
    same = SampleLedger(8, rank=1, world_size=2)
    same.load_state_dict(json.loads(json.dumps(alone)))
    assert same.told() == ranks[1].told()
    state = json.loads(json.dumps(merged(ranks).state_dict()))
    other = SampleLedger(8, rank=2, world_size=3)
    other.load_state_dict(state)
    assert other.audit().is_exact and other.step == 2
    ranks = [ranks[0], SampleLedger(8, rank=1, world_size=2)]
    ranks[1].load_state_dict(state)
    for ledger in ranks:
        ledger.dealt(4 * ledger.rank, 4, epoch=1)
        ledger.combined()
    assert merged(ranks).audit(1).is_exact and merged(ranks).epochs == [0, 1]


def test_what_ranks_have_saved_each_for_itself_serves_any_number_of_them():
    ranks = by_twos()
    for ledger in ranks:
        ledger.dealt(2 * ledger.rank, 2, epoch=1)  # not combined
    states = [json.loads(json.dumps(ledger.state_dict())) for ledger in ranks]
    others = [SampleLedger(8, rank=rank, world_size=3) for rank in range(3)]
    for ledger in others:
        ledger.load_state_dict(joined(states))
        assert ledger.audit().is_exact and ledger.step == 2 and ledger.epochs == [0] and not ledger.pending
        ledger.dealt(3 * ledger.rank, 2 if ledger.rank == 2 else 3, epoch=1)
        ledger.combined()
    assert merged(others).audit(1).is_exact and others[0].audit(0).is_exact
    alone = SampleLedger(8)
    alone.load_state_dict(joined([ledger.state_dict() for ledger in others]))
    assert alone.audit(1).is_exact and alone.audit(0).is_exact
    with pytest.raises(StateDictError, match="rank 0 of 2 saved, or what was merged, got that of rank 1"):
        joined(states[::-1])


@pytest.mark.parametrize("shares", [None, [0.75, 0.25]])
def test_a_loader_that_goes_on_in_mid_epoch_tells_the_places_that_are_left(shares):
    def loader():
        sampler = DistributedSampler(23, rank=0, world_size=2, mode="exact", shares=shares)
        return DataLoader(ArrayDataset(np.arange(23)), 3, sampler=sampler)

    first, second, ledger = loader(), loader(), SampleLedger(23, rank=0, world_size=2)
    list(first)
    batches = ledger.wrap(first)
    for _ in range(2):
        next(batches)
        ledger.combined()
    other = SampleLedger(23, rank=0, world_size=2)
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    second.load_state_dict(first.state_dict())
    for _ in other.wrap(second):
        other.combined()
    theirs = SampleLedger(23, rank=1, world_size=2)
    for _ in range(other.step):
        theirs.combined()
    other.merge([other.told(), theirs.told()])
    places = other.taken(1).places
    expected = DistributedSampler(23, rank=0, world_size=2, mode="exact", shares=shares, shuffle=False)
    assert sorted(places.tolist()) == list(expected) and other.epochs == [1]


def test_batches_of_all_ranks_are_told_one_after_the_other():
    ledger = SampleLedger(10)

    def dealt(count):
        ledger.dealt_of(count, slice(1, 3))
        [(epoch, run)] = ledger.pending
        ledger.combined()
        return epoch, run.start

    assert [dealt(4) for _ in range(4)] == [(0, 1), (0, 5), (0, 9), (1, 1)]
    ledger.open(BatchSampler(RandomSampler(10, seed=0), 4))
    assert dealt(4) == (0, 1)
    ledger.open([[0, 1]])
    assert dealt(4) == (1, 1)


def test_what_counted_by_nothing_is_missing():
    ledger = SampleLedger(8)
    ledger.dealt(0, 8)
    ledger.combined(0.0)
    assert ledger.audit().missing == ((0, 8),) and not ledger.pending and ledger.step == 1


@pytest.mark.parametrize("flushes", [False, True])
def test_what_a_loop_that_was_broken_off_left_is_not_written_by_the_next(flushes):
    ledger = SampleLedger(4, rank=0, world_size=1)
    batches = BatchSampler(DistributedSampler(4, rank=0, world_size=1, mode="exact"), 2)
    for _ in ledger.wrap(batches):
        break
    if flushes:  # its gradients were kept, and combined after the loop
        ledger.combined()
    for _ in ledger.wrap(batches):
        ledger.combined()
    assert sorted(ledger.taken(0).places.tolist() + ledger.taken(1).places.tolist()) == sorted(
        [0, 1] * flushes + [0, 1, 2, 3]
    )


@pytest.mark.parametrize("dealer", [Rounds, Balancer])
def test_a_list_that_was_broken_off_leaves_nothing_to_the_next(dealer):
    def body(comm):
        ledger = SampleLedger(4)
        batches, loop = [np.arange(2), np.arange(2, 4)], dealer(comm, ledger=ledger)
        for _ in loop.deal(batches):
            break
        for _ in loop.deal(batches):
            ledger.combined()
        return [sorted(ledger.taken(epoch).places.tolist()) for epoch in (0, 1)]

    assert run(body, 1) == [[[], [0, 1, 2, 3]]]
