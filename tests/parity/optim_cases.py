"""Optimizers, schedules and clipping as data, and one way to run them that serves both libraries.

A library is given by three functions: parameter(array), give(parameter, gradient array or None), read(parameter).
"""

import itertools
from typing import NamedTuple

import numpy as np

SHAPES = [(3, 2), (3,), ()]
STEPS = 20
SKIPPED = {1: {0, 3, 4, 11}}  # parameter -> the steps at which it has no gradient
SHOWN = [0, 1, 4, 11, 19]  # the steps whose result is recorded
DTYPES = ["float64", "float32"]


class Case(NamedTuple):
    """An optimizer: its class, its options, options by group (one for each parameter), the rate from step 10 on."""

    kind: str
    options: dict
    groups: tuple = ()
    later_lr: float | None = None


def combinations(kind, **choices):
    """A case for each combination of the options that the class allows."""
    for values in itertools.product(*choices.values()):
        options = dict(zip(choices, values))
        if options.get("nesterov") and (not options["momentum"] or options["dampening"]):
            continue
        yield "-".join([kind, *(f"{name}={value}" for name, value in options.items())]), Case(kind, options)


switch = [False, True]
OPTIMIZERS = dict(
    [
        *combinations(
            "SGD",
            lr=[0.1],
            momentum=[0.0, 0.9],
            dampening=[0.0, 0.3],
            weight_decay=[0.0, 0.1],
            nesterov=switch,
            maximize=switch,
        ),
        *combinations(
            "Adam",
            lr=[0.01],
            betas=[(0.9, 0.999), (0.5, 0.9)],
            weight_decay=[0.0, 0.1],
            maximize=switch,
            decoupled_weight_decay=switch,
        ),
        *combinations("Adam", lr=[0.01], betas=[(0.0, 0.0)], eps=[1e-2]),
        *combinations("AdamW", lr=[0.01], betas=[(0.9, 0.999), (0.5, 0.9)], weight_decay=[0.01, 0.3], maximize=switch),
        *combinations("Adam", lr=[0.01], betas=[(0.5, 0.9)], amsgrad=[True], decoupled_weight_decay=switch),
        *combinations(
            "RMSprop", alpha=[0.9], eps=[1e-3], weight_decay=[0.0, 0.1], momentum=[0.0, 0.9], centered=switch
        ),
        ("RMSprop-maximize", Case("RMSprop", {"maximize": True})),
        ("Adagrad", Case("Adagrad", {})),
        ("Adagrad-decay", Case("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5})),
        ("Adagrad-maximize", Case("Adagrad", {"lr": 0.1, "eps": 0.1, "maximize": True})),
        ("Adadelta", Case("Adadelta", {})),
        ("Adadelta-decay", Case("Adadelta", {"lr": 0.5, "rho": 0.5, "weight_decay": 0.1, "maximize": True})),
        ("AdamW-defaults", Case("AdamW", {})),
        ("AdamW-amsgrad", Case("AdamW", {"amsgrad": True, "weight_decay": 0.1})),
        ("RMSprop-groups", Case("RMSprop", {"centered": True}, ({}, {"momentum": 0.5}, {"centered": False}), 0.02)),
        ("SGD-groups", Case("SGD", {"momentum": 0.8}, ({}, {"lr": 0.5}, {"weight_decay": 0.2, "momentum": 0.0}), 0.02)),
        ("Adam-groups", Case("Adam", {"weight_decay": 0.1}, ({"lr": 0.1}, {"betas": (0.8, 0.9)}, {"eps": 0.1}), 0.02)),
    ]
)

# name -> (ours, theirs), each (class, options); "warmup" is made by hand on both sides
SCHEDULES = {
    "step": (("StepDecay", {"step_size": 3, "gamma": 0.5}), ("StepLR", {"step_size": 3, "gamma": 0.5})),
    "multistep": (
        ("MultiStepDecay", {"milestones": [2, 5, 17]}),
        ("MultiStepLR", {"milestones": [2, 5, 17]}),
    ),
    "exponential": (("ExponentialDecay", {"gamma": 0.9}), ("ExponentialLR", {"gamma": 0.9})),
    "cosine": (("CosineAnnealing", {"total_steps": 20}), ("CosineAnnealingLR", {"T_max": 20})),
    "cosine-up-again": (
        ("CosineAnnealing", {"total_steps": 7, "min_factor": 0.2}),
        ("CosineAnnealingLR", {"T_max": 7, "eta_min": 0.1}),
    ),
    "linear": (("LinearRamp", {}), ("LinearLR", {})),
    "linear-down": (
        ("LinearRamp", {"total_steps": 8, "start_factor": 1.0, "end_factor": 0.25}),
        ("LinearLR", {"total_iters": 8, "start_factor": 1.0, "end_factor": 0.25}),
    ),
}
BASE_LR = 0.5
WARMUP = {"steps": 6, "start_factor": 0.1}

CLIPS = [(p, limit) for p in (1.0, 2.0, 3.0, float("inf")) for limit in (0.5, 1000.0)]


def draw():
    """Start values, and the gradients of each parameter by step."""
    rng = np.random.default_rng(7)
    starts = [rng.standard_normal(shape) for shape in SHAPES]
    return starts, [rng.standard_normal((STEPS, *shape)) for shape in SHAPES]


def make(optim, case, params):
    """The optimizer of a case."""
    groups = [{"params": [param], **options} for param, options in zip(params, case.groups)]
    return getattr(optim, case.kind)(groups or params, **case.options)


def give_gradients(library, params, gradients, step):
    """What backward would do at this step."""
    for i, (param, values) in enumerate(zip(params, gradients)):
        library.give(param, None if step in SKIPPED.get(i, ()) else values[step])


def run(library, case, starts, gradients):
    """All parameters, one after the other in one row, after each step of SHOWN."""
    params = [library.parameter(start) for start in starts]
    optimizer = make(library.optim, case, params)
    rows = []
    for step in range(STEPS):
        give_gradients(library, params, gradients, step)
        if step == 10 and case.later_lr is not None:
            optimizer.param_groups[0]["lr"] = case.later_lr
        optimizer.step()
        if step in SHOWN:
            rows.append(np.concatenate([library.read(param).ravel() for param in params]))
    return np.stack(rows)


def clip(library, starts, gradients, p, limit):
    """The norm of the gradients of the first step, then those gradients clipped, in one row."""
    params = [library.parameter(start) for start in starts]
    give_gradients(library, params, gradients, step=0)
    norm = library.clip_grad_norm_(params, limit, p)
    kept = [library.read(param.grad).ravel() for param in params if param.grad is not None]
    return np.concatenate([library.read(norm).ravel(), *kept])
