"""PyTorch as a library for optim_cases. Only the recorder and the tests under the marker `torch` import this."""

import contextlib
from unittest import mock

import torch
from torch import optim
from torch.nn.utils import clip_grad_norm_

from tests.parity.optim_cases import BASE_LR, SCHEDULES, STEPS, WARMUP

__all__ = ["clip_grad_norm_", "exactly", "give", "optim", "parameter", "rates", "read"]


def parameter(array):
    """A parameter on a copy of the array."""
    return torch.nn.Parameter(torch.tensor(array))


@contextlib.contextmanager
def exactly():
    """Let Muon's iteration, which rounds to bfloat16 first, run in the dtype that it is given."""
    with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
        yield


def give(param, gradient):
    """Set a gradient, or take it away."""
    param.grad = None if gradient is None else torch.tensor(gradient)


def read(tensor):
    """The values of a tensor, copied."""
    return tensor.detach().numpy().copy()


def rates(name):
    """The learning rate at each step."""
    optimizer = optim.SGD([parameter(0.0)], lr=BASE_LR)
    scheduler = _scheduler(name, optimizer)
    found = []
    for _ in range(STEPS):
        found += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    return found


def _scheduler(name, optimizer):
    schedulers = optim.lr_scheduler
    if name == "warmup":
        ramp = schedulers.LinearLR(optimizer, WARMUP["start_factor"], total_iters=WARMUP["steps"])
        return schedulers.SequentialLR(optimizer, [ramp, _scheduler("step", optimizer)], [WARMUP["steps"]])
    kind, options = SCHEDULES[name][1]
    return getattr(schedulers, kind)(optimizer, **options)
