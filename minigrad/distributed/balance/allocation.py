"""The whole samples of each rank that make the slowest rank as fast as can be. Exact, and pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from minigrad.arguments import as_integer
from minigrad.distributed.balance.cost import CostModel
from minigrad.distributed.balance.shares import check_caps, no_room
from minigrad.errors import ArgumentError

_HALVINGS = 200


def step_s(shard_sizes: Sequence[int], costs: Sequence[CostModel]) -> float:
    """Seconds of a step: those of the slowest rank; a rank without samples takes none.

    Example:
        >>> step_s([2, 0], [CostModel(1.0, 0.5), CostModel(9.0, 9.0)])
        2.0
    """
    return max((cost.time_s(size) for size, cost in zip(shard_sizes, costs, strict=True) if size), default=0.0)


def allocate(
    batch_size: int,
    costs: Sequence[CostModel],
    *,
    caps: Sequence[int | None] | None = None,
    at_least: Sequence[int] | None = None,
    granularity: int = 1,
) -> tuple[int, ...]:
    """Shards whose slowest rank is as fast as in any division of the batch, under t = fixed_s + per_sample_s · n.

    One more granule always goes where it ends earliest; which order of adding is optimal, since every rank's time only
    grows, and stays so when a remainder smaller than a granule is added at the end. Ends that coincide: to the rank
    with fewer granules, then to the one with the lower cost of a sample, then to the lower rank.

    Args:
        batch_size: >= 0.
        caps: The most samples that a rank can hold, None for no limit.
        at_least: The fewest samples of a rank, rounded down to whole granules.
        granularity: Shards are multiples of it, but for the one that takes what the batch has beyond a multiple.

    Raises:
        ArgumentError: an argument out of its range, or bounds that no division satisfies.

    Example:
        >>> allocate(60, [CostModel(0.0, 1 / 3), CostModel(0.0, 1 / 2), CostModel(0.0, 1.0)])
        (30, 20, 10)
        >>> allocate(100, [CostModel(10.0, 0.1), CostModel(10.0, 0.1)])
        (50, 50)
    """
    total = as_integer("allocate", "batch_size", batch_size, 0)
    granule = as_integer("allocate", "granularity", granularity, 1)
    if not costs or not all(isinstance(cost, CostModel) for cost in costs):
        raise ArgumentError(f"allocate: expected the cost model of each rank, got {costs!r}")
    limits = check_caps("allocate", caps, len(costs), total)
    floors = [0] * len(costs) if at_least is None else list(at_least)
    if len(floors) != len(costs):
        raise ArgumentError(f"allocate: expected a minimum for each of {len(costs)} ranks, got {at_least!r}")
    ranks = [_Rank(i, cost, granule, floors[i], limits[i]) for i, cost in enumerate(costs)]
    units, rest = divmod(total, granule)
    if sum(rank.fewest for rank in ranks) > units or any(rank.fewest > rank.most for rank in ranks):
        raise ArgumentError(f"allocate: expected minima that fit {total} samples and {limits}, got {floors}")
    if sum(rank.most for rank in ranks) < units:
        raise no_room("allocate", total, limits, granule)
    counts = _fill(ranks, units)
    sizes = [granule * count for count in counts]
    if rest:
        free = [rank for rank in ranks if sizes[rank.index] + rest <= limits[rank.index]]
        if not free:
            raise no_room("allocate", total, limits, granule)
        best = min(free, key=lambda rank: (rank.cost.time_s(sizes[rank.index] + rest), *rank.key(counts[rank.index])))
        sizes[best.index] += rest
    return tuple(sizes)


class _Rank:
    """What one rank may take, in granules."""

    __slots__ = ("index", "cost", "granule", "fewest", "most")

    def __init__(self, index: int, cost: CostModel, granule: int, floor: int, limit: int) -> None:
        self.index, self.cost, self.granule = index, cost, granule
        self.fewest = as_integer("allocate", "each minimum", floor, 0) // granule
        self.most = limit // granule

    def time_s(self, units: int) -> float:
        return self.cost.time_s(units * self.granule)

    def key(self, units: int) -> tuple[float, ...]:
        """The order of ranks that would be ready at one time."""
        return (units, self.cost.per_sample_s, self.cost.fixed_s, self.most, self.index)

    def within(self, seconds: float) -> int:
        """The most granules that are done in so many seconds."""
        if self.time_s(self.most) <= seconds:
            return self.most
        if not self.cost.per_sample_s:
            return self.fewest
        units = (seconds - self.cost.fixed_s) / (self.cost.per_sample_s * self.granule)
        count = max(self.fewest, int(min(units, self.most))) if units > 0.0 else self.fewest
        while count > self.fewest and self.time_s(count) > seconds:
            count -= 1
        return count


def _fill(ranks: Sequence[_Rank], units: int) -> list[int]:
    """Granules of each rank: all that end by a time at which few are missing, then those one by one."""
    counts = [rank.fewest for rank in ranks]
    equal = units // len(ranks) + 1
    low_s, high_s = 0.0, max(rank.time_s(min(rank.most, equal)) for rank in ranks)
    if sum(rank.within(high_s) for rank in ranks) < units:
        high_s = max(rank.time_s(rank.most) for rank in ranks)
    for _ in range(_HALVINGS):
        if units - sum(counts) <= len(ranks):
            break
        middle_s = low_s + (high_s - low_s) / 2
        trial = [rank.within(middle_s) for rank in ranks]
        if sum(trial) <= units:
            low_s, counts = middle_s, trial
        else:
            high_s = middle_s
    missing = units - sum(counts)
    heap = [_next(rank, counts[rank.index]) for rank in ranks if counts[rank.index] < rank.most] if missing else []
    heapq.heapify(heap)
    for _ in range(missing):
        index = int(heap[0][-1])
        counts[index] += 1
        if counts[index] < ranks[index].most:
            heapq.heapreplace(heap, _next(ranks[index], counts[index]))
        else:
            heapq.heappop(heap)
    return counts


def _next(rank: _Rank, count: int) -> tuple[float, ...]:
    """When one more granule would end; the order of the heap."""
    return (rank.time_s(count + 1), *rank.key(count + 1))
