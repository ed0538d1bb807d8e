"""average_gradients: the gradients of one rank combined with the others', as a plain function call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minigrad.arguments import as_samples
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.base import Communicator, check_communicator, weighted_all_reduce
from minigrad.distributed.ddp.alike import Alike
from minigrad.distributed.ddp.buckets import plan_buckets
from minigrad.distributed.ddp.layout import Layout, adopt, fill_missing
from minigrad.distributed.ddp.nesting import check_complete
from minigrad.distributed.ddp.weights import as_weight, weight_of
from minigrad.errors import UnreducedGradientError
from minigrad.nn.flat import flatten
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
    check_communicator("average_gradients", comm)
    unique = distinct_parameters("average_gradients", params)
    check_complete("average_gradients", unique)
    flatten(unique)
    layout = Layout([(param.name or f"number {i}", param) for i, param in enumerate(unique)])
    layout.check()
    plan = plan_buckets(layout.entries())
    alike, numbers = Alike(layout), [i for bucket in plan.buckets for i in bucket.entries]
    counts, marks, used = _presence(layout, numbers, comm, samples, alike.mark())
    alike.check("average_gradients", comm, marks, idle=not samples)
    total = float(counts.sum())
    works = []
    for bucket in plan.buckets:
        if used.isdisjoint(bucket.entries):
            continue
        gradients = layout.gradients(bucket)
        fill_missing(layout.params_of(bucket))
        if total > 0.0:
            weight = as_weight(gradients, weight_of(samples, total))
            works.append(weighted_all_reduce(comm, gradients, weight, f"{plan.id} bucket {bucket.index}"))
    for work in works:
        work.wait()
    for i in used:
        adopt(layout.params[i])


def _presence(
    layout: Layout, numbers: Sequence[int], comm: Communicator, samples: float, mark: float
) -> tuple[Array, list[float], set[int]]:
    """The samples and marks of all ranks, and which of these parameters have a gradient on any of them."""
    row = np.array([samples, mark, *(layout.params[i].grad_array is not None for i in numbers)], np.float64)
    with comm.device.current() as xp:
        gathered = xp.empty(comm.world_size * row.size, np.float64)
        comm.all_gather(gathered, xp.asarray(row)).wait()
    table = to_host(gathered).reshape(comm.world_size, row.size)
    counts, used = table[:, 0], set()
    for i, column in zip(numbers, table.T[2:]):
        if not column.any():
            continue
        used.add(i)
        lacking = [str(rank) for rank in range(comm.world_size) if counts[rank] > 0 and not column[rank]]
        if lacking:
            raise UnreducedGradientError(
                f"rank {comm.rank}: average_gradients: expected a gradient of parameter {layout.names[i]} on every "
                f"rank that counts, got none on rank {', '.join(lacking)}: use it in the loss there, or pass n=0"
            )
    return counts, table[:, 1].tolist(), used
