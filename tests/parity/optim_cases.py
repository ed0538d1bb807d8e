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

# those of matrices alone
MATRICES = [(3, 2), (2, 5), (4, 4)]
MUON = {
    "defaults": Case("Muon", {}),
    "plain": Case("Muon", {"lr": 0.1, "weight_decay": 0.0, "nesterov": False, "momentum": 0.5}),
    "moonshot": Case("Muon", {"lr": 0.1, "adjust_lr_fn": "match_rms_adamw", "weight_decay": 0.3}),
    "original": Case("Muon", {"lr": 0.1, "adjust_lr_fn": "original", "momentum": 0.0}),
    "iteration": Case("Muon", {"lr": 0.1, "ns_coefficients": (1.5, -0.5, 0.0), "ns_steps": 12, "eps": 10.0}),
    "groups": Case("Muon", {}, ({}, {"lr": 0.5, "nesterov": False}, {"weight_decay": 0.2, "ns_steps": 0}), 0.02),
}

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

# name -> how to make it of a module of schedulers, the same in both libraries, and an optimizer of two groups
MADE_BY_NAME = {
    "StepLR": lambda s, o: s.StepLR(o, 7, 0.7),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [3, 10, 11, 40], gamma=0.5),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.97),
    "ConstantLR": lambda s, o: s.ConstantLR(o),
    "LinearLR": lambda s, o: s.LinearLR(o, start_factor=0.2, end_factor=0.8, total_iters=12),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, total_iters=30, power=2.0),
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda step: 1 / (1 + step)),
    "LambdaLR-each": lambda s, o: s.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1.0]),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda step: 1 - 1 / (step + 3)),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, T_max=25),
    "CosineAnnealingLR-min": lambda s, o: s.CosineAnnealingLR(o, 10, eta_min=0.1),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=7, eta_min=0.05),
    "CosineAnnealingWarmRestarts-longer": lambda s, o: s.CosineAnnealingWarmRestarts(o, T_0=5, T_mult=2),
    "CyclicLR": lambda s, o: s.CyclicLR(o, base_lr=0.01, max_lr=0.4, step_size_up=5),
    "CyclicLR-2": lambda s, o: s.CyclicLR(o, 0.01, [0.4, 0.2], 4, 9, mode="triangular2", base_momentum=0.5),
    "CyclicLR-exp": lambda s, o: s.CyclicLR(o, 0.01, 0.4, 6, mode="exp_range", gamma=0.95, cycle_momentum=False),
    "CyclicLR-own": lambda s, o: s.CyclicLR(o, 0.01, 0.4, 6, scale_fn=lambda x: 1 / x, scale_mode="cycle"),
    "OneCycleLR": lambda s, o: s.OneCycleLR(o, max_lr=0.7, total_steps=400),
    "OneCycleLR-epochs": lambda s, o: s.OneCycleLR(o, [0.7, 1.5], epochs=40, steps_per_epoch=10, pct_start=0.05),
    "OneCycleLR-three": lambda s, o: s.OneCycleLR(o, 0.7, 400, 3, 9, three_phase=True, anneal_strategy="linear"),
    "OneCycleLR-still": lambda s, o: s.OneCycleLR(o, 0.7, 400, pct_start=0.1, cycle_momentum=False),
    "SequentialLR": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.1, total_iters=5), s.CosineAnnealingLR(o, 20), s.ExponentialLR(o, 0.9)], milestones=[5, 25]
    ),
    "ChainedScheduler": lambda s, o: s.ChainedScheduler(
        [s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.98), s.StepLR(o, 9), s.CosineAnnealingLR(o, 400)]
    ),
}
LONG, SHORT = 300, 50  # steps against the PyTorch that is installed, and recorded ones
PLATEAUS = {
    "min": {"patience": 2},
    "max": {"mode": "max", "factor": 0.5, "patience": 3, "cooldown": 4, "threshold": 0.01},
    "abs": {"patience": 0, "threshold": 0.3, "threshold_mode": "abs", "min_lr": [1e-3, 0.3]},
    "max-abs": {"mode": "max", "patience": 1, "threshold": 0.1, "threshold_mode": "abs", "eps": 1e-2},
}
WARMUP = {"steps": 6, "start_factor": 0.1}

CLIPS = [(p, limit) for p in (1.0, 2.0, 3.0, float("inf")) for limit in (0.5, 1000.0)]


def two_groups(library):
    """An optimizer for schedulers to move."""
    params = [library.parameter(np.zeros(1)) for _ in range(2)]
    return library.optim.SGD([{"params": params[:1]}, {"params": params[1:], "lr": 1.0}], lr=BASE_LR, momentum=0.9)


def moved(library, name, steps):
    """The rate and the momentum of each group, and what get_last_lr says, at each step of a scheduler."""
    optimizer = two_groups(library)
    return follow(MADE_BY_NAME[name](library.optim.lr_scheduler, optimizer), optimizer, steps)


def follow(scheduler, optimizer, steps, *measured):
    """The table of `moved` of any scheduler; what is measured goes to its steps."""
    rows = []
    for step in range(steps):
        groups = optimizer.param_groups
        rows.append([*(g["lr"] for g in groups), *(g["momentum"] for g in groups), *scheduler.get_last_lr()])
        optimizer.step()
        scheduler.step(*(values[step] for values in measured))
    return np.array(rows)


def plateau(library, name, steps=SHORT):
    """The table of `moved` for a measure that gets better, then wanders."""
    optimizer = two_groups(library)
    scheduler = library.optim.lr_scheduler.ReduceLROnPlateau(optimizer, **PLATEAUS[name])
    wander = np.random.default_rng(3).standard_normal(steps).tolist()
    sign = -1 if PLATEAUS[name].get("mode") == "max" else 1
    return follow(scheduler, optimizer, steps, [sign * (5 / (1 + i) + 0.1 * x) for i, x in enumerate(wander)])


def draw(shapes=SHAPES):
    """Start values, and the gradients of each parameter by step."""
    rng = np.random.default_rng(7)
    starts = [rng.standard_normal(shape) for shape in shapes]
    return starts, [rng.standard_normal((STEPS, *shape)) for shape in shapes]


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


# those of which the state after HALF steps is recorded as PyTorch has it, for another optimizer to go on from
BORDER = [
    "SGD-groups", "Adam-groups", "Adam-lr=0.01-betas=(0.5, 0.9)-amsgrad=True-decoupled_weight_decay=False",
    "AdamW-defaults", "RMSprop-groups", "Adagrad-decay", "Adadelta",
]
HALF = 10


def steps(library, params, optimizer, gradients, first, stop):
    """Some steps of a case; the rate that comes later is left out."""
    for step in range(first, stop):
        give_gradients(library, params, gradients, step)
        optimizer.step()


def clip(library, starts, gradients, p, limit):
    """The norm of the gradients of the first step, then those gradients clipped, in one row."""
    params = [library.parameter(start) for start in starts]
    give_gradients(library, params, gradients, step=0)
    norm = library.clip_grad_norm_(params, limit, p)
    kept = [library.read(param.grad).ravel() for param in params if param.grad is not None]
    return np.concatenate([library.read(norm).ravel(), *kept])
