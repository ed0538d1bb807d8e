"""What becomes of a module's buffers where parameters are averaged over ranks.

Running statistics of batch norm are those of each rank's own samples. Over all of them they are a mixture:

    mean = Σ w_r·mean_r;    var = Σ w_r·(var_r + (mean_r - mean)²);    w_r = n_r / Σ n

so with mean 0 and variance 1 on one rank, 10 and 1 on another, and equal weights: 5 and 26, where a mean of variances
would say 1. running_var is an average of unbiased variances of batches: an estimate of the variance of all that the
rank draws its samples from, and no sum of squares over a known number of them. So it is merged as a variance, without
n - 1; of one batch a rank it differs from the unbiased variance of all together by what 1/N is, N its values a channel.
num_batches_tracked becomes the largest of the ranks: what a module that averages all batches equally (momentum=None)
divides by, as if the ranks' i-th batches had been one. With SyncBatchNorm ranks agree already, and still do.

Instance norm's running variance is the mean of variances within a sample, by its definition: it becomes the weighted
mean, as every other buffer of floats does. Other integers have no mean: see `average_buffers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from minigrad.arguments import check_choice
from minigrad.backend.device import Device, device_of, to_host
from minigrad.backend.dtypes import Array, is_float
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.errors import DtypeError, ReplicaMismatchError
from minigrad.nn.module import Module
from minigrad.nn.norm import BatchNorm, TrackingNorm
from minigrad.nn.parameter import Buffer
from minigrad.nn.state import overwrite
from minigrad.ops.statistics import merge_moments

IntegerBuffers = Literal["compare", "keep", "refuse"]
INTEGER_BUFFERS = ("compare", "keep", "refuse")


class BufferKinds(NamedTuple):
    """The buffers of a module, each once, by what becomes of them.

    Attributes:
        means, variances: Running statistics of batch norms, layer by layer.
        counters: num_batches_tracked.
        floats: All others of a float dtype.
        integers: All others, with their names.
    """

    means: list[Buffer]
    variances: list[Buffer]
    counters: list[Buffer]
    floats: list[Buffer]
    integers: list[tuple[str, Buffer]]


def buffer_kinds(module: Module) -> BufferKinds:
    """The buffers that a module has now, in order of registration."""
    found, seen = BufferKinds([], [], [], [], []), set[int]()
    for layer in module.modules():
        if isinstance(layer, TrackingNorm):
            mean, variance, counter = layer.running_mean, layer.running_var, layer.num_batches_tracked
            if isinstance(layer, BatchNorm) and mean is not None and variance is not None and id(mean) not in seen:
                found.means.append(mean)
                found.variances.append(variance)
                seen |= {id(mean), id(variance)}
            if counter is not None and id(counter) not in seen:
                found.counters.append(counter)
                seen.add(id(counter))
    for name, buffer in module.named_buffers():
        if id(buffer) not in seen:
            if is_float(buffer.dtype):
                found.floats.append(buffer)
            else:
                found.integers.append((name, buffer))
    return found


def average_buffers(
    who: str, module: Module, comm: Communicator, samples: float, total: Array, integers: IntegerBuffers = "compare"
) -> None:
    """Replace the buffers of a module by those of all ranks together; all ranks call it at one place.

    Args:
        who: For messages.
        samples: n_r, what this rank's buffers weigh; with 0 they give nothing, not even NaN.
        total: Σn as float64 (1,) where the communicator's arrays live. Where it is 0 all stay as they are.
        integers: What becomes of those that count no batches. "compare": they have to be alike, as masks and indices
            are; that waits for the device. "keep": each rank's stay as they are. "refuse": there may be none.

    Raises:
        ReplicaMismatchError: integers that differ, on all ranks; it names the first.
        DtypeError: integers that are refused.

    Example:
        >>> from minigrad import distributed, nn
        >>> def body(comm):
        ...     norm = nn.BatchNorm1d(1)
        ...     norm.running_mean.fill_(10.0 * comm.rank)
        ...     average_buffers("averaged", norm, comm, samples=4, total=np.full(1, 8.0))
        ...     return norm.running_mean.item(), norm.running_var.item()
        >>> distributed.run(body, 2)
        [(5.0, 26.0), (5.0, 26.0)]
    """
    check_choice(who, INTEGER_BUFFERS, integer_buffers=integers)
    kinds = buffer_kinds(module)
    if integers == "refuse" and kinds.integers:
        raise DtypeError(
            f'{who}: expected buffers of a float dtype with integer_buffers="refuse", got {kinds.integers[0][0]} of '
            f"{kinds.integers[0][1].dtype.name}"
        )
    if integers == "compare" and kinds.integers:
        _compare(who, comm, kinds.integers)
    if kinds.means:
        _merge_statistics(comm, kinds.means, kinds.variances, samples, total)
    for group in _groups(kinds.floats):
        own = _packed(group)
        values = own.copy()
        comm.weighted_all_reduce(values, weight_of(samples, total)).wait()
        _unpack(values, own, total, group)
    if kinds.counters:
        own = _packed(kinds.counters)
        values = own.copy()
        comm.all_reduce(values, ReduceOp.MAX).wait()
        _unpack(values, own, total, kinds.counters)


def weight_of(samples: float, total: Array) -> Array:
    """n_r / Σn as collectives take it, where the total lies; 0 where no rank has a sample."""
    with device_of(total).current() as xp:
        return samples / xp.where(total > 0.0, total, 1.0)


def _merge_statistics(
    comm: Communicator, means: Sequence[Buffer], variances: Sequence[Buffer], samples: float, total: Array
) -> None:
    own = [_packed(each).astype(np.float64) for each in (means, variances)]
    with comm.device.current() as xp:
        row = xp.zeros(1 + 2 * own[0].size, np.float64)
        if samples:
            weight = weight_of(samples, total)
            xp.concatenate([weight, own[0], own[1] * weight], out=row)
        rows = xp.empty(comm.world_size * row.size, np.float64)
        comm.all_gather(rows, row).wait()
        count, mean, squares = merge_moments(rows.reshape(comm.world_size, row.size))
        variance = squares / xp.where(count > 0.0, count, 1.0)
    _unpack(mean, own[0], total, means)
    _unpack(variance, own[1], total, variances)


def _compare(who: str, comm: Communicator, named: Sequence[tuple[str, Buffer]]) -> None:
    with comm.device.current() as xp:
        mine = xp.stack([fingerprint(buffer.data) for _, buffer in named])
        rows = xp.empty(comm.world_size * mine.size, mine.dtype)
        comm.all_gather(rows, mine).wait(host=True)
        table = to_host(rows).reshape(comm.world_size, mine.size)
    for number, (name, _) in enumerate(named):
        for rank, other in enumerate(table[:, number].tolist()):
            if other != table[0, number]:
                raise ReplicaMismatchError(
                    f"rank {comm.rank}: {who}: expected equal integer buffers on all ranks, got another {name} on rank "
                    f'{rank} than on rank 0: make them alike, or let each rank keep its own by integer_buffers="keep"'
                )


def _groups(buffers: Iterable[Buffer]) -> list[list[Buffer]]:
    """Those of one device and dtype together."""
    groups: dict[tuple[Device, np.dtype[np.generic]], list[Buffer]] = {}
    for buffer in buffers:
        groups.setdefault((buffer.device, buffer.dtype), []).append(buffer)
    return list(groups.values())


def _packed(buffers: Sequence[Buffer]) -> Array:
    """Copies of all values, one after the other."""
    with buffers[0].device.current() as xp:
        return xp.concatenate([buffer.data.reshape(-1) for buffer in buffers])


def _unpack(values: Array, own: Array, total: Array, buffers: Sequence[Buffer]) -> None:
    """Overwrite buffers by values in the order of `_packed`, rounded to their dtype; by their own where Σn is 0."""
    start = 0
    with device_of(total).current() as xp:
        values = xp.where(total > 0.0, values, own)
    for buffer in buffers:
        overwrite(buffer, values[start : start + buffer.numel()].reshape(buffer.shape))
        start += buffer.numel()
