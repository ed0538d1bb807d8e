"""Updates of SGD and Adam on flat arrays in one pass, and what decides about a step in device memory.

`control` is a float64 array of what only the device knows; `LOSS_SCALE` and so on are its indices. `settle_step` fills
it between backward and update: gradients are then multiplied by a factor, the clip coefficient over the loss scale,
and a step whose gradients were not finite changes nothing and is not counted. Nothing waits for it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.backend.kernels import KernelLoader, int32, int64, kernels_for, launch_of, loader_for

LOSS_SCALE, GOOD_STEPS, SKIP, SKIPPED_STEPS, FACTOR = range(5)

_VECTOR = 4  # elements that one thread takes at a time


def new_control(device: Device, loss_scale: float = 1.0) -> Array:
    """What `settle_step` and the updates share, before the first step.

    Args:
        loss_scale: The factor by which the loss is multiplied before backward, > 0.
    """
    with device.current() as xp:
        return xp.asarray(np.array([loss_scale, 0.0, 0.0, 0.0, 1.0 / loss_scale]))


def settle_step(
    control: Array,
    nonfinite: Array,
    squares: Array | None = None,
    *,
    max_norm: float = math.inf,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> None:
    """Decide about the step whose gradients are complete: skip it or not, with which factor, and the next loss scale.

    Args:
        nonfinite: uint32 (1,); not 0 where a gradient is infinite or NaN. Set back to 0.
        squares: float64 (1,): the sum of squares of the gradients, still times the square of the loss scale.
        max_norm: The norm to which gradients are clipped, by min(1, max_norm / (norm + 1e-6)); needs squares.
        growth_factor: Of the loss scale after growth_interval steps that were not skipped.
        backoff_factor: Of the loss scale after a step that was.
    """
    loader = kernels_for(control)
    numbers = (max_norm, growth_factor, backoff_factor, growth_interval)
    if loader is not None:
        args = (control, nonfinite, squares, *map(np.float64, numbers))
        loader.launch("optimizer", "settle_step", 1, 32, args)
        return
    scale, bad = control[LOSS_SCALE].item(), bool(nonfinite[0])
    norm = 0.0 if squares is None else math.sqrt(squares[0]) / scale
    coefficient = 1.0 if squares is None else float(np.fmin(1.0, max_norm / (norm + 1e-6)))
    good = 0.0 if bad else control[GOOD_STEPS].item() + 1.0
    next_scale = scale * backoff_factor if bad else scale
    if good >= growth_interval:
        next_scale, good = scale * growth_factor, 0.0
    control[:] = next_scale, good, bad, control[SKIPPED_STEPS] + bad, coefficient / scale
    nonfinite[...] = 0


def sgd_(
    param: Array,
    grad: Array,
    momentum_buffer: Array | None = None,
    *,
    step: int,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    master: Array | None = None,
    control: Array | None = None,
    clock: Array | None = None,
) -> None:
    """One step of SGD by a kernel; the formula, in NumPy, is that of `minigrad.optim.sgd.sgd_update`.

    Args:
        param, grad: 1-D arrays of one length and float dtype; grad is only read.
        momentum_buffer: float32 where param is narrower than that, as is master.
        step: Number of this step, from 1; steps that control skipped are taken off.
        master: Updated in place of param, which becomes its rounded copy; an element of which param is no rounded copy
            starts from param, so zeros will do at first.
        control: See `settle_step`.
        clock: float64 (2,): the step and lr where they lie in device memory, which a graph reads again in each launch.
    """
    numbers = map(np.float64, (lr, momentum, 1 - dampening, weight_decay))
    switches = int32(nesterov), int32(maximize), np.int64(step)
    args = (param, master, grad, momentum_buffer, int64(param.size), *numbers, *switches, control, clock)
    _launch("sgd", param, args)


def adam_(
    param: Array,
    grad: Array,
    exp_avg: Array,
    exp_avg_sq: Array,
    max_exp_avg_sq: Array | None = None,
    *,
    step: int,
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    maximize: bool = False,
    decoupled_weight_decay: bool = False,
    master: Array | None = None,
    control: Array | None = None,
    clock: Array | None = None,
) -> None:
    """One step of Adam or AdamW by a kernel; the formula, in NumPy, is that of `minigrad.optim.adam.adam_update`.

    Args:
        param, grad, step, master, control, clock: As for `sgd_`.
        exp_avg, exp_avg_sq, max_exp_avg_sq: float32 where param is narrower than that; the last for AMSGrad alone.
    """
    beta1, beta2 = betas
    root = math.sqrt(1 - beta2**step)
    rates = (lr * root / (1 - beta1**step), eps * root)
    numbers = map(np.float64, (*rates, lr, beta1, beta2, eps, weight_decay))
    switches = int32(decoupled_weight_decay), int32(maximize), np.int64(step)
    state = exp_avg, exp_avg_sq, max_exp_avg_sq
    args = (param, master, grad, *state, int64(param.size), *numbers, *switches, control, clock)
    _launch("adam", param, args)


def move_clock(clock: Array, updates: int) -> None:
    """Let a clock, see `sgd_`, be at a later step."""
    loader = loader_for(clock)
    loader.launch("optimizer", "move_clock", 1, 32, (clock, np.float64(updates)))


def _launch(name: str, param: Array, args: tuple[Any, ...]) -> None:
    loader: KernelLoader | None = kernels_for(param)
    assert loader is not None, f"{name}_ is called where kernels_for(param) finds some"
    if param.size:
        loader.launch(*launch_of(loader, "optimizer", name, param.dtype, -(-param.size // _VECTOR)), args)
