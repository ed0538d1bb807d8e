"""Ranks with known costs, to balance against: no thread, no number of a model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minigrad.distributed.balance import Balance, BalanceConfig, CostModel, Reading, allocate, step_s

Factor = Callable[[int, int], float]  # (step, rank) -> how many times as long the rank takes


@dataclass(frozen=True)
class Step:
    """What a step took, and what the best shards would have taken on the same draws."""

    number: int
    shards: tuple[int, ...]
    seconds: float
    best_s: float
    reason: str


def noise(seed: int, deviation: float, steps: int = 512, ranks: int = 8) -> Factor:
    """Factors drawn once for each step and rank, log-normal with median 1."""
    rng = random.Random(seed)
    table = [[math.exp(deviation * rng.gauss(0.0, 1.0)) for _ in range(ranks)] for _ in range(steps)]
    return lambda step, rank: table[step][rank]


def train(
    costs: Sequence[CostModel],
    batch: int,
    steps: int,
    *,
    config: BalanceConfig | None = None,
    factor: Factor = lambda step, rank: 1.0,
    speed: Factor = lambda step, rank: 1.0,
    measured: Callable[[int, int], bool] = lambda step, rank: True,
) -> tuple[Balance, list[Step]]:
    """Balance ranks of these costs.

    Args:
        factor: Chance, which the best shards do not know of.
        speed: What the ranks really became, which they do.
    """
    balance, done = Balance.start(len(costs), config), []
    best: dict[tuple[CostModel, ...], tuple[int, ...]] = {}
    for step in range(1, steps + 1):
        now = tuple(cost.scaled(speed(step, rank)) for rank, cost in enumerate(costs))
        drawn = [cost.scaled(factor(step, rank)) for rank, cost in enumerate(now)]
        shards = balance.shard_sizes(batch)
        readings = [
            Reading(size, cost.time_s(size)) if size and measured(step, rank) else None
            for rank, (size, cost) in enumerate(zip(shards, drawn))
        ]
        balance, _, reason = balance.observe(batch, readings)
        if now not in best:
            best[now] = allocate(batch, now)
        done.append(Step(step, shards, step_s(shards, drawn), step_s(best[now], drawn), reason))
    return balance, done


def efficiency(steps: Sequence[Step]) -> float:
    """Mean throughput over that of the best shards: of equal batches, the inverse of the times."""
    return math.fsum(step.best_s for step in steps) / math.fsum(step.seconds for step in steps)
