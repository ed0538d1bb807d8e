"""Ranks that fail on the clock: goodput by hand, by closed forms, and with true numbers."""

import math

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed.simulate import (
    Cluster,
    Course,
    FailureTimes,
    Link,
    LocalSteps,
    Rehearsal,
    Restart,
    Shrink,
    goodput,
)
from minigrad.errors import ArgumentError

PLAIN = Cluster.of_speeds([1.0] * 4, per_sample_s=1.0)  # a sample a second and rank, no time on the wire


class At(FailureTimes):
    """Each rank works for so long, time after time, instead of drawn times."""

    def __new__(cls, *args):
        return object.__new__(cls)

    def __init__(self, uptimes_s, repair_s):
        super().__init__(len(uptimes_s[0]), 1.0, repair_s)
        object.__setattr__(self, "_given_s", uptimes_s)

    def uptimes_s(self, number):
        return np.array(self._given_s[number] if number < len(self._given_s) else [math.inf] * self.world_size)


def told(course):
    return [(each.kind, each.at_s, "".join(map(str, each.present.astype(int))), each.step) for each in course]


NEVER = math.inf


def test_restart_by_hand():
    """Rank 2 fails in the fourth step, behind a checkpoint of two; it is away for 5 s, and reading takes 1 s."""
    course = Course(PLAIN, At([[NEVER, NEVER, 4.25, NEVER]], 5.0), Restart(2, save_s=0.5, load_s=1.0), 1, 0.0, 14.0)
    assert told(course) == [
        ("step", 1.0, "1111", 0),
        ("step", 2.5, "1111", 1),
        ("save", 2.5, "1111", 2),
        ("step", 3.5, "1111", 2),
        ("restore", 10.25, "1111", 2),  # 4.25 + 5 + 1
        ("step", 11.25, "1111", 2),
        ("step", 12.75, "1111", 3),
        ("save", 12.75, "1111", 4),
        ("step", 13.75, "1111", 4),
    ]
    assert (course.counted, course.lost, course.failed) == (20, 4, 1)


def test_shrink_by_hand():
    """Rank 2 fails in the third step, which the others begin again half a second later; then it joins again."""
    course = Course(PLAIN, At([[NEVER, NEVER, 2.25, NEVER]], 2.0), Shrink(detect_s=0.5, join_s=0.25), 1, 0.0, 7.0)
    assert told(course) == [
        ("step", 1.0, "1111", 0),
        ("step", 2.0, "1111", 1),
        ("step", 3.75, "1101", 2),  # 2.25 + 0.5 + 1
        ("step", 4.75, "1101", 3),
        ("join", 5.0, "1111", 4),
        ("step", 6.0, "1111", 4),
        ("step", 7.0, "1111", 5),
    ]
    assert (course.counted, course.lost, course.failed) == (22, 0, 1)


def test_local_steps_by_hand():
    """Rank 2 fails in the second round of three steps: the others' six seconds go on, its three samples are lost."""
    course = Course(PLAIN, At([[NEVER, NEVER, 4.0, NEVER]], 2.5), LocalSteps(3, 0.5, 0.25), 1, 0.0, 10.0)
    assert told(course) == [
        ("round", 3.0, "1111", 0),
        ("round", 6.5, "1101", 3),
        ("join", 6.75, "1111", 6),
        ("round", 9.75, "1111", 6),
    ]
    assert (course.counted, course.lost, course.failed) == (12 + 9 + 12, 3, 1)


def test_who_is_left_alone_begins_anew():
    both = Cluster.of_speeds([1.0, 1.0], per_sample_s=1.0)
    course = Course(both, At([[1.5, 2.75]], 3.0), Shrink(), 1, 0.0, 6.0)
    assert told(course) == [
        ("step", 1.0, "11", 0),
        ("step", 2.5, "01", 1),
        ("lost", 4.5, "10", 2),
        ("step", 5.5, "10", 2),
    ]
    assert (course.counted, course.lost) == (1, 3)


def test_one_that_fails_while_all_wait_is_waited_for_too():
    course = Course(PLAIN, At([[0.5, 4.0, NEVER, NEVER]], 5.0), Restart(1, load_s=1.0), 1, 0.0, 12.0)
    assert told(course) == [("restore", 10.0, "1111", 0), ("step", 11.0, "1111", 0), ("save", 11.0, "1111", 1),
                            ("step", 12.0, "1111", 1), ("save", 12.0, "1111", 2)]


