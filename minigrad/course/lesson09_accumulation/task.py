"""Lesson 9: several backwards for one step, and one exchange for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.distributed import Communicator
from minigrad.nn import Module
from minigrad.optim import Optimizer
from minigrad.tensor import Tensor


def get_ddp_accumulating(module: Module, comm: Communicator) -> Any:
    """Wrap a module as `get_ddp_naive` of lesson 5 does, with `no_sync()` for backwards whose gradients stay here.

    Returns an object `ddp` that a rank uses like this:

        with ddp.no_sync():
            for inputs, targets in micro_batches[:-1]:
                loss_of(ddp(inputs), targets).backward()     # gradients add up on this rank
                ddp.finish()                                 # sends nothing
        loss_of(ddp(last_inputs), last_targets).backward()
        ddp.finish()                                         # combines all of them

    What must hold:

        When get_ddp_accumulating returns, parameters and buffers of all ranks are those of rank 0, in the same arrays.

        Inside `no_sync()` no collective is called, neither by `ddp(...)`, nor in the backward, nor by `finish()`, which
        may be called there or left out; `p.grad` is this rank's own.

        After a `finish()` outside of it `p.grad` is, on every rank, the sum over the ranks of n_r·g_r, divided by the
        sum of all n_r: g_r is what p.grad was on rank r, all its micro-batches together, and n_r counts the samples
        that rank r gave to `ddp` since the last such `finish()`. Ranks may have different numbers of micro-batches, of
        different sizes; none at all is n_r = 0.

        `no_sync()` is a context manager. It may be used in another one, and left by an exception; afterwards things are
        as they were before it.

        `ddp.module` is the module. `ddp(*inputs)` is its forward, of one input or more; the first has n samples.

    Args:
        module: This rank's replica.
        comm: This rank's communicator.
    """
    raise NotImplementedError


def accumulated_step(
    ddp: Any,
    optimizer: Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    max_norm: float,
) -> float:
    """One step of the optimizer on several micro-batches, as if they were one batch, and those of all ranks too.

    What must hold:

        The step is that of the mean over all samples of all micro-batches of all ranks. Micro-batches have different
        sizes, and some ranks have more of them than others; one may be empty, and a rank may have none.

        What the gradients were before the call does not matter.

        The gradient is clipped to a 2-norm of max_norm, by `minigrad.optim.clip_grad_norm_`, as one device would clip
        that of the joint batch.

        The ranks exchange gradients once. A micro-batch goes through `ddp` by itself: all at once may be too much for
        the memory.

    Args:
        ddp: Made by `get_ddp_accumulating`: it has `no_sync()`, `finish()` and `module`.
        optimizer: Of the parameters of `ddp.module`.
        loss_fn: loss_fn(outputs, targets) is the mean over the samples that it gets; 0 where there are none.
        micro_batches: This rank's pairs of inputs and targets; `len(inputs)` is how many samples a pair has.
        max_norm: > 0.

    Returns:
        The norm of the gradient before it was clipped, a Python float: the same on all ranks.
    """
    raise NotImplementedError
