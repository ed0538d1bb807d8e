"""A grade: right wrappers pass with the figures that they should have; wrong ones and cheats do not, in words."""

import functools
import itertools

import numpy as np
import pytest

from minigrad import Tensor, nn
from minigrad.distributed import DDP
from minigrad.distributed.simulate import Cluster, Link, simulation
from minigrad.distributed.simulate.clock import VirtualClock
from minigrad.errors import ArgumentError
from minigrad.testing import Grade, Limits, Workload, WrapperAdapter, grade
from minigrad.testing.grading import best_step
from minigrad.testing.grading.unchanged import changed_functions
from tests.grading import wrappers

CLUSTER = Cluster.of_speeds([1, 2], link=Link(2e-5, 1e8))
SHORT = Workload(steps=3)
heavy = functools.partial(pytest.param, marks=pytest.mark.course)


@functools.cache
def graded(wrapper, **limits):
    """Without the conformance checks, which have tests of their own."""
    return grade(wrapper, CLUSTER, Limits(**limits), workload=SHORT, checks=(), timeout_s=15.0)


@pytest.mark.parametrize(
    "wrapper", [DDP, wrappers.Naive, wrappers.Overlapped, wrappers.Scattered, heavy(wrappers.ByMessages)]
)
def test_honest_wrappers(wrapper):
    found = graded(wrapper)
    assert found.passed, str(found)
    assert found.ratio("step_s") >= 1.0 and 1.0 <= found.ratio("sent_bytes") < 1.01


def test_figures_of_a_naive_wrapper_are_those_of_arithmetic():
    """All of its calls are exposed, each takes what a ring takes: 2 messages of a half."""
    found = graded(wrappers.Naive).figures
    sizes = [4 * 96 * 96, 4 * 96] * 8 + [8]
    exposed_s = sum(2 * (2e-5 + nbytes / 2 / 1e8) for nbytes in sizes)
    assert found["exposed_s"].value == pytest.approx(exposed_s)
    assert found["step_s"].value == pytest.approx(exposed_s + 0.008)  # the 8 samples of rank 0
    assert found["calls"].value == 17 and found["sent_bytes"].value == pytest.approx(sum(sizes))
    assert found["sent_bytes"].best == pytest.approx(sum(sizes[:-1]))


def test_overlap_is_worth_its_time():
    naive, overlapped = graded(wrappers.Naive), graded(wrappers.Overlapped)
    assert overlapped.ratio("step_s") < 1.1 < 1.3 < naive.ratio("step_s")
    limited = graded(wrappers.Naive, step_ratio=1.1)
    assert not limited.passed and "ms of a step: expected at most 1.1 times the best" in limited.failed[0]


def over_s(cluster, sizes, cuts):
    """When the last of these all_reduces is over; ranks compute 8 ms, backward is the last two thirds."""
    now_s, start = 0.0, 0
    for cut in cuts:
        ready_s = 0.008 * (1 / 3 + 2 / 3 * sum(sizes[:cut]) / sum(sizes))
        part = sum(sizes[start:cut]) / 3
        now_s, start = max(now_s, ready_s) + 4 * (cluster.link.latency_s + part / cluster.link.bandwidth_bytes_s), cut
    return now_s


@pytest.mark.parametrize("latency_s, bandwidth", [(1e-5, 1e8), (3e-4, 1e9), (1e-3, 1e8), (0.0, 2e7)])
def test_no_division_is_better_than_the_best(latency_s, bandwidth):
    cluster = Cluster.of_speeds([1, 1, 1], link=Link(latency_s, bandwidth))
    sizes = [1000, 70_000, 400, 30_000, 200_000, 8, 90_000, 60_000]
    best = best_step(cluster, [8, 8, 8], sizes)
    some = [c for n in range(8) for c in itertools.combinations(range(1, 8), n)]
    assert best.step_s == pytest.approx(min(over_s(cluster, sizes, (*cuts, 8)) for cuts in some))
    assert over_s(cluster, sizes, best.cuts) == pytest.approx(best.step_s) and len(best.cuts) == best.calls
    assert best.sent_bytes == pytest.approx(4 / 3 * sum(sizes)) and best.exposed_s == pytest.approx(best.step_s - 0.008)


