"""Lesson 17: the records of its check are those of runs, and minigrad's own detector finds the same."""

import pytest

from minigrad.course.lesson17_who_was_late.checks import (
    RANKS,
    STEPS,
    cluster_of,
    foretell,
    gains,
    length_s,
    record,
    runs,
)
from minigrad.course.lesson17_who_was_late.solution import PHASES, seconds_won, who_was_late
from minigrad.distributed import explain_ranks
from minigrad.distributed.inspect import steps_of

RUNS = list(runs())


@pytest.mark.parametrize("run", [RUNS[number] for number in (0, 3, 6)], ids=lambda run: run.name)
def test_what_is_foretold_is_what_a_run_takes(run):
    real, foretold = (steps_of(make(run.delays, run.cluster)) for make in (record, foretell))
    assert list(real) == list(foretold) == list(range(STEPS))
    names = ["handing_s" if phase == "link" else f"{phase}_s" for phase in PHASES]
    for number, ranks in real.items():
        for rank, own in ranks.items():
            ours = foretold[number][rank]
            assert [getattr(ours, n) for n in names] == pytest.approx([getattr(own, n) for n in names], abs=1e-6)
            assert (ours.wall_s, ours.idle_s) == pytest.approx((own.wall_s, own.idle_s), abs=1e-3)
    assert length_s(foretold) == pytest.approx(length_s(real), rel=0.02)
    assert who_was_late(real) == run.late


@pytest.mark.parametrize("gain", gains()[::2], ids=lambda gain: gain.name)
def test_what_is_won_is_what_a_run_is_shorter_by(gain):
    cluster, without = cluster_of(7, jitter=0.0), {at: late for at, late in gain.delays.items() if at != gain.late}
    (real, foretold), (real_after, foretold_after) = (
        [length_s(steps_of(make(delays, cluster))) for make in (record, foretell)] for delays in (gain.delays, without)
    )
    assert foretold - foretold_after == pytest.approx(real - real_after, abs=1e-3)
    assert seconds_won(steps_of(record(gain.delays, cluster)), *gain.late) == pytest.approx(real - real_after, abs=2e-3)


def test_there_are_twenty_with_a_late_rank_and_six_without():
    assert [run.late is None for run in RUNS].count(False) == 20 and len(RUNS) == 26
    ranks, phases = zip(*(run.late for run in RUNS if run.late is not None))
    assert set(phases) == set(PHASES) and set(ranks) == set(range(RANKS))


@pytest.mark.parametrize("run", RUNS[::2], ids=lambda run: run.name)
def test_minigrad_names_the_same(run):
    report = explain_ranks(foretell(run.delays, run.cluster), least_fraction=0.05)
    told = [(late.rank, late.phase) for late in report.late]
    assert told[:1] == ([] if run.late is None else [run.late])
