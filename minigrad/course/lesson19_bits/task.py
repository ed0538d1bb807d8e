"""Lesson 19: a sum and a loader that know logical shards, and not how many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed import Communicator

Part = tuple[int, Array, np.random.Generator]


def sum_in_one_order(comm: Communicator, parts: Sequence[Array]) -> Array:
    """The sum over all logical shards of a batch, with the same bits for any number of ranks.

    A batch has V logical shards, V a power of two; rank r of W brings shards r·V/W to (r + 1)·V/W - 1, in this order,
    and W divides V. The shards are added up in one balanced tree over all V of them, in their own dtype:

        ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))        for V = 8

    A rank can do the lower part of the tree by itself; the upper part is over the ranks. Do not leave that to
    `comm.all_reduce`: the order in which it adds is the communicator's own, and NCCL's depends on the number of ranks
    and of bytes. `comm.all_gather`, `send` and `recv` only move bytes.

    Args:
        comm: This rank's communicator.
        parts: V/W arrays of one shape, of at least one axis, and one dtype, float32 or float64. They stay as they are.

    Returns:
        A new array of the same shape and dtype: the same bits on all ranks, and for each W.

    Example:
        >>> from minigrad.distributed import run
        >>> shards = [np.full(2, value, np.float32) for value in (1e8, 1.0, -1e8, 1.0)]
        >>> def body(comm):
        ...     each = 4 // comm.world_size
        ...     return sum_in_one_order(comm, shards[comm.rank * each : (comm.rank + 1) * each]).tolist()
        >>> [run(body, world_size)[0] for world_size in (1, 2, 4)]  # doctest: +SKIP
        [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]
    """
    raise NotImplementedError


def portable_batches(
    length: int,
    batch_size: int,
    shards: int,
    rank: int,
    world_size: int,
    seed: int,
    epoch: int,
    first_step: int = 0,
) -> Iterator[list[Part]]:
    """Iterate over one epoch: what a rank computes on in each step, so that any number of ranks does the same in all.

    Each step takes batch_size samples; a last batch that would be shorter is left out. A batch is cut into logical
    shards of batch_size / shards samples, and rank r of world_size gets shards r·V/W to (r + 1)·V/W - 1, V = shards,
    W = world_size, in this order. Of each shard:

        The samples are those of that shard for any W. An epoch takes no sample twice. Another epoch, or another seed,
        has another order.
        The generator, from which the caller draws noise (for augmentation, for dropout), gives the same numbers for
        any W, and whatever was drawn from others before. Each (seed, epoch, step, shard) has noise of its own.

    Nothing is drawn from np.random's own state, which others may have used, and it is left as it is.

    Args:
        length: Of the data set.
        batch_size: Samples of a step over all ranks; shards divides it.
        shards: V, a power of two, which W divides.
        rank, world_size: This rank, and how many there are.
        seed, epoch: >= 0, below 2**32.
        first_step: Where to go on after a restart: the steps before are left out, those from there on are as ever.

    Yields:
        For each step a list of (shard, indices, generator): the number of the shard, 0 <= shard < V; its samples as
        int64 (batch_size / shards,); a np.random.Generator.

    Example:
        >>> steps = list(portable_batches(20, 8, 4, 1, 2, seed=0, epoch=3))  # doctest: +SKIP
        >>> len(steps), [shard for shard, _, _ in steps[0]], len(steps[0][0][1])  # doctest: +SKIP
        (2, [2, 3], 2)
    """
    raise NotImplementedError
