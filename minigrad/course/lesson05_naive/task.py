"""Lesson 5: data-parallel training in its plainest form, and what it costs."""

from __future__ import annotations

from typing import Any

from minigrad.distributed import Communicator
from minigrad.nn import Module


def get_ddp_naive(module: Module, comm: Communicator) -> Any:
    """Wrap a module so that its gradients are those of the joint batch of all ranks.

    Returns an object `ddp` that a rank uses like this:

        ddp = get_ddp_naive(module, comm)
        loss = loss_fn(ddp(inputs), targets)     # a mean over the samples of this rank
        loss.backward()
        ddp.finish()
        optimizer.step()

    What must hold:

        When get_ddp_naive returns, all parameters and all buffers of all ranks are those of rank 0, bit for bit, in the
        same arrays as before: an optimizer may know them already.

        `ddp(*inputs)` returns `module(*inputs)`, and notes n, the number of samples of this rank: the length of the
        first input.

        After `ddp.finish()` the gradient of each trainable parameter is, on every rank, the sum over the ranks of
        n_r·g_r, divided by the sum of all n_r: the gradient of the mean over all samples of all ranks.

        A rank may have no samples in a step. It then calls `ddp` with an empty batch, or does not call it at all:
        n = 0, whatever n was in the step before, and gradients may be None. It calls `finish` as all others do, and
        then has the gradients that the others have. Where no rank has any, do not divide by Σ n_r, which is 0.

        `finish` makes one `comm.all_reduce` for each trainable parameter, in the order of `module.parameters()`, and
        one more for n, of one float64. (That this is not the best way is what you will see.)

        A gradient keeps its parameter's dtype. In float16 40000 + 40000 is infinite, the mean of both is not: weight
        before you add.

        A parameter with requires_grad = False is broadcast, but not reduced, and its gradient stays None.

    Use `comm.broadcast(array, 0).wait()` and `comm.all_reduce(array).wait()`, which change an array in place. `p.data`
    and `p.grad.data` are arrays. Change them in place too. Where there is no gradient assign one,
    `p.grad = minigrad.Tensor(array)`; this copies `array`, as `p.grad.data = array` does, and what you do to `array`
    afterwards is lost.

    Args:
        module: This rank's replica.
        comm: This rank's communicator.
    """
    raise NotImplementedError


def latency_bill_s(
    parameters: int, nbytes: int, latency_s: float, bandwidth_bytes_s: float, world_size: int
) -> tuple[float, float]:
    """What the communication of one step of `get_ddp_naive` takes: what is paid for messages, and what for bytes.

    Each all_reduce of m bytes goes round a ring of W ranks (lesson 3): 2 (W - 1) messages of m / W bytes, each of which
    takes latency_s + (m / W) / bandwidth_bytes_s. Nothing of it is hidden behind the backward.

    Args:
        parameters: How many trainable parameters there are: a `Linear` has two.
        nbytes: Of the gradients of all of them together.
        latency_s, bandwidth_bytes_s: Of the link.
        world_size: W >= 1.

    Returns:
        (seconds for messages, seconds for bytes), of all all_reduces of the step: also of the 8 bytes that say how many
        samples a rank has.
    """
    raise NotImplementedError
