"""What optimizers, schedules, scaling and clipping refuse."""

import math
from itertools import product

from minigrad import optim
from minigrad.errors import ArgumentError, DtypeError
from minigrad.optim import (
    Constant,
    CosineAnnealing,
    ExponentialDecay,
    LRScheduler,
    LinearRamp,
    MultiStepDecay,
    Piecewise,
    Schedule,
    StepDecay,
    warmup,
)
from tests.refusals import each, run
from tests.unit.optim.test_schedule import ALL

ROWS = [
    # scaler
    (lambda: optim.GradScaler().update(0.0), ArgumentError, "new_scale"),
    # schedule
    *each(
        (lambda step, schedule: schedule(step), ArgumentError, "expected step to be an integer >= 0, got %s"),
        *product([-1, 1.0, None, True], ALL),
    ),
    *each(
        (run, ArgumentError),
        (lambda: Constant(math.nan), r"Constant: expected value to be a finite number >= 0, got nan"),
        (lambda: StepDecay(0), "StepDecay: expected step_size to be an integer >= 1, got 0"),
        (lambda: StepDecay(2, 0.0), r"StepDecay: expected gamma to be a finite number > 0, got 0.0"),
        (lambda: MultiStepDecay([3, 2]), r"MultiStepDecay: expected increasing milestones, got \[3, 2\]"),
        (lambda: MultiStepDecay([0]), "MultiStepDecay: expected each milestone to be an integer >= 1, got 0"),
        (lambda: ExponentialDecay(math.inf), "ExponentialDecay: expected gamma .*, got inf"),
        (lambda: CosineAnnealing(0), "CosineAnnealing: expected total_steps .*, got 0"),
        (lambda: CosineAnnealing(3, -0.1), "CosineAnnealing: expected min_factor .*, got -0.1"),
        (lambda: LinearRamp(3, end_factor=None), "LinearRamp: expected end_factor .*, got None"),
        (lambda: Piecewise([], []), "Piecewise: .* got 0 schedules and 0 milestones"),
        (lambda: Piecewise([Constant()], [3]), "Piecewise: .* got 1 schedules and 1 milestones"),
        (lambda: Piecewise([0.1], []), "Piecewise: expected a function from a step to a factor, got 0.1"),
        (lambda: warmup(StepDecay, 3), "warmup: expected a function from a step to a factor, got <class"),
        (lambda: warmup(Constant(), 0), "warmup: expected steps to be an integer >= 1, got 0"),
        (lambda: warmup(Constant(), 2, -1.0), "warmup: expected start_factor .*, got -1.0"),
        who="^",
    ),
    (lambda: Schedule()(0), NotImplementedError, "Schedule has no formula"),
    (lambda: LRScheduler([], Constant()), DtypeError, "LRScheduler: expected an Optimizer, got list"),
]
