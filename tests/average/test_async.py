"""Async: any schedule of ranks and messages, by the pure machine alone, and in arithmetic that a hand can follow."""

from collections import deque
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed.average import Async, StepsMade
from minigrad.distributed.average.asynchronous import AsyncState
from minigrad.errors import ArgumentError, CollectiveMismatchError


class Rank:
    """One rank over the pure machine: a number for its parameters, and what it does with what comes."""

    def __init__(self, rank, world_size, bound):
        self.state = AsyncState.start(rank, world_size, bound)
        self.rank, self.value, self.common, self.seen = rank, Fraction(0), Fraction(0), Fraction(0)
        self.changes, self.kept, self.applied, self.means = Fraction(0), {}, [], []

    def train(self, change):
        self.value += change
        self.changes += change

    def send(self, samples, last):
        is_change = not self.state.is_settled
        told = self.value - self.seen if is_change else self.value
        self.seen = self.value
        self.state = self.state.sent(last)
        message = (self.state.round, samples, is_change, last, told)
        self.keep(self.rank, message)
        return message

    def keep(self, src, message):
        self.kept.setdefault(message[0], {})[src] = message

    def take(self, src, message):
        self.state = self.state.took(src, message[0], message[3])
        self.keep(src, message)

    def apply(self):
        for number in list(self.state.complete()):
            made = self.kept.pop(number)
            assert tuple(sorted(made)) == self.state.took_part(number)
            stands = {src: (self.common if m[2] else 0) + m[4] for src, m in made.items()}
            whole = sum(m[1] for m in made.values())
            mean = sum(made[src][1] * value for src, value in stands.items()) / whole if whole else self.common
            difference = mean - stands.get(self.rank, self.common)
            self.value, self.seen, self.common = self.value + difference, self.seen + difference, mean
            self.state = self.state.applied_next()
            self.applied.append((number, tuple(sorted(made))))
            self.means.append(mean)


rounds = st.lists(st.integers(0, 3), min_size=2, max_size=4)  # rounds of each rank until it ends


@given(data=st.data(), lengths=rounds, bound=st.integers(0, 3))
def test_any_schedule_ends_alike_and_waits_only_beyond_the_bound(data, lengths, bound):
    """Ranks make rounds, and messages arrive, in any order that the machine allows; nothing else is ordered."""
    size = len(lengths)
    ranks = [Rank(r, size, bound) for r in range(size)]
    away = {(a, b): deque() for a in range(size) for b in range(size) if a != b}
    sent = []
    while not all(rank.state.is_over for rank in ranks):
        can = [("round", r.rank) for r in ranks if not r.state.ended[r.rank] and not r.state.waits_for()[0]]
        can += [(src, dst) for (src, dst), queue in away.items() if queue and src in ranks[dst].state.takes_from()]
        assert can, "a circle of ranks waits in itself"
        what, who = data.draw(st.sampled_from(can))
        rank = ranks[who]
        if what == "round":
            made, last = rank.state.round, rank.state.round == lengths[who]
            behind = min([made, *(ranks[r].state.round for r in range(size) if not rank.state.ended[r])])
            assert made - behind <= bound  # never further ahead than the bound, without waiting
            samples = 0 if last else data.draw(st.integers(0, 3))
            if samples:
                rank.train(Fraction(data.draw(st.integers(-4, 4))))
            message = rank.send(samples, last)
            sent.append((message[0], who))
            for (src, _), queue in away.items():
                if src == who:
                    queue.append(message)
        else:
            rank.take(what, away[what, who].popleft())
        for each in ranks:
            waits = each.state.waits_for()[0]
            if not each.state.ended[each.rank]:  # within the bound none waits, whatever is on its way
                assert all(each.state.round - each.state.came[r] > bound for r in waits)
                assert bool(waits) == any(
                    each.state.round - last > bound and not end
                    for last, end in zip(each.state.came, each.state.ended)
                )
        rank.apply()
    assert len({rank.value for rank in ranks}) == 1 and ranks[0].value == ranks[0].common
    assert all((rank.applied, rank.means) == (ranks[0].applied, ranks[0].means) for rank in ranks)
    counted = [(number, src) for number, made in ranks[0].applied for src in made]
    assert sorted(counted) == sorted(sent) and len(set(counted)) == len(counted)
    assert not any(map(len, away.values()))


