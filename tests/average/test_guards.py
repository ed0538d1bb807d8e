"""Guards: what they say of readings, by hand, and that they are functions of these alone."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed.average import Divergence, GrowthGuard, GuardedCadence, LevelGuard, NoGuard, TrendGuard
from minigrad.distributed.balance import CadenceConfig, ElChe

GUARDS = [
    NoGuard(),
    LevelGuard(0.5),
    LevelGuard(0.2, patience=2, factor=0.25),
    TrendGuard(),
    TrendGuard(0.0, history=2),
    GrowthGuard(),
    GrowthGuard(0.0, 0.05, smoothing=0.0, times=1),
]
LEVELS = st.one_of(st.floats(0.0, 10.0), st.just(math.inf), st.just(math.nan))


def apart(level, steps=1):
    """Two ranks, of which the second is so far from the average."""
    return Divergence((min(level, 0.01), level), (1.0, 1.0), (0.0, 0.0), steps)


def verdicts(guard, levels, steps=1):
    state, said = None, []
    for level in levels:
        state, verdict = guard(state, apart(level, steps))
        said.append(verdict)
    return said


def actions(guard, levels, steps=1):
    return [verdict.action for verdict in verdicts(guard, levels, steps)]


def test_no_guard_says_stable_of_everything():
    assert actions(NoGuard(), [0.9, math.inf, math.nan]) == ["stable"] * 3


def test_three_readings_as_far_apart_as_ever_are_not_stable():
    assert actions(LevelGuard(0.5), [0.9] * 3) == ["hold"] * 3
    assert actions(LevelGuard(0.9), [0.9] * 3) == ["stable"] * 3
    assert actions(TrendGuard(), [0.9] * 3) == ["stable"] * 3  # as it says: no trend


def test_a_level_that_lasts_nudges_where_that_is_asked_for():
    said = verdicts(LevelGuard(0.5, patience=3, factor=0.25), [0.9, 0.9, 0.4, 0.9, 0.9, 0.9, 0.9])
    assert [v.action for v in said] == ["hold", "hold", "stable", "hold", "hold", "nudge", "hold"]
    assert [v.factor for v in said] == [1.0, 1.0, 1.0, 1.0, 1.0, 0.25, 1.0]
    assert said[5].reason == "rank 1 is 0.9 from the average, above 0.5 3 times"


def test_a_trend_is_three_readings_that_rise_each_above_the_threshold():
    assert actions(TrendGuard(), [0.06, 0.07, 0.08]) == ["stable", "stable", "hold"]
    assert actions(TrendGuard(), [0.05, 0.07, 0.08, 0.09]) == ["stable", "stable", "stable", "hold"]
    assert actions(TrendGuard(), [0.06, 0.07, 0.07, 0.08, 0.09]) == ["stable"] * 4 + ["hold"]
    assert actions(TrendGuard(0.01, history=2), [0.02, 0.03, 0.02]) == ["stable", "hold", "stable"]


def test_growth_by_hand():
    """Doubling in 10 steps: log 2 / 10 a step, and the mean of equal values is that value, from the first on."""
    said = verdicts(GrowthGuard(), [0.01 * 2.0**i for i in range(9)], steps=10)
    assert [v.action for v in said] == ["stable"] * 3 + ["nudge", "hold", "hold", "nudge", "hold", "hold"]
    assert said[1].reason == "divergence grows by 0.0693 a step, above 0.001 only 1 time"
    assert said[3].reason == "divergence grows by 0.0693 a step, above 0.01 3 times" and said[3].factor == 0.5
    slower = verdicts(GrowthGuard(), [0.01 * 1.02**i for i in range(6)], steps=10)
    assert [v.action for v in slower] == ["stable"] * 3 + ["hold"] * 3


def test_the_mean_of_growth_is_weighted_without_a_pull_towards_zero():
    guard, levels = GrowthGuard(smoothing=0.9), [1.0, math.e, math.e**3, math.e**2]
    state = None
    for level in levels:
        state, verdict = guard(state, apart(level))
    mean = (0.81 * 1.0 + 0.9 * 2.0 - 1.0) / (0.81 + 0.9 + 1.0)
    assert f"grows by {mean:.3g} a step" in verdict.reason


def test_ranks_that_are_not_apart_do_not_grow():
    assert actions(GrowthGuard(times=1), [0.0, 0.0, 0.1, 0.2, 0.0, 5.0]) == ["stable"] * 3 + ["nudge"] + ["stable"] * 2


@pytest.mark.parametrize("guard", GUARDS[1:], ids=repr)
@pytest.mark.parametrize("level", [math.inf, math.nan])
def test_what_is_no_number_is_held_and_not_remembered(guard, level):
    state = None
    for reading in (0.6, 0.7):
        state, verdict = guard(state, apart(reading))
    after, verdict = guard(state, apart(level))
    assert (after, verdict.action) == (state, "hold") and "which is no finite number" in verdict.reason


@given(guard=st.sampled_from(GUARDS), readings=st.lists(st.tuples(LEVELS, st.integers(1, 50)), max_size=12))
def test_guards_replay_from_recorded_readings(guard, readings):
    """State and readings go through JSON at each step; a guard changes nothing that it was given."""
    lines = [json.dumps(apart(*reading).to_data()) for reading in readings]
    state, again = None, None
    for line in lines:
        before = json.dumps(state)
        after, verdict = guard(state, Divergence.from_data(json.loads(line)))
        assert json.dumps(state) == before and json.loads(json.dumps(after)) == after
        again, repeated = guard(json.loads(json.dumps(again)), Divergence.from_data(json.loads(line)))
        assert (verdict, after) == (repeated, again)
        assert verdict.reason and (verdict.action == "nudge") == (verdict.factor < 1.0)
        state = after


@given(readings=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=12), scale=st.sampled_from([0.25, 8.0]))
def test_growth_does_not_depend_on_the_unit(readings, scale):
    scaled = [reading * scale for reading in readings]
    assert actions(GrowthGuard(0.011, 0.107), readings) == actions(GrowthGuard(0.011, 0.107), scaled)


@given(levels=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), threshold=st.floats(0.0, 10.0))
def test_a_level_guard_says_what_the_last_reading_is(levels, threshold):
    assert actions(LevelGuard(threshold), levels) == ["hold" if each > threshold else "stable" for each in levels]


# ------------------------------------------------------------------------------------------------- under a cadence


def calibrated(guard):
    cadence = GuardedCadence(ElChe.start(2), guard)
    return cadence.report([1000.0, 1000.0], [10, 10], 100.0, apart(0.1))[0]


def test_a_verdict_counts_before_the_anchor_grows():
    """An overhead of 0.2 where 0.1 is wanted."""
    held, counts, reason = calibrated(LevelGuard(0.5)).report([1000.0] * 2, [10, 10], 200.0, apart(0.9))
    assert (held.el_che.anchor, counts) == (10, (10, 10))
    assert reason == (
        "hold: rank 1 is 0.9 from the average, above 0.5; overhead 0.2 is over 0.1, but growth is held: "
        "anchor 10 stays; counts (10, 10) stay"
    )
    grown, counts, reason = calibrated(LevelGuard(0.5)).report([1000.0] * 2, [10, 10], 200.0, apart(0.4))
    assert (grown.el_che.anchor, counts) == (20, (20, 20))
    assert reason.startswith("stable: rank 1 is 0.4 from the average, within 0.5; overhead 0.2 is over 0.1: anchor")
    nudging = LevelGuard(0.5, patience=1)
    nudged, counts, reason = calibrated(nudging).report([1000.0] * 2, [10, 10], 200.0, apart(0.9))
    assert (nudged.el_che.anchor, counts, nudged.el_che.min_anchor) == (5, (5, 5), 5)
    assert reason.endswith("; nudged by 0.5: anchor 10 -> 5; counts (10, 10) -> (5, 5): the anchor moved")
    assert nudged.verdict.action == "nudge"


def test_an_anchor_that_is_held_may_shrink():
    cadence = GuardedCadence(ElChe.start(2, CadenceConfig(10, min_anchor=1)), LevelGuard(0.5))
    cadence, *_ = cadence.report([1000.0] * 2, [10, 10], 10.0, apart(0.9))
    assert cadence.report([1000.0] * 2, [10, 10], 10.0, apart(0.9))[1] == (1, 1)


def test_a_divergence_that_is_not_known_holds_under_a_guard_alone():
    _, counts, reason = calibrated(LevelGuard(0.5)).report([1000.0] * 2, [10, 10], 200.0)
    assert counts == (10, 10) and reason.startswith("hold: no divergence is known of this round; ")
    plain = calibrated(NoGuard())
    after, counts, reason = plain.report([1000.0] * 2, [10, 10], 200.0)
    assert (after.el_che, counts, reason) == plain.el_che.report_timing([1000.0] * 2, [10, 10], 200.0)


@given(levels=st.lists(LEVELS, min_size=1, max_size=8), guard=st.sampled_from(GUARDS), syncs=st.floats(1.0, 400.0))
def test_the_anchor_grows_only_where_the_guard_says_stable_and_the_state_goes_through_json(levels, guard, syncs):
    cadence = calibrated(guard)
    for level in levels:
        before, ran = cadence.el_che, cadence.el_che.batch_counts
        cadence = GuardedCadence.from_state_dict(json.loads(json.dumps(cadence.state_dict())))
        cadence, counts, _ = cadence.report([100.0 * n for n in ran], ran, syncs, apart(level))
        assert counts == cadence.el_che.batch_counts
        if cadence.verdict is not None and cadence.verdict.action == "hold":
            assert cadence.el_che.anchor <= before.anchor
        if cadence.verdict is not None and cadence.verdict.action == "nudge":
            assert cadence.el_che.anchor <= max(1, math.ceil(cadence.verdict.factor * before.anchor))
