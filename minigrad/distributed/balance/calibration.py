"""Shards of the first steps, which show each rank at more than one size. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minigrad.arguments import as_integer
from minigrad.data.plan import Shares
from minigrad.distributed.balance.shares import compute_shard_sizes

_FRACTION = 0.125  # by how much shards differ from those of the shares in every second step


def calibration_sizes(
    batch_size: int,
    ratios: Shares,
    step: int,
    *,
    caps: Sequence[int | None] | None = None,
    granularity: int = 1,
) -> tuple[int, ...]:
    """The shards of a step of calibration: those of the shares in even steps, an eighth more or less in odd ones.

    Fixed and per-sample cost can't be told apart at one size. Who gets more and who less goes round the ranks; with
    an odd number of them one is left out at a time. The change is at least a granule, so that small shards change too.

    Args:
        step: From 0.

    Example:
        >>> [calibration_sizes(32, [0.5, 0.5], step) for step in range(4)]
        [(16, 16), (18, 14), (16, 16), (14, 18)]
    """
    as_integer("calibration_sizes", "step", step, 0)
    base = compute_shard_sizes(batch_size, ratios, caps=caps, granularity=granularity)
    if step % 2 == 0:
        return base
    wanted = [
        float(ratio) * (1.0 + _sign(rank + step // 2, len(base)) * _change(size, granularity))
        for rank, (ratio, size) in enumerate(zip(ratios, base))
    ]
    total = math.fsum(wanted)
    return compute_shard_sizes(
        batch_size, [share / total for share in wanted], caps=caps, granularity=granularity
    )


def _sign(place: int, world_size: int) -> int:
    """1 and -1 in turn; 0 for the last of an odd number."""
    place %= world_size
    if place == world_size - 1 and world_size % 2:
        return 0
    return -1 if place % 2 else 1


def _change(size: int, granularity: int) -> float:
    return max(_FRACTION, granularity / size) if size >= 2 * granularity else _FRACTION