@pytest.mark.parametrize("strategy", [Restart(3, 0.1, 0.2), Shrink(0.1, 0.2), LocalSteps(4, 0.1, 0.2)])
def test_without_failures_only_what_the_strategy_itself_costs_is_lost(strategy):
    cluster = Cluster.of_speeds([2.0, 1.0], per_sample_s=0.5, link=Link(0.25, 1e6))
    found = goodput(cluster, cluster.failures(math.inf, 1.0), strategy, samples=2, nbytes=1e6, horizon_s=10_000.0)
    wire_s = 2 * (0.25 + 0.5)
    step_s = {Restart: 1.0 + wire_s + 0.1 / 3, Shrink: 1.0 + wire_s, LocalSteps: 1.0 + wire_s / 4}[type(strategy)]
    assert found.failed == found.lost == 0
    assert found.goodput_ratio == pytest.approx((1.0 + wire_s) / step_s, rel=2e-3)


def test_drawn_times_have_the_mean_that_was_asked_for_and_replay():
    failures = PLAIN.failures(100.0, 10.0, seed=3)
    many = FailureTimes(20_000, 100.0, 10.0, seed=3).uptimes_s(0)
    assert many.mean() == pytest.approx(100.0, rel=0.03) and many.std() == pytest.approx(100.0, rel=0.03)
    courses = [Course(PLAIN, failures, Shrink(), 1, 0.0, 500.0) for _ in range(2)]
    assert told(courses[0]) == told(courses[1])
    assert not np.array_equal(failures.uptimes_s(0), failures.uptimes_s(1))
    assert not np.array_equal(failures.uptimes_s(0), PLAIN.failures(100.0, 10.0, seed=4).uptimes_s(0))


def test_shrink_loses_what_ranks_are_away_for():
    """What part of the time ranks are there, 1 / (1 + repair / mtbf), without half a step for each failure."""
    cluster = Cluster.of_speeds([1.0] * 64, per_sample_s=5e-2)
    found = goodput(cluster, cluster.failures(50.0, 5.0, 1), Shrink(), samples=1, nbytes=0.0, horizon_s=250.0)
    half_steps_s = found.failed * 0.05 / 2
    assert found.goodput_ratio == pytest.approx((1 - half_steps_s / 250.0) / 1.1, rel=0.02)


@pytest.mark.parametrize("every", [2, 14, 60])
def test_restart_takes_as_long_as_a_renewal_says(every):
    """A segment of s seconds takes (exp(s / mtbf) - 1)(mtbf + repair): as in Daly (2006), but that no repair fails."""
    cluster, mtbf_s, repair_s, save_s = Cluster.of_speeds([1.0], per_sample_s=1.0), 50.0, 10.0, 2.0
    assert 14 == round(math.sqrt(2 * save_s * mtbf_s))  # the best there is, to first order (Young, 1974)
    course = Course(cluster, cluster.failures(mtbf_s, repair_s, 1), Restart(every, save_s), 1, 0.0, 20_000.0)
    steps = sum(each.kind == "step" for each in course)
    taken_s = math.expm1((every + save_s) / mtbf_s) * (mtbf_s + repair_s)
    assert course.counted / 20_000.0 == pytest.approx(every / taken_s, rel=0.1)
    assert steps == course.counted + course.lost
    best_s = math.expm1((14 + save_s) / mtbf_s) * (mtbf_s + repair_s)
    assert every == 14 or course.counted / 20_000.0 < 0.9 * 14 / best_s


def test_a_steady_cluster_takes_the_time_that_each_step_would_tell():
    """One with a jitter of next to nothing is asked in each step."""
    told_of = []
    for jitter in (0.0, 1e-15):
        cluster = Cluster.of_speeds([1.0, 2.0, 1.5], per_sample_s=0.5, jitter_fraction=jitter)
        assert cluster.is_steady == (jitter == 0.0)
        for strategy in (Restart(3, 0.1, 0.2), Shrink(0.1, 0.2), LocalSteps(4, 0.1, 0.2)):
            course = Course(cluster, cluster.failures(40.0, 3.0, 2), strategy, 2, 0.0, 60.0)
            told_of.append([(kind, round(at_s, 9), there, step) for kind, at_s, there, step in told(course)])
    assert told_of[:3] == told_of[3:]


def test_many_ranks():
    cluster = Cluster.of_speeds([1.0] * 100_000, per_sample_s=1.0, link=Link(1e-5, 1e10, "tree"))
    failures = cluster.failures(3e6, 600.0, 1)
    ratios = [
        goodput(cluster, failures, strategy, samples=10, nbytes=1e9, horizon_s=1000.0).goodput_ratio
        for strategy in (Restart(5, 5.0, 10.0), Shrink(5.0, 5.0), LocalSteps(8, 5.0, 5.0))
    ]
    assert ratios[0] < 0.3 < 0.5 < ratios[1] < ratios[2]  # one fails each 30 s, and all wait for its repair


# -------------------------------------------------------------------------------------------------- true numbers


def make_model():
    return nn.Linear(3, 1, dtype="float64")


def momentum(params):
    return optim.SGD(params, lr=0.05, momentum=0.9)


def train(model, rank, step):
    rng = np.random.default_rng((rank, step))
    x = rng.standard_normal((2, 3))
    y = x @ np.array([[1.0], [-2.0], [0.5]])
    return (model(minigrad.tensor(x)) - minigrad.tensor(y)).square().mean()


