"""Slow links: ranks that train on their own for a while, and what they do when they meet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.distributed import Communicator
from minigrad.tensor import Tensor

Array = np.ndarray[Any, Any]


def outer_step(start: Array, average: Array, velocity: Array, lr: float, momentum: float) -> tuple[Array, Array]:
    """DiLoCo's outer step: from where all ranks started, and the mean of where they have come to, to where they go on.

    The way that the ranks have gone is taken for a gradient, and a step of SGD with Nesterov's momentum is made with
    it, in the form that PyTorch's SGD has:

        change = start - average
        velocity = momentum · velocity + change
        values = start - lr · (change + momentum · velocity)

    with the new velocity in the last line. Nothing is written into an argument.

    Source: Douillard et al., "DiLoCo: Distributed low-communication training of language models", 2023, algorithm 1.

    Args:
        start: 1-D, what all ranks held after they had met last.
        average: Like it, the weighted mean of what they hold now.
        velocity: Like it, from the last outer step; zeros before the first.
        lr: The outer learning rate, > 0.
        momentum: In [0, 1).

    Returns:
        What all ranks hold now, and the new velocity, in the dtype of start.

    Example:
        >>> values, velocity = outer_step(np.zeros(1), np.ones(1), np.zeros(1), lr=1.0, momentum=0.5)
        >>> values.tolist(), velocity.tolist()
        ([1.5], [-1.0])
    """
    raise NotImplementedError


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
    """Train this rank's replica on batches of its own, and meet the other ranks after each `every` steps.

    A step is zero_grad, loss_of(module(x), y), backward, and the optimizer's step. Where ranks meet,

        average = Σ n_r · parameters_r / Σ n_r

    is formed over them, with n_r the samples of rank r since they met last, by one all_reduce of the parameters and the
    n_r together: so one more element than there are parameters. Then all go on from what `outer_step` makes of it, of
    which the start is what they held after they had met last, at first the values of the module.

    The ranks meet once more at the end, where steps are left; so at the end all replicas are equal, bit for bit.

    Args:
        comm: The ranks.
        module: Its parameters are of one dtype, and have equal values on all ranks; it has no buffers. Their values
            are changed in place, by `param.copy_` under `minigrad.no_grad()`, say: the optimizer holds on to them.
        optimizer: Of these parameters, the inner one. Its state stays as it is where ranks meet.
        batches: (x, y) for each step, of len(x) samples: at least one. The ranks have as many batches each; a batch may
            have more samples than that of another rank, or than the one before.
        loss_of: The mean over the samples of a batch.
        every: Steps between two meetings, >= 1.
        lr, momentum: Of the outer step.

    Example:
        `train_locally(comm, model, SGD(model.parameters(), lr=0.1), batches, mse_loss, every=1)` is data-parallel
        training, to rounding.
    """
    raise NotImplementedError


def local_steps(step_s: float, reduce_s: float, most: int) -> int:
    """How many steps ranks should make between two meetings, so that the loss is lowest when the time is over.

    With few steps the time goes into meetings; with many the ranks drift apart, each towards the data that it has, and
    the mean of where they have come to is worse than where one would have come to with all the data.

    It has to hold where it is checked: four ranks learn to tell ten kinds of points. Three tenths of the points of each
    are of all kinds, the others of two or three kinds that other ranks hardly have. There is time for 256 steps without
    a meeting, and a meeting takes from a fiftieth of a step to 16 steps.

    Args:
        step_s: Seconds of a step, on each rank.
        reduce_s: Seconds of a meeting.
        most: The largest number that may be given.

    Returns:
        An int from 1 to most.

    Example:
        >>> 1 <= local_steps(8e-3, 32e-3, 128) <= 128
        True
    """
    raise NotImplementedError
