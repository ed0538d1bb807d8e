"""Bitwise mode: the same bits on 1, 2 or 4 ranks, by fixing the shards rather than the ranks.

A batch is cut into V logical shards, a power of two, whatever the number of ranks; each rank computes V / W
consecutive ones, one after the other. A shard's gradient is scaled by n_v / Σn, and the shards are added up in one
balanced tree: a rank adds its own shards, the communicator goes on over the ranks in the same order. The bits are
those of W = 1 for every W that divides V, where

- the communicator adds in pairwise order: threads and shm;
- every rank has the same kind of processor and the same BLAS, with one thread (a matrix product is then a function
  of its operands alone; with more threads it is not);
- the ranks have the same seed: each shard has a noise stream of its own, see `shard_noise`. Where shards have drawn
  noise, the pass refuses ranks with other seeds;
- what a shard computes depends on this shard and the parameters only: BatchNorm normalises each shard by itself, and
  its running statistics, which see the shards of one rank one after the other, are not part of the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_samples
from minigrad.backend.device import array_module, device_of
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.grad_scale import scale_
from minigrad.backend.random import current_seed, shard_noise, shards_have_drawn
from minigrad.distributed.collectives import pairwise
from minigrad.distributed.ddp.combine import as_weight
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.distributed.ddp.refusals import unreduced
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ReplicaMismatchError
from minigrad.kept import keep_given
from minigrad.nn.flat import adopt_gradients, fill_missing
from minigrad.nn.watch import watching_calls
from minigrad.tensor import Tensor

_WHO = "backward_shards"


class ShardedBackward:
    """The bitwise mode of one wrapper; see `DistributedDataParallel.backward_shards`.

    Args:
        reducer: Whose gradients, buckets and weights it uses.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer, self._comm, self._layout = reducer, reducer.comm, reducer.layout
        self._levels: list[list[Array]] = []  # sums of 1, 2, 4 .. shards that wait for their partner, by bucket
        self._plan_id = ""

    def run(
        self, loss_fn: Callable[..., Tensor], shards: Sequence[Any], counts: Sequence[float] | None, batch_dim: int
    ) -> float:
        """Compute and combine the gradients of all shards; the mean loss over them. Their device is current."""
        reducer = self._reducer
        with reducer.hosting(_WHO):
            self._check_start()
            numbers = _counts(shards, counts, batch_dim)
            total = self._agree(numbers)
            reducer.prepare()
            arrays = [self._layout.gradients(bucket) for bucket in reducer.buckets.plan.buckets]
            self._make_levels(arrays, len(shards))
            losses = self._run_shards(loss_fn, shards, numbers, total, arrays)
        first = self._comm.rank * len(shards)
        if shards_have_drawn(range(first, first + len(shards))):
            reducer.alike.set_option("the seed, of which shards draw noise,", current_seed())
        loss = self._comm.device.xp.array([pairwise(losses, _add)])
        summing = self._comm.all_reduce(loss)
        reducer.combine(_WHO, weighted=True, samples=pairwise([[n] for n in numbers], _add)[0])
        summing.wait(host=True)
        return float(loss[0, 0]) if total else float("nan")

    # ------------------------------------------------------------------------------------------------- the start

    def _check_start(self) -> None:
        reducer = self._reducer
        who = f"rank {self._comm.rank}: {_WHO}"
        if reducer.hook is not None:
            raise ArgumentError(f"{who}: expected no comm hook, which adds up in an order of its own, got one")
        if reducer.in_order:
            raise ArgumentError(
                f"{who}: expected no SyncBatchNorm or distributed.nn.all_gather, which make shards depend on each "
                "other, got one"
            )
        if not reducer.syncing:
            raise ArgumentError(f"{who}: expected no no_sync() around it, and sync='auto', since it combines at once")
        if reducer.own.said is not None:
            raise ArgumentError(f"{who}: expected counts=[...] for other counts than rows, got samples() around it")
        if any(param.grad_array is not None for param in self._layout.params):
            raise AutogradError(f"{who}: expected no gradients yet, got some: call zero_grad(set_to_none=True) first")

    def _agree(self, numbers: list[float]) -> float:
        """The samples of all ranks, once it is sure that the shards fit the ranks."""
        comm = self._comm
        xp = comm.device.xp
        mine = xp.array([float(len(numbers)), pairwise([[n] for n in numbers] or [[0.0]], _add)[0]])
        everyone = xp.empty(2 * comm.world_size, np.float64)
        comm.all_gather(everyone, mine).wait(host=True)
        lengths, samples = [int(n) for n in everyone[0::2].tolist()], everyone[1::2].tolist()
        whole = sum(lengths)
        if len(set(lengths)) > 1 or whole == 0 or whole & (whole - 1):
            raise ReplicaMismatchError(
                f"rank {comm.rank}: {_WHO}: expected the same number of shards on each of {comm.world_size} ranks, "
                f"a power of two in all, got {lengths}"
            )
        return float(pairwise([[n] for n in samples], _add)[0])

    def _make_levels(self, arrays: list[Array], shards: int) -> None:
        reducer = self._reducer
        narrow = {a.dtype.name for a in arrays if a.dtype.itemsize < 4}
        if narrow:
            raise DtypeError(
                f"rank {self._comm.rank}: {_WHO}: expected float32 or float64 parameters, got {narrow.pop()}: sums "
                "of 16-bit numbers are rounded once a rank, so their bits depend on the number of ranks"
            )
        needed = shards.bit_length() - 1
        if self._plan_id != reducer.buckets.plan.id or len(self._levels) < needed:
            self._levels = [[array_module(a).empty_like(a) for a in arrays] for _ in range(needed)]
            self._plan_id = reducer.buckets.plan.id

    # ------------------------------------------------------------------------------------------------- the shards

    def _run_shards(
        self,
        loss_fn: Callable[..., Tensor],
        shards: Sequence[Any],
        numbers: list[float],
        total: float,
        arrays: list[Array],
    ) -> list[list[float]]:
        """Leave the weighted sum over this rank's shards in the gradients; their weighted losses."""
        reducer = self._reducer
        reached: set[int] = set()
        losses = []
        with reducer.quiet(samples=0.0):  # the pass that follows counts them, all at once
            for i, (shard, number) in enumerate(zip(shards, numbers)):
                weight = number / total if reducer.own.mean and number else float(number > 0.0)
                loss = self._run_shard(loss_fn, shard, self._comm.rank * len(shards) + i, number) if number else 0.0
                losses.append([weight * loss])
                reached |= self._take_gradients(arrays, weight, i, strict=number > 0.0)
                self._fold(arrays, i, last=i + 1 == len(shards))
        adopt_gradients(self._layout.params[i] for i in reached)
        return losses

    def _run_shard(self, loss_fn: Callable[..., Tensor], shard: Any, which: int, number: float) -> float:
        clock = self._comm.clock
        began_s = clock.now_s()
        clock.compute(number)
        self._reducer.stats.forward_s += clock.now_s() - began_s  # in a simulation it has passed, and elsewhere comes
        with shard_noise(which), watching_calls(None):  # this shard's calls have been charged
            loss = loss_fn(*shard) if isinstance(shard, (tuple, list)) else loss_fn(shard)
            if not isinstance(loss, Tensor):
                raise ArgumentError(f"{_WHO}: expected loss_fn to return a tensor, got {type(loss).__name__}")
            loss.backward()
        return float(loss.item())

    def _take_gradients(self, arrays: list[Array], weight: float, i: int, strict: bool) -> set[int]:
        """Scale the gradients of a shard where they lie, and forget that they are there; who had one."""
        reducer = self._reducer
        params = self._layout.params
        placed = [j for bucket in reducer.buckets.plan.buckets for j in bucket.entries]
        missing = [j for j in placed if params[j].grad_array is None]
        if missing and strict and not reducer.options.find_unused:
            who = f"rank {self._comm.rank}: {_WHO}: shard {i} of this rank"
            raise unreduced(who, reducer.buckets.plan, missing)
        fill_missing([params[j] for j in missing])
        for j in placed:
            if params[j].grad_given is not None:
                keep_given(params[j])
        for array in arrays:
            _scale(array, weight)
        for j in placed:
            params[j].grad_array = None
        return set(placed) - set(missing)

    def _fold(self, arrays: list[Array], i: int, last: bool) -> None:
        """Add shard i, which lies in the gradients, to the sums that wait for it, as a carry runs through a counter.

        The tree is that of `collectives.pairwise`, with log2(shards) sums kept instead of all gradients.
        """
        carries = (~i & (i + 1)).bit_length() - 1  # trailing ones of i
        for level in self._levels[:carries]:
            for array, waiting in zip(arrays, level):
                array += waiting
        if not last:
            for array, place in zip(arrays, self._levels[carries]):
                place[...] = array


