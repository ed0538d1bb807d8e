"""What is recorded is decided again, to the bit."""

import io
import json

import pytest

from minigrad.distributed.balance import Balance, BalanceConfig, CadenceConfig, ElChe, Journal, Reading, replay
from minigrad.errors import ArgumentError
from tests.balance.virtual import noise

CONFIG = BalanceConfig(
    calibration_steps=4, interval_steps=7, hysteresis=0.0, caps=(None, 60, None), granularity=2, speed_hint={2: 0.5}
)


def balance_lines():
    stream, balance = io.StringIO(), Balance.start(3, CONFIG)
    journal, chance = Journal(stream, balance), noise(3, 0.3)
    decided = []
    for step in range(30):
        sizes = balance.shard_sizes(96)
        readings = [
            Reading(n, n * (1.0 + r) * chance(step, r)) if n and step % 5 else None for r, n in enumerate(sizes)
        ]
        balance, division, reason = balance.observe(96, readings)
        journal.observed(96, readings, division, reason)
        decided.append((division.shards, reason))
    return stream.getvalue().splitlines(), decided


def cadence_lines():
    el_che = ElChe.start(2, CadenceConfig(speed_hint=(1, 2.5), max_batch_diff=4))
    stream, chance, decided = io.StringIO(), noise(4, 0.3), []
    journal = Journal(stream, el_che)
    for step in range(30):
        if step == 15:
            el_che, counts, reason = el_che.nudge_anchor_down(0.3)
            journal.nudged(0.3, counts, reason)
        else:
            walls = [(10.0 + 7.0 * r) * n * chance(step, r) for r, n in enumerate(el_che.batch_counts)]
            ran, grows, sync = el_che.batch_counts, step % 3 > 0, 40.0 * chance(step, 2)
            el_che, counts, reason = el_che.report_timing(walls, ran, sync, allow_growth=grows)
            journal.reported(walls, ran, sync, counts, reason, allow_growth=grows)
        decided.append((counts, reason))
    return stream.getvalue().splitlines(), decided


@pytest.mark.parametrize("record", [balance_lines, cadence_lines])
def test_a_replay_takes_the_same_decisions(record):
    lines, decided = record()
    assert [(decision.counts, decision.reason) for decision in replay(lines)] == decided
    assert len({counts for counts, _ in decided}) > 2
    assert record()[0] == lines


@pytest.mark.parametrize("record", [balance_lines, cadence_lines])
def test_a_changed_decision_is_found(record):
    lines, _ = record()
    entry = json.loads(lines[20])
    lines[20] = json.dumps({**entry, "counts": entry["counts"][::-1]})
    with pytest.raises(ArgumentError, match="replay: expected Decision.* of line 21 again, got Decision"):
        replay(lines)


def test_an_empty_journal_has_no_decision():
    assert replay([]) == []
