"""Where in an epoch's order the batches of samplers and loaders lie, for a ledger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minigrad.data.audit import intervals_of
from minigrad.data.loader import DataLoader
from minigrad.data.order import Indices, shard
from minigrad.data.sampler import BatchSampler, DistributedSampler, EpochSampler
from minigrad.errors import ArgumentError


class Strided(NamedTuple):
    """Places of an epoch's order: start, start + stride, ..., so many."""

    start: int
    samples: int
    stride: int


def sampler_of(batches: Any) -> EpochSampler | None:
    """The sampler of a `BatchSampler`, where it counts epochs; None of anything else."""
    sampler = batches.sampler if type(batches) is BatchSampler else None
    return sampler if isinstance(sampler, EpochSampler) else None


def length_of(sampler: EpochSampler) -> int:
    """The places of the order that a sampler takes, or divides among ranks."""
    return sampler.length if isinstance(sampler, DistributedSampler) else sampler.longest


def delivered(who: str, batches: Any, length: int) -> Iterator[tuple[Any, int, list[Strided]]]:
    """Each batch of a loader or a `BatchSampler`, with the epoch and its places of that one's order.

    Args:
        length: Of the order, as who keeps the account has it.

    Raises:
        ArgumentError: they are of no sampler that counts epochs, or of an order of another length.
    """
    is_loader = isinstance(batches, DataLoader)
    indices = batches.batch_sampler if is_loader else batches
    sampler = sampler_of(indices)
    if sampler is None:
        raise ArgumentError(
            f"{who}: expected a DataLoader or a BatchSampler over a sampler of minigrad.data, got "
            f"{type(batches).__name__}: tell where each batch lies by dealt(start, count)"
        )
    if length_of(sampler) != length:
        raise ArgumentError(f"{who}: expected a sampler of {length} samples, got one of {length_of(sampler)}")
    epoch, first, size = sampler.epoch, 0, indices.batch_size
    own = _shares_of(sampler)
    given = iter(batches)
    if is_loader:  # it may go on in mid-epoch
        state = batches.state_dict()
        epoch, first = state["sampler"]["sampler"]["epoch"], state["delivered"]
    return _with_places(given, epoch, first, size, sampler, own)


def _with_places(
    given: Iterator[Any], epoch: int, first: int, size: int, sampler: EpochSampler, own: Indices | None
) -> Iterator[tuple[Any, int, list[Strided]]]:
    for number, batch in enumerate(given, first):
        start, stop = number * size, min((number + 1) * size, len(sampler))
        if own is not None:
            yield batch, epoch, [Strided(a, b - a, 1) for a, b in intervals_of(own[start:stop])]
        elif isinstance(sampler, DistributedSampler):
            yield batch, epoch, [Strided(sampler.rank + start * sampler.world_size, stop - start, sampler.world_size)]
        else:
            yield batch, epoch, [Strided(start, stop - start, 1)]


def _shares_of(sampler: EpochSampler) -> Indices | None:
    """The places of a rank with a share of its own, which are no regular pattern; None for others."""
    if not isinstance(sampler, DistributedSampler) or sampler.shares is None:
        return None
    places = shard(sampler.length, sampler.rank, sampler.world_size, sampler.mode, sampler.shares)
    return places.astype(np.int64, copy=False)
