"""Policies replay: from what was recorded of a run, through JSON, each decides the same for the same reasons."""

import json
import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad import nn, optim
from minigrad.distributed import run
from minigrad.distributed.average import (
    Async,
    Cadence,
    Divergence,
    EveryK,
    GrowthGuard,
    LevelGuard,
    NoGuard,
    ParameterAverager,
    Policy,
    PostLocalSGD,
    RoundTime,
    StepsMade,
    Sync,
    TrendGuard,
)
from minigrad.distributed.average.asynchronous import AsyncState
from minigrad.distributed.balance import CadenceConfig

POLICIES = [
    Sync(),
    EveryK(1),
    EveryK(3),
    PostLocalSGD(4, 3),
    Async(0),
    Async(2, k=3),
    Cadence(),
    Cadence(CadenceConfig(2, max_anchor=6, max_batch_diff=2)),
]
GUARDS = [NoGuard(), LevelGuard(0.5, patience=2), TrendGuard(), GrowthGuard()]
milliseconds = st.floats(0.0, 1e4)
distances = st.floats(0.0, 2.0) | st.just(math.nan)
rows = st.tuples(milliseconds, milliseconds, distances, st.floats(0.0, 64.0))


def first_state(policy, guard, world_size):
    state = policy.start(world_size)
    return policy.guarded(state, guard) if policy.takes_guard else state


def decisions(policy, guard, world_size, told, restart):
    """All that a policy says of recorded readings, as text; with restart its state goes through JSON at each step."""
    state, said = first_state(policy, guard, world_size), []
    for lines in told:
        due, batches = False, 0
        while not due and batches < 40:
            batches += 1
            answers = [policy.decide(state, StepsMade(r, world_size, batches, row[3])) for r, row in enumerate(lines)]
            due = answers[-1][1]
            said.append([answer[1:] for answer in answers])
            before, state = state, answers[-1][0]
            assert due or state == before  # as `Policy.decide` asks of each
        if policy.measures:
            times = [RoundTime(batches, *row[:2]) for row in lines]
            apart = Divergence(tuple(row[2] for row in lines), (1.0,) * world_size, (0.0,) * world_size, batches)
            state, reason = policy.settle(state, times, None if isinstance(guard, NoGuard) else apart)
            said.append(reason)
        if restart:
            plain = json.loads(json.dumps(policy.plain(state)))
            state = policy.restored(first_state(policy, guard, world_size), plain)
    return said, repr(policy.plain(state))


@given(data=st.data(), policy=st.sampled_from(POLICIES), guard=st.sampled_from(GUARDS), world_size=st.integers(1, 4))
def test_policies_replay_from_recorded_readings(data, policy, guard, world_size):
    of_all = st.lists(rows, min_size=world_size, max_size=world_size)
    told = data.draw(st.lists(of_all, min_size=1, max_size=5))
    recorded = json.loads(json.dumps(told))
    first = decisions(policy, guard, world_size, told, restart=False)
    assert decisions(policy, guard, world_size, recorded, restart=True) == first
    assert all(why for answers in first[0] for due, why in (answers if isinstance(answers, list) else []) if due)


class Forgetful(Policy):
    """Remembers what it was asked outside its state."""

    asked = 0

    def decide(self, state, made):
        self.asked += 1
        return state, self.asked % 3 == 0, "the third time"


def test_a_policy_with_a_memory_outside_its_state_does_not_replay():
    policy, told = Forgetful(), [[(1.0, 1.0, 0.0, 1.0)]] * 2
    policy.decide(None, StepsMade(0, 1, 1))  # by somebody else
    assert decisions(policy, NoGuard(), 1, told, False) != decisions(policy, NoGuard(), 1, told, True)


moves = st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=24)


@given(moves=moves, world_size=st.integers(1, 4), bound=st.integers(0, 3))
def test_what_a_rank_under_async_waits_for_replays_from_what_came(moves, world_size, bound):
    """What came, and when, is all that a decision depends on."""

    def told():
        state, said = AsyncState.start(0, world_size, bound), []
        for rank, ends in moves:
            if rank == 0 and not state.ended[0] and not state.waits_for()[0]:
                state = state.sent(last=ends)
            elif rank in state.takes_from():
                state = state.took(rank, state.came[rank] + 1, last=ends)
            for _ in list(state.complete()):
                state = state.applied_next()
            said.append((state, state.waits_for(), state.takes_from()))
        return said

    first = told()
    assert told() == first
    for state, (missing, why), _ in first:
        behind = [r for r in range(world_size) if state.round - state.came[r] > bound and not state.ended[r]]
        assert why and (state.ended[0] or list(missing) == behind)


@dataclass(frozen=True)
class BySamples(Policy):
    """A policy of a user's own, which goes by what the steps weigh."""

    def decide(self, state, made):
        return state, made.samples >= 8.0, f"{made.samples:g} samples"


@pytest.mark.parametrize("average", ["parameters", "gradients"])
def test_a_policy_is_told_of_the_samples_since_the_last_combination(average):
    def body(comm):
        model = nn.Linear(2, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        averager = ParameterAverager(model, comm, BySamples(), average=average)
        reports = []
        for count in (3, 4, 2, 7, 1):
            optimizer.zero_grad()
            model(minigrad.ones(count, 2)).sum().backward()
            reports.append(averager.step(count))
        return [report and report.reason for report in reports]

    assert run(body, 2) == [[None, None, "9 samples", None, "8 samples"]] * 2
