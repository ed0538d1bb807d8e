"""Ranks that a coordinator directs, as processes that are killed: also the one that it is on."""

import random
import sys
import threading

import pytest

from minigrad.distributed.average import Async, EveryK, Sync
from minigrad.train.run.processes import run_directed
from tests.distributed.test_living_processes import KilledAt, run_forked
from tests.train.directing import bits, config_of, rank_of

POLICIES = [(Sync(), "gradients"), (EveryK(2), "parameters"), (Async(2), "parameters"), (EveryK(2), "gradients")]
RANKS = 3


def body_of(config, average, kills):
    """What a rank does: train, and tell what it has come to; kills[rank] is the call in which it ends."""

    def body(lifeline):
        def train(rank, letters):
            made = rank_of(rank, letters, config, average=average)
            made.run()
            return made

        if lifeline.rank in kills:
            killer = KilledAt(kills[lifeline.rank])
            threading.setprofile(killer)
            sys.setprofile(killer)
        try:
            made = run_directed(lifeline, config, train)
        finally:
            sys.setprofile(None)
        exact = [made.ledger.audit(epoch).is_exact for epoch in range(config.dispatch.epochs)]
        return {"bits": [each.hex() for each in bits(made)], "exact": exact, "rounds": made.committed}

    return body


@pytest.mark.parametrize("policy, average", POLICIES)
def test_nobody_dies(policy, average):
    results, _ = run_forked(body_of(config_of(policy, RANKS), average, {}), RANKS)
    assert results[0]["exact"] == [True, True] and results[0] == results[1] == results[2]


def test_shrink_whoever_is_killed():
    drawn = random.Random(16)
    for number in range(20):
        policy, average = POLICIES[number % 4]
        config = config_of(policy, RANKS, samples=32, on_failure="shrink", timeout_s=10)
        kills = {rank: drawn.randint(1, 30_000) for rank in drawn.sample(range(RANKS), drawn.choice([1, 1, 2]))}
        if number % 2:
            kills.setdefault(0, drawn.randint(1, 30_000))
        kills = dict(list(kills.items())[: RANKS - 1])
        results, _ = run_forked(body_of(config, average, kills), RANKS)
        living = [result for result in results if result is not None]
        assert all(result is not None for rank, result in enumerate(results) if rank not in kills), (number, kills)
        assert all(each == living[0] and each["exact"] == [True, True] for each in living), (number, kills, results)
