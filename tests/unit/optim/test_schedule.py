"""Schedules as functions of the step, and the scheduler that applies them."""

import math

import numpy as np
import pytest

from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn import Parameter
from minigrad.optim import (
    SGD,
    Constant,
    CosineAnnealing,
    ExponentialDecay,
    LinearRamp,
    LRScheduler,
    MultiStepDecay,
    Piecewise,
    StepDecay,
    warmup,
)

ALL = [
    Constant(0.5),
    StepDecay(3),
    MultiStepDecay([2, 4]),
    ExponentialDecay(0.9),
    CosineAnnealing(10),
    LinearRamp(4),
    Piecewise([Constant(), StepDecay(2)], [3]),
    warmup(CosineAnnealing(10), 3),
]


@pytest.fixture
def optimizer():
    return SGD([{"params": [Parameter(np.ones(2))]}, {"params": [Parameter(np.ones(3))], "lr": 1.0}], lr=0.5)


def table(schedule, steps):
    return [schedule(step) for step in range(steps)]


def test_values():
    assert table(Constant(0.5), 3) == [0.5, 0.5, 0.5]
    assert table(StepDecay(2, gamma=0.5), 5) == [1.0, 1.0, 0.5, 0.5, 0.25]
    assert table(MultiStepDecay([1, 3], gamma=0.5), 5) == [1.0, 0.5, 0.5, 0.25, 0.25]
    assert table(ExponentialDecay(0.5), 4) == [1.0, 0.5, 0.25, 0.125]
    assert table(CosineAnnealing(2, min_factor=0.5), 3) == pytest.approx([1.0, 0.75, 0.5])
    assert table(LinearRamp(2, 0.0, 2.0), 4) == [0.0, 1.0, 2.0, 2.0]
    assert table(Piecewise([Constant(3.0), ExponentialDecay(0.5)], [2]), 5) == [3.0, 3.0, 1.0, 0.5, 0.25]
    assert table(warmup(ExponentialDecay(0.5), 2, start_factor=0.5), 4) == [0.5, 0.75, 1.0, 0.5]


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_schedules_depend_on_the_step_alone_and_can_be_compared(schedule):
    assert [schedule(step) for step in (7, 0, 7)] == [schedule(7), schedule(0), schedule(7)]
    again = eval(repr(schedule), {cls.__name__: cls for cls in {type(s) for s in ALL} | {LinearRamp}})
    assert again == schedule and hash(again) == hash(schedule)


def test_the_rates_of_all_groups_follow(optimizer):
    scheduler = LRScheduler(optimizer, lambda step: 1 / (1 + step))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 1.0]
    scheduler.step()
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5]


def test_the_first_rate_is_set_at_once(optimizer):
    LRScheduler(optimizer, warmup(Constant(), 2, start_factor=0.5))
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.5]


def test_a_scheduler_resumes(optimizer):
    scheduler = LRScheduler(optimizer, StepDecay(2, gamma=0.5))
    for _ in range(3):
        scheduler.step()
    saved = scheduler.state_dict()
    assert saved == {"last_step": 3, "base_lrs": [0.5, 1.0]}
    other = SGD([{"params": [Parameter(np.ones(2))]}, {"params": [Parameter(np.ones(3))]}], lr=7.0)
    resumed = LRScheduler(other, StepDecay(2, gamma=0.5))
    resumed.load_state_dict(saved)
    assert resumed.get_last_lr() == [group["lr"] for group in other.param_groups] == [0.25, 0.5]
    resumed.step()
    scheduler.step()
    assert resumed.get_last_lr() == scheduler.get_last_lr() == [0.125, 0.25]