def test_the_best_plan_takes_the_best_time():
    cluster = Cluster.of_speeds([1, 1, 1], link=Link(1e-4, 1e8))
    best = best_step(cluster, [8, 8, 8], [4 * 96 * 96, 4 * 96] * 8)
    made = type("Best", (wrappers.AtTheseCuts,), {"cuts": best.cuts})
    found = grade(made, cluster, workload=Workload(samples=(8, 8, 8), steps=3), checks=())
    assert found.passed, str(found)
    assert {name: round(found.ratio(name), 9) for name in found.figures} == dict.fromkeys(found.figures, 1.0)


@pytest.mark.course
def test_compression_has_to_be_declared():
    half = [Workload(steps=3, tolerance=1e-2, wire_fraction=part) for part in (1.0, 0.5)]
    secret, declared = (grade(wrappers.Halves, CLUSTER, workload=each, checks=()) for each in half)
    assert "compression has to be declared" in secret.failed[0] and declared.passed
    assert declared.ratio("sent_bytes") == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("wrapper", [wrappers.Overlapped, heavy(DDP)])
def test_the_same_grade_whatever_the_samples_and_the_step_from_which_errors_come(wrapper, monkeypatch):
    first, second = (_with_errors_from(step, wrapper, monkeypatch) for step in (2, 3))
    assert first == second and Grade.from_json(first.to_json()) == first
    assert "passed" in str(first) and "ms of a step" in str(first)


def _with_errors_from(step, wrapper, monkeypatch):
    monkeypatch.setattr("secrets.randbelow", lambda end: step - 2)
    return grade(wrapper, CLUSTER, workload=SHORT, checks=())


def test_a_mean_of_means_is_told_by_the_check_that_it_fails():
    found = grade(wrappers.MeanOfMeans, CLUSTER, workload=SHORT)
    assert not found.passed and not found.figures
    assert found.failed[0].startswith("unequal_batches, fails: ") and "a mean of means" in found.failed[0]


def test_a_wrapper_that_is_right_passes_the_checks():
    found = grade(wrappers.Naive, CLUSTER, workload=SHORT)
    assert found.passed and "training" in found.passes, str(found)


CHEATS = [
    (wrappers.ElsewhereAndSilent, wrappers.Naive, "does not come from what the communicator gave back"),
    (wrappers.ElsewhereOnThreads, wrappers.Naive, "does not come from what the communicator gave back"),
    (wrappers.Elsewhere, wrappers.Naive, "on processes over shared memory"),
    (wrappers.Winds, wrappers.Overlapped, "the clock was moved"),
    (wrappers.Advances, wrappers.Overlapped, "clock.advance: expected a wrapper that leaves time alone"),
    heavy(wrappers.Mixes, wrappers.ByMessages, "do not share the link"),
    (wrappers.Splits, wrappers.Naive, "expected the ranks of a grade to stay together"),
    (wrappers.Exits, wrappers.Naive, "raised SystemExit: 3 (wrappers.py"),
    (wrappers.CountsInside, wrappers.Overlapped, "past the communicator"),
    (wrappers.CallsInside, wrappers.Overlapped, "does not come from what the communicator gave back"),
    (wrappers.ComputesEarly, wrappers.Overlapped, "one backward in a step"),
    (wrappers.SendsEarly, wrappers.Overlapped, "handed in before so many gradients were complete"),
    (wrappers.KnowsEarly, wrappers.Naive, "handed in before so many gradients were complete"),
    heavy(wrappers.KnowsEarlier, wrappers.Naive, "handed in before so many gradients were complete"),
    heavy(wrappers.MessagesEarly, wrappers.ByMessages, "handed in before so many gradients were complete"),
    (wrappers.Rewrites, wrappers.Overlapped, "what was noted of it was changed"),
    (wrappers.Judges, wrappers.Naive, "minigrad was changed in a step: minigrad.testing.grading.steps.untouched"),
    (wrappers.Unwritten, wrappers.Naive, "raised NotImplementedError"),
]


@pytest.mark.parametrize("cheat, honest, words", CHEATS)
def test_a_mark_cannot_be_bought(cheat, honest, words):
    found = graded(cheat)
    assert not found.passed and words in found.failed[0], str(found)
    assert graded(honest).passed