def rehearsed(failures, strategy, horizon_s):
    return Rehearsal(Course(PLAIN, failures, strategy, 1, 0.0, horizon_s), make_model, momentum, train, 4).run()


def by_hand(presents):
    """One device on the batch of those present in each step."""
    minigrad.manual_seed(0)
    model = make_model()
    optimizer = momentum(model.parameters())
    for step, ranks in enumerate(presents):
        optimizer.zero_grad()
        losses = [train(model, rank, step) for rank in ranks]
        (sum(losses[1:], losses[0]) / len(losses)).backward()
        optimizer.step()
    return model.weight.detach().numpy()


def test_a_restart_ends_as_if_nothing_had_failed():
    """Six steps, of which one was made again behind a checkpoint."""
    failing = rehearsed(At([[NEVER, NEVER, 4.25, NEVER]], 5.0), Restart(2, 0.5, 1.0), 15.5)
    assert [point.step for point in failing.losses] == [0, 1, 2, 2, 3, 4, 5]
    assert failing.losses[2].loss == failing.losses[3].loss
    without = rehearsed(FailureTimes(4, math.inf, 0.0), Restart(2), 6.0)
    for mine, other in zip(failing.models, without.models):
        assert mine.weight.detach().numpy().tobytes() == other.weight.detach().numpy().tobytes()
    np.testing.assert_allclose(failing.models[0].weight.detach().numpy(), by_hand([range(4)] * 6), atol=1e-12)


def test_shrink_is_one_device_on_the_batches_of_those_that_were_there():
    done = rehearsed(At([[NEVER, NEVER, 2.25, NEVER]], 2.0), Shrink(0.5, 0.25), 7.0)
    expected = by_hand([range(4), range(4), (0, 1, 3), (0, 1, 3), range(4), range(4)])
    for model in done.models:
        np.testing.assert_allclose(model.weight.detach().numpy(), expected, atol=1e-12)
        assert model.weight.detach().numpy().tobytes() == done.models[0].weight.detach().numpy().tobytes()


def test_local_steps_take_the_mean_of_those_that_are_left():
    done = rehearsed(At([[NEVER, NEVER, 1.0, NEVER]], 2.5), LocalSteps(3), 3.0)
    alone = []
    for rank in (0, 1, 3):
        minigrad.manual_seed(0)
        model = make_model()
        optimizer = momentum(model.parameters())
        for step in range(3):
            optimizer.zero_grad()
            train(model, rank, step).backward()
            optimizer.step()
        alone.append(model.weight.detach().numpy())
    np.testing.assert_allclose(done.models[0].weight.detach().numpy(), sum(alone) / 3, atol=1e-12)
    assert done.is_there.tolist() == [True, True, False, True]


@pytest.mark.parametrize("strategy", [Restart(4, 0.5, 1.0), Shrink(0.5, 0.5), LocalSteps(4, 0.5, 0.5)])
def test_training_goes_on_through_many_failures_and_replicas_stay_equal(strategy):
    done = rehearsed(PLAIN.failures(60.0, 5.0, seed=2), strategy, 150.0)
    assert done._course.failed >= 4
    weights = {done.models[rank].weight.detach().numpy().tobytes() for rank in np.flatnonzero(done.is_there)}
    assert len(weights) == 1
    assert done.losses[-1].loss < 0.05 * done.losses[0].loss


def test_wrong_arguments():
    for call, words in (
        (lambda: PLAIN.failures(0.0, 1.0), "FailureTimes: expected mtbf_s"),
        (lambda: PLAIN.failures(1.0, -1.0), "FailureTimes: expected repair_s"),
        (lambda: Restart(0), "Restart: expected every"),
        (lambda: LocalSteps(0), "LocalSteps: expected k"),
        (lambda: Shrink(-1.0), "Shrink: expected detect_s"),
        (lambda: Course(PLAIN, FailureTimes(3, 1.0, 1.0), Shrink(), 1, 0.0, 1.0), "expected the failures of 4 ranks"),
        (lambda: Course(PLAIN, PLAIN.failures(1.0, 1.0), "shrink", 1, 0.0, 1.0), "expected Restart, Shrink or Local"),
        (lambda: Course(PLAIN, PLAIN.failures(1.0, 1.0), Shrink(), 1, 0.0, math.inf), "Course: expected horizon_s"),
        (lambda: goodput(PLAIN, PLAIN.failures(9.0, 1.0), Shrink(), samples=5, nbytes=0.0, horizon_s=1.0),
         "goodput: expected a horizon of a step at least, got 1.0 s"),
        (lambda: Rehearsal(Course(PLAIN, At([[9.0] * 4], 1.0), Shrink(), 1, 0.0, 1.0), make_model, momentum, train, 3),
         "Rehearsal: expected world_size 4 of the course, got 3"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert words in str(caught.value)
