"""Our own: DiLoCo by hand, and the rule that El Che has."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.distributed import Communicator
from minigrad.recording import no_grad
from minigrad.tensor import Tensor

Array = np.ndarray[Any, Any]

_OVERHEAD = 0.1  # of a meeting, over the steps before it: more time is lost there than drifting apart costs


def outer_step(start: Array, average: Array, velocity: Array, lr: float, momentum: float) -> tuple[Array, Array]:
    """See task.py."""
    change = start - average
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity


def train_locally(
    comm: Communicator,
    module: nn.Module,
    optimizer: Any,
    batches: Sequence[tuple[Tensor, Tensor]],
    loss_of: Callable[[Tensor, Tensor], Tensor],
    every: int,
    lr: float = 1.0,
    momentum: float = 0.0,
) -> None:
    """See task.py."""
    params = list(module.parameters())
    start = np.concatenate([param.detach().numpy().ravel() for param in params])
    velocity, samples = np.zeros_like(start), 0
    for made, (x, y) in enumerate(batches, start=1):
        optimizer.zero_grad()
        loss_of(module(x), y).backward()
        optimizer.step()
        samples += len(x)
        if made % every == 0 or made == len(batches):
            here = np.concatenate([param.detach().numpy().ravel() for param in params])
            sums = np.append(here * samples, samples).astype(here.dtype)
            comm.all_reduce(sums).wait()
            start, velocity = outer_step(start, sums[:-1] / sums[-1], velocity, lr, momentum)
            _put(params, start)
            samples = 0


def _put(params: Sequence[Tensor], values: Array) -> None:
    """Let parameters have values, which follow each other."""
    begin = 0
    with no_grad():
        for param in params:
            end = begin + param.numel()
            param.copy_(Tensor(values[begin:end].reshape(param.shape)))
            begin = end


def local_steps(step_s: float, reduce_s: float, most: int) -> int:
    """See task.py."""
    return max(1, min(most, math.ceil(reduce_s / (_OVERHEAD * step_s))))
