"""Our own: largest remainders in fractions, and shares that follow what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

_FOLLOWS = 0.3  # how much of its way to what was measured a share goes in a step, once there were a few


def divide_batch(batch_size: int, speeds: Sequence[float]) -> list[int]:
    """See task.py."""
    parts = [Fraction(speed) for speed in speeds]  # exact, so that equal ranks have equal remainders
    exact = [batch_size * part / sum(parts) for part in parts]
    sizes = [math.floor(part) for part in exact]
    ranks = sorted(range(len(sizes)), key=lambda rank: (sizes[rank] - exact[rank], -parts[rank], rank))
    for rank in ranks[: batch_size - sum(sizes)]:
        sizes[rank] += 1
    return sizes


def choose_shards(state: Any, batch_size: int, readings: Sequence[tuple[float, float]]) -> tuple[Any, list[int], str]:
    """See task.py.

    A share goes towards the speed that was measured, but only a part of the way, so that one odd step does little.
    The fixed cost needs no fit: with it a rank seems the faster the more samples it has, so the shares that are
    measured again and again are those at which all ranks take equally long.
    """
    world_size = len(readings)
    steps, shares = state if state else (0, [1.0 / world_size] * world_size)
    follows = max(_FOLLOWS, 1.0 / (steps + 1))  # at first the mean of all that was seen
    speeds = {rank: samples / seconds for rank, (samples, seconds) in enumerate(readings) if samples and seconds}
    known = sum(shares[rank] for rank in speeds)  # whoever was not measured keeps its share
    shares = list(shares)
    for rank, speed in speeds.items():
        shares[rank] += follows * (known * speed / sum(speeds.values()) - shares[rank])
    sizes = divide_batch(batch_size, shares)
    while batch_size >= world_size and 0 in sizes:
        sizes[sizes.index(max(sizes))] -= 1
        sizes[sizes.index(0)] += 1
    measured = ", ".join(f"{speed:.4g}" for speed in speeds.values())
    return [steps + 1, shares], sizes, f"{measured or 'no'} samples a second were measured"
