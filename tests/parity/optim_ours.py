"""minigrad as a library for optim_cases."""

import numpy as np

from minigrad import Tensor, optim
from minigrad.nn import Parameter
from minigrad.optim import clip_grad_norm_
from tests.parity.optim_cases import BASE_LR, SCHEDULES, STEPS, WARMUP

__all__ = ["clip_grad_norm_", "give", "optim", "parameter", "rates", "read"]


def parameter(array):
    """A parameter on a copy of the array."""
    return Parameter(array.copy())


def give(param, gradient):
    """Set a gradient, or take it away."""
    param.grad = None if gradient is None else Tensor(gradient)


def read(tensor):
    """The values of a tensor, copied."""
    return tensor.detach().numpy().copy()


def schedule_of(name):
    """A schedule by name."""
    if name == "warmup":
        return optim.warmup(schedule_of("step"), **WARMUP)
    kind, options = SCHEDULES[name][0]
    return getattr(optim, kind)(**options)


def rates(name):
    """The learning rate at each step, through the scheduler."""
    optimizer = optim.SGD([parameter(np.zeros(1))], lr=BASE_LR)
    scheduler = optim.LRScheduler(optimizer, schedule_of(name))
    found = []
    for _ in range(STEPS):
        found += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return found