def test_memory_of_all_ranks_counts():
    honest, cheat = (graded(one, peak_ratio=3.0) for one in (wrappers.Overlapped, wrappers.Hoards))
    assert honest.passed and honest.ratio("peak_bytes") < 2.5, str(honest)
    assert not cheat.passed and "bytes held beside the bare model" in cheat.failed[0]
    assert cheat.ratio("peak_bytes") - honest.ratio("peak_bytes") == pytest.approx(4.0, abs=0.6)


def test_what_is_measured_is_what_is_graded():
    found = graded(wrappers.Hides, peak_ratio=3.0)
    assert "where memory is measured" in found.failed[0], str(found)


@pytest.mark.course
def test_memory_of_ranks_that_make_unlike_calls():
    """All hold a copy of the largest gradient beside its own."""
    found = graded(wrappers.ByServer, peak_ratio=1.0)
    assert found.passed, str(found)


def test_leaves_of_a_wrapper_take_no_time_of_backward():
    loaded, alone = graded(wrappers.Loads), graded(wrappers.Overlapped)
    assert loaded.passed and loaded.figures["step_s"] == alone.figures["step_s"]


class Buffered(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(96, 8, dtype=np.float64))
        self.register_buffer("seen", Tensor(np.zeros(5000)))


def test_models_of_other_dtypes_with_buffers():
    """minigrad's wrapper sends these in forward."""
    found = grade(DDP, CLUSTER, workload=Workload(model=Buffered, steps=3), checks=())
    assert found.passed, str(found)


@pytest.mark.parametrize(
    "model, words",
    [
        (lambda: nn.Sequential(nn.Linear(96, 96), nn.BatchNorm1d(96)), "as with BatchNorm or Dropout"),
        (lambda: nn.Sequential(nn.Linear(96, 96), nn.Dropout(0.5)), "as with BatchNorm or Dropout"),
        (nn.ReLU, "expected a model with something to train, got none"),
        (lambda: None, "expected model to make a Module, got a function that makes None"),
    ],
)
def test_models_without_a_right_gradient_are_refused(model, words):
    with pytest.raises(ArgumentError, match=words):
        grade(DDP, CLUSTER, workload=Workload(model=model), checks=())


def test_a_changed_minigrad_is_named(monkeypatch):
    assert changed_functions() == []
    mine = type("VirtualClock", (VirtualClock,), {})
    for target, value, name in [
        (simulation, mine, "simulation.VirtualClock"),
        (VirtualClock, functools.partial(int), "clock.VirtualClock.wait_until"),
    ]:
        monkeypatch.setattr(target, name.rpartition(".")[2], value)
        assert changed_functions() == [f"minigrad.distributed.simulate.{name}"]
        if target is simulation:
            monkeypatch.undo()
    found = grade(wrappers.Naive, CLUSTER, workload=SHORT)
    assert "minigrad was changed in this process: " in found.failed[0] and "wait_until" in found.failed[0]


def test_a_hang_ends_in_words():
    found = grade(wrappers.Hangs, CLUSTER, workload=SHORT, checks=(), timeout_s=3.0)
    assert not found.passed and "rank 1" in found.failed[0], str(found)


def test_bad_arguments_are_refused():
    with pytest.raises(ArgumentError, match="grade: expected a cluster of at least 2 ranks, got 1"):
        grade(DDP, Cluster.of_speeds([1]))
    with pytest.raises(ArgumentError, match="grade: expected Limits, got 3"):
        grade(DDP, CLUSTER, 3)
    with pytest.raises(ArgumentError, match="grade: expected a function that wraps a module"):
        grade(None, CLUSTER)
    with pytest.raises(ArgumentError, match="Workload: expected samples of 2 ranks, got 1"):
        grade(DDP, CLUSTER, workload=Workload(samples=(1,)))
    with pytest.raises(ArgumentError, match="Grade.ratio: expected one of no figures"):
        Grade().ratio("step_s")
    for checks in (3, "means", [1]):
        with pytest.raises(ArgumentError, match="grade: expected checks as "):
            grade(DDP, CLUSTER, checks=checks)
    with pytest.raises(ArgumentError, match="Workload: expected model as a function that makes one, got Linear"):
        Workload(model=nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="Workload.samples_of: expected world_size"):
        Workload().samples_of(0)
    for bad in [(None,), (DDP, 3), (DDP, None, -1.0)]:
        with pytest.raises(ArgumentError, match="WrapperAdapter: expected "):
            WrapperAdapter(*bad)
    assert np.isinf(graded(DDP).figures["calls"]._replace(best=0.0).ratio)