def _scale(gradients: Array, weight: float) -> None:
    """Scale gradients, 1-D, in place. A weight of 0 leaves zeros, whatever was there: 0 · NaN would be NaN."""
    factor = as_weight(gradients, weight)
    if factor is not None:
        with device_of(gradients).current():
            scale_(gradients, factor)


def _add(into: list[float], other: list[float]) -> None:
    into[0] += other[0]


def _counts(shards: Sequence[Any], counts: Sequence[float] | None, batch_dim: int) -> list[float]:
    """The samples of each shard: as given, or the length of its first tensor."""
    if counts is None:
        return [_length(shard, i, batch_dim) for i, shard in enumerate(shards)]
    if len(counts) != len(shards):
        raise ArgumentError(f"{_WHO}: expected a count for each of {len(shards)} shards, got {len(counts)}")
    return [as_samples(_WHO, count) for count in counts]


def _length(shard: Any, i: int, batch_dim: int) -> float:
    values = shard if isinstance(shard, (tuple, list)) else (shard,)
    first = next((value for value in values if isinstance(value, Tensor)), None)
    if first is None or not -first.ndim <= batch_dim < first.ndim:
        got = "none" if first is None else f"shape {first.shape}"
        raise ArgumentError(f"{_WHO}: expected a tensor with axis batch_dim={batch_dim} in shard {i}, got {got}")
    return float(first.shape[batch_dim])
