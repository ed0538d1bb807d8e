"""How gradients are combined: one rule for every way to train on several ranks, and its plainest form.

Each rank's loss is the mean over its own samples. With n_r the samples of rank r and g_r its gradient,

    Σ n_r·g_r / Σ n_r  over all ranks

is exactly the gradient of the mean over all samples of all ranks, whatever each rank's part of the batch is. On every
rank alike:

    plan    cut the flat gradient, which holds those of all parameters one after the other, into buckets
    count   exchange n_r, and who has a gradient of what; a rank with n_r = 0 needs none
    fill    what this rank lacks is zero, if n_r = 0 or the caller allows it; else an error
    scale   a bucket by n_r / Σn
    reduce  add it up over the ranks: one collective a bucket, and all are under way before the first is waited for
    adopt   what lies in the buckets now are the parameters' gradients

`average_gradients` does this between backward and step, in the order above. `DistributedDataParallel` does it while
backward still runs: a bucket goes out as soon as its last gradient is complete. `Replicas` does it in one thread,
for several replicas.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minigrad.arguments import as_samples
from minigrad.backend.device import device_of, to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.distributed.ddp.agreement import present
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.buckets import BucketPlan, plan_buckets
from minigrad.distributed.ddp.layout import Layout
from minigrad.distributed.ddp.refusals import check_to_average
from minigrad.nn.flat import adopt_gradients
from minigrad.nn.parameter import Parameter, distinct_parameters


def average_gradients(params: Iterable[Parameter], comm: Communicator, n: float) -> None:
    """Replace each gradient by Σ n_r·g_r / Σ n_r over the ranks, as DistributedDataParallel does in backward.

    Call it after backward and before the step, on all ranks alike. Nothing of it overlaps with backward. A gradient
    that no rank has stays None.

    Args:
        params: In the same order on all ranks; frozen ones are left alone. They get a flat layout if they have none.
        n: What this rank's loss is a mean over, samples as a rule; finite and >= 0. A rank with n = 0 adds nothing,
            and needs no gradients. Where all have n = 0, gradients stay as they are.

    Raises:
        ArgumentError: n is no such number, params no iterable or empty, comm no communicator. DtypeError: params holds
            something else.
        ReplicaMismatchError: optimizers, schedules or loss scales differ between ranks; on all of them.
        UnreducedGradientError: a rank with n > 0 has no gradient where another has one; on all ranks.
        CollectiveMismatchError: the ranks' parameters differ in number or size.

    Example:
        >>> from minigrad import nn, randn
        >>> from minigrad.distributed import SoloCommunicator, average_gradients
        >>> model = nn.Linear(3, 1)
        >>> model(randn(4, 3)).mean().backward()
        >>> average_gradients(model.parameters(), SoloCommunicator(), 4)
    """
    samples = as_samples("average_gradients", n)
    check_is_communicator("average_gradients", comm)
    unique = distinct_parameters("average_gradients", params)
    check_to_average("average_gradients", unique)
    # A layout knows where gradients lie. Alike sums up this rank's optimizers and the like in one number, its mark.
    layout = Layout([(param.name or f"number {i}", param) for i, param in enumerate(unique)])
    layout.check()
    plan, alike = plan_buckets(layout.entries()), Alike(layout)
    counts, marks, used = _count(layout, plan, comm, samples, alike.mark())
    alike.check("average_gradients", comm, marks, idle=not samples)
    total = float(counts.sum())
    works = []
    for bucket in plan.buckets:
        if used.isdisjoint(bucket.entries):
            continue
        gradients = layout.filled(bucket)
        if total > 0.0:
            weight = as_weight(gradients, weight_of(samples, total))
            works.append(comm.weighted_all_reduce(gradients, weight, f"{plan.id} bucket {bucket.index}"))
    for work in works:
        work.wait()
    adopt_gradients([layout.params[i] for i in used])


def _count(
    layout: Layout, plan: BucketPlan, comm: Communicator, samples: float, mark: float
) -> tuple[Array, list[float], set[int]]:
    """The samples and marks of all ranks, and which of the planned parameters have a gradient on any of them."""
    numbers = [i for bucket in plan.buckets for i in bucket.entries]
    row = np.array([samples, mark, *(layout.params[i].grad_array is not None for i in numbers)], np.float64)
    with comm.device.current() as xp:
        gathered = xp.empty(comm.world_size * row.size, np.float64)
        comm.all_gather(gathered, xp.asarray(row)).wait()
    table = to_host(gathered).reshape(comm.world_size, row.size)
    counts, has = table[:, 0], dict(zip(numbers, table.T[2:].tolist()))
    used = present(f"rank {comm.rank}: average_gradients", layout.names, counts, has)
    return counts, table[:, 1].tolist(), used


def weight_of(samples: float, total: float) -> float:
    """n_r / Σn; 0 where no rank has a sample."""
    return samples / total if total else 0.0


def as_weight(gradients: Array, weight: float) -> Array | None:
    """A weight as collectives take it: float64 (1,) where the gradients live, or None for 1."""
    if weight == 1.0:
        return None
    with device_of(gradients).current() as xp:
        return xp.full(1, weight, np.float64)