def test_a_schedule_made_anew_after_loading_starts_from_the_first_rate(optimizer):
    """PyTorch gives 0.65450849... too; to start from the rate that was loaded would give its square, 0.428."""
    scheduler = LRScheduler(optimizer, CosineAnnealing(10))
    for _ in range(4):
        scheduler.step()
    other = SGD([{"params": [Parameter(np.ones(2))]}, {"params": [Parameter(np.ones(3))]}], lr=7.0)
    other.load_state_dict(optimizer.state_dict())
    resumed = LRScheduler(other, CosineAnnealing(10))
    for _ in range(4):
        resumed.step()
    factor = (1 + math.cos(0.4 * math.pi)) / 2
    assert resumed.base_lrs == [0.5, 1.0]
    assert resumed.get_last_lr() == scheduler.get_last_lr() == [0.5 * factor, factor]


def test_the_first_rate_is_part_of_an_optimizers_state(optimizer):
    plain = optimizer.state_dict()
    assert "initial_lr" not in plain["param_groups"][0]
    with pytest.raises(ArgumentError):
        LRScheduler(optimizer, lambda step: -1.0)
    assert "initial_lr" not in optimizer.param_groups[0]  # a schedule that could not be made leaves nothing behind
    LRScheduler(optimizer, Constant(0.5))
    saved = optimizer.state_dict()
    assert [group["initial_lr"] for group in saved["param_groups"]] == [0.5, 1.0]
    given = SGD([{"params": [Parameter(np.ones(2))], "initial_lr": 2.0, "lr": 1.0}])
    assert LRScheduler(given, Constant()).get_last_lr() == [2.0]
    saved["param_groups"][1]["initial_lr"] = -1.0
    with pytest.raises(StateDictError, match="initial_lr to be a finite number"):
        optimizer.load_state_dict(saved)
    optimizer.load_state_dict(plain)  # saved where there was no schedule: the next one starts from its rate
    assert "initial_lr" not in optimizer.param_groups[0]


@pytest.mark.parametrize(
    "saved, message",
    [
        ({"last_step": 1}, "expected a dict with last_step and base_lrs, got {'last_step': 1}"),
        ([], "expected a dict with last_step and base_lrs, got"),
        ({"last_step": -1, "base_lrs": [1.0, 1.0]}, "expected last_step to be an integer >= 0, got -1"),
        ({"last_step": 1, "base_lrs": [1.0]}, "expected an optimizer of 1 groups, got one of 2"),
        ({"last_step": 1, "base_lrs": [1.0, math.nan]}, "expected the learning rate at step 1 .*, got nan"),
        ({"last_step": 1, "base_lrs": 1.0}, "not iterable"),
        ({"last_step": 1, "base_lrs": ["a", "b"]}, "can't multiply"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(optimizer, saved, message):
    scheduler = LRScheduler(optimizer, StepDecay(2))
    with pytest.raises(StateDictError, match=rf"^LRScheduler\.load_state_dict: .*{message}"):
        scheduler.load_state_dict(saved)
    assert scheduler.state_dict() == {"last_step": 0, "base_lrs": [0.5, 1.0]}
    assert scheduler.get_last_lr() == [0.5, 1.0]


@pytest.mark.parametrize("factor", [math.nan, -1.0, math.inf, None])
def test_a_factor_out_of_range_is_refused(optimizer, factor):
    with pytest.raises(ArgumentError, match=f"LRScheduler: expected the schedule's factor at step 0 .*, got {factor}"):
        LRScheduler(optimizer, lambda step: factor)


def test_an_optimizer_that_grew_is_refused(optimizer):
    scheduler = LRScheduler(optimizer, Constant())
    optimizer.add_param_group({"params": [Parameter(np.ones(1))]})
    with pytest.raises(ArgumentError, match="expected an optimizer of 2 groups, got one of 3: add groups before"):
        scheduler.step()


def test_what_is_no_optimizer_or_no_schedule_is_refused(optimizer):
    with pytest.raises(ArgumentError, match="LRScheduler: expected a function from a step to a factor, got 0.1"):
        LRScheduler(optimizer, 0.1)