def test_steps_made_while_an_update_is_on_its_way_stay():
    """A snapshot after 10 steps of +1, the other rank's is 4 with as many samples; 3 steps later the mean is there."""
    mine, other = Rank(0, 2, 5), Rank(1, 2, 5)
    for _ in range(10):
        mine.train(1)
    message = mine.send(8, False)
    for _ in range(3):
        mine.train(1)
    other.train(4)
    mine.take(1, other.send(8, False))
    mine.apply()
    assert mine.value == Fraction(7 + 3) and mine.state.applied == 1
    other.take(0, message)
    other.apply()
    assert other.value == 7


def test_rounds_on_their_way_together_are_not_applied_twice():
    """Snapshots of 2 and of 2 + 6 before the first mean comes, weights alike; the other rank moves by 0 and by 2."""
    mine, other = Rank(0, 2, 5), Rank(1, 2, 5)
    mine.train(2)
    mine.send(1, False)
    mine.train(6)
    mine.send(1, False)
    for change in (0, 2):
        other.train(change)
        mine.take(1, other.send(1, False))
        mine.apply()
    assert mine.means == [1, 1 + 4] and mine.value == 5


def test_a_late_snapshot_is_not_taken_for_that_of_the_next_round():
    state = AsyncState.start(0, 2, 3).sent().sent().took(1, 1)
    with pytest.raises(CollectiveMismatchError, match="a snapshot of rank 1, that of round 2, got that of round 1"):
        state.took(1, 1)
    with pytest.raises(CollectiveMismatchError, match="rank 0: Async: .*that of round 2, got that of round 3"):
        state.took(1, 3)
    with pytest.raises(CollectiveMismatchError, match="none after its last, got that of round 3"):
        state.took(1, 2, last=True).took(1, 3)


def test_whom_a_rank_waits_for_and_why():
    state = AsyncState.start(0, 3, 1).sent().sent().took(1, 1)
    assert state.waits_for() == ((2,), "round 2 is 2 ahead of rank 2, more than 1: wait for round 1")
    state = state.took(2, 1)
    assert state.waits_for() == ((), "no rank is more than 1 behind round 2")
    assert list(state.complete()) == [1] and state.took_part(1) == (0, 1, 2)
    assert state.surely_taken(1) == -1 and state.took(1, 2).surely_taken(1) == 0
    ended = state.sent(last=True)
    assert ended.waits_for() == ((1, 2), "this rank has ended, and ranks 1 and 2 not")
    assert ended.takes_from() == (1, 2)


def test_a_rank_that_has_ended_is_waited_for_by_none():
    state = AsyncState.start(0, 2, 0).sent().took(1, 1, last=True).sent().sent()
    assert state.waits_for()[0] == () and list(state.complete()) == [1, 2, 3] and state.took_part(3) == (0,)


def test_wrong_use_of_the_machine():
    state = AsyncState.start(0, 2, 0)
    with pytest.raises(ArgumentError, match="expected round 1 to be complete"):
        state.applied_next()
    with pytest.raises(ArgumentError, match="expected no round of rank 0 after its last"):
        state.sent(last=True).sent()
    with pytest.raises(ArgumentError, match="expected all ranks to have ended"):
        state.restarted()


def test_a_round_is_over_after_k_steps():
    assert [Async(2, k=3).decide(None, StepsMade(0, 2, batches=n))[1:] for n in (2, 3)] == [
        (False, ""),
        (True, "3 steps are made"),
    ]
