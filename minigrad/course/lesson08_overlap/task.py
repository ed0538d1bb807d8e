"""What you write: a wrapper whose buckets travel while backward runs."""

from __future__ import annotations

from typing import Any

from minigrad import nn
from minigrad.distributed import Communicator


def get_ddp_overlapped(module: nn.Module, comm: Communicator, *, bucket_cap_bytes: int = 25 * 1024 * 1024) -> Any:
    """Make a wrapper whose buckets travel while backward still runs.

    It returns an object `ddp` of a class that you write, which is used like this on every rank:

        ddp = get_ddp_overlapped(module, comm, bucket_cap_bytes=70_000)
        for x, target in batches:
            for param in module.parameters():
                param.grad = None
            loss = loss_of(ddp(x), target)      # the mean over this rank's own samples
            loss.backward()                     # buckets are launched in here
            ddp.finish()                        # waits for all of them
            optimizer.step()

    - `ddp(*inputs)` returns what `module(*inputs)` returns. This rank has n = len(inputs[0]) samples; n may be another
      on each rank, another in each step, and 0 on some.
    - After `ddp.finish()` every parameter that requires grad has in `.grad` the gradient of the mean over the samples
      of all ranks, Σ nᵣ·gᵣ / Σ nᵣ, the same on every rank. A rank with n = 0 counts nothing, even where its gradients
      are NaN, which a mean over no samples gives.
    - When it is made, all parameters and buffers of all ranks become those of rank 0, in the arrays that they are in.
    - Gradients travel in buckets of at most bucket_cap_bytes, or of one single gradient, cut from the last parameter to
      the first as in lesson 7, the first no smaller than the others. There is one dtype, float32 or float64, and one
      device, the CPU. A bucket travels in that dtype.
    - A bucket is launched inside `loss.backward()`, as soon as its last gradient is complete and all buckets of lower
      index are launched. So all ranks launch in one order, whatever the order in which their gradients are complete.
      Inside forward and backward nobody waits.
    - Per step a rank makes at most one all-reduce for the sum of n, and one for each bucket: no other call. A forward
      under `minigrad.no_grad()`, which no backward follows, makes none: one rank may evaluate alone.
    - Each backward reaches all parameters that require grad (lesson 10 is about others). One may be used several times,
      or have two names. Except in evaluation there is one backward for each forward.

    What minigrad has for it:

        module.parameters()             the parameters, in order of registration, each once; module.buffers() has
                                        tensors too, with a .data
        param.requires_grad, param.shape, param.numel()
        param.data                      its values, a NumPy array; param.data.nbytes
        param.grad                      None, or a Tensor; param.grad.data is a NumPy array of the parameter's shape
                                        and dtype: write into it by `param.grad.data[...] = values`
        param.register_post_accumulate_grad_hook(f)
                                        f(param) is called in every backward, once, when that gradient is complete
        minigrad.is_grad_enabled()      False under `minigrad.no_grad()`
        comm.rank, comm.world_size
        comm.empty(1, "float64")        an array of zeros, where the communicator's arrays are: np.zeros(1) on the CPU
        comm.broadcast(array).wait()    overwrites array by that of rank 0
        work = comm.all_reduce(array)   begins to overwrite a contiguous NumPy array by its sum over the ranks, and
                                        returns at once; leave the array alone until work.wait() has returned. The k-th
                                        call of a rank meets the k-th of each other: of the same size and dtype
        work.wait()                     returns when the sums are in the array

    Args:
        module: The model of this rank.
        comm: The ranks.
        bucket_cap_bytes: Largest bucket, > 0.

    Returns:
        The wrapper: to be called, and with a method `finish()`.
    """
    raise NotImplementedError
