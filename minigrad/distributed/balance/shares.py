"""How a batch is divided among ranks: shares with a floor, and the whole samples that they come to. Pure.

All arithmetic that decides something is exact (integers and fractions), so no result depends on the order of ranks.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from minigrad.arguments import as_amount, as_integer, as_list, as_real, check_shares
from minigrad.data.order import Shares, largest_remainder, whole_weights
from minigrad.errors import ArgumentError

SpeedHint = tuple[int, float] | Mapping[int, float]

MIN_RATIO = 0.05  # of a batch, for up to ten ranks
_LARGEST_FLOOR = 0.5  # of a batch, for all floors together


def default_min_ratio(world_size: int) -> float:
    """The smallest share of a rank where the user names none: 0.05, or half of an equal share if that is less."""
    return min(MIN_RATIO, _LARGEST_FLOOR / as_integer("default_min_ratio", "world_size", world_size, 1))


def check_min_ratio(who: str, min_ratio: float | None, world_size: int) -> float:
    """A smallest share as a number; None takes the default.

    Raises:
        ArgumentError: it is no number >= 0, or so large that the ranks can't all have it.
    """
    if min_ratio is None:
        return default_min_ratio(world_size)
    ratio = as_amount(who, "min_ratio", min_ratio)
    if ratio * world_size > 1.0:
        raise ArgumentError(
            f"{who}: expected min_ratio <= 1/{world_size} for {world_size} ranks, got {min_ratio!r}: "
            f"together they would need {ratio * world_size:.3g} batches"
        )
    return ratio


def rebalance(throughputs: Sequence[float | None], min_ratio: float | None = None) -> tuple[float, ...]:
    """Shares in proportion to throughput, none below the floor.

    share_i = max(min_ratio, c · throughput_i), with the one c that makes the sum 1: ranks under the floor are raised
    to it, the others keep their proportions. (Water-filling.)

    Args:
        throughputs: Samples per second of each rank, >= 0, in any unit; None where nothing was measured, which counts
            as the median of the others. Shares are equal where no rank has any.
        min_ratio: The floor, in [0, 1/world_size]; None means min(0.05, 0.5/world_size).

    Raises:
        ArgumentError: no rank, a throughput that is no number >= 0, or a floor that does not fit the ranks.

    Example:
        >>> rebalance([3.0, 1.0])
        (0.75, 0.25)
        >>> rebalance([100.0, 1.0])
        (0.95, 0.05)
    """
    speeds = measured_or_median("rebalance", throughputs)
    world_size = len(speeds)
    floor = min(Fraction(check_min_ratio("rebalance", min_ratio, world_size)), Fraction(1, world_size))
    weights = whole_weights(speeds)
    if not any(weights):
        return (1.0 / world_size,) * world_size
    ascending = sorted(range(world_size), key=weights.__getitem__)
    above = sum(weights)
    raised = 0
    while weights[ascending[raised]] * (1 - raised * floor) < floor * above:
        above -= weights[ascending[raised]]
        raised += 1
    scale = (1 - raised * floor) / above
    under = set(ascending[:raised])
    return tuple(float(floor if i in under else weight * scale) for i, weight in enumerate(weights))


def measured_or_median(who: str, throughputs: Sequence[float | None]) -> list[float]:
    """Throughputs as numbers, those that were not measured as the median of the others; ArgumentError."""
    given = as_list(who, "throughputs", throughputs)
    if not given:
        raise ArgumentError(f"{who}: expected a throughput for each rank, got none")
    known = [as_amount(who, "each throughput", value) for value in given if value is not None]
    middle = statistics.median(known) if known else 1.0
    return [middle if value is None else float(value) for value in given]


def relative_speeds(world_size: int, hint: SpeedHint) -> tuple[float, ...]:
    """What a speed hint says of each rank.

    Args:
        hint: (slow_rank, ratio): every other rank is `ratio` >= 1 times as fast as that one. Or a mapping from rank to
            its speed > 0 relative to the ranks that are not in it, whose speed is 1.

    Raises:
        ArgumentError: a rank out of range, a ratio under 1, a speed that is not positive.

    Example:
        >>> relative_speeds(3, (2, 3.0))
        (3.0, 3.0, 1.0)
        >>> relative_speeds(4, {0: 2.0, 3: 0.5})
        (2.0, 1.0, 1.0, 0.5)
    """
    as_integer("speed_hint", "world_size", world_size, 1)
    if isinstance(hint, Mapping):
        speeds = [1.0] * world_size
        for rank, speed in hint.items():
            value = as_real("speed_hint", f"the speed of rank {rank}", speed, above=0.0, finite=True)
            speeds[as_integer("speed_hint", "a rank", rank, 0, world_size)] = value
        return tuple(speeds)
    if not isinstance(hint, Sequence) or len(hint) != 2:
        raise ArgumentError(f"speed_hint: expected (slow_rank, ratio) or a mapping of rank to speed, got {hint!r}")
    slow = as_integer("speed_hint", "slow_rank", hint[0], 0, world_size)
    ratio = as_real("speed_hint", f"ratio, the others' speed over that of rank {slow},", hint[1], 1.0, finite=True)
    return tuple(1.0 if rank == slow else ratio for rank in range(world_size))


def as_hint(hint: Any) -> SpeedHint:
    """A speed hint, of Python's numbers; ArgumentError where it fits no number of ranks."""
    ranks = list(hint) if isinstance(hint, Mapping) else list(hint[:1]) if isinstance(hint, (tuple, list)) else []
    last = max((as_integer("speed_hint", "a rank", rank, 0) for rank in ranks), default=0)
    relative_speeds(last + 1, hint)
    if isinstance(hint, Mapping):
        return {int(rank): float(speed) for rank, speed in hint.items()}
    return int(hint[0]), float(hint[1])


def hint_ratios(world_size: int, hint: SpeedHint, min_ratio: float | None = None) -> tuple[float, ...]:
    """The shares that a speed hint asks for; see `relative_speeds`."""
    return rebalance(relative_speeds(world_size, hint), min_ratio)


def compute_shard_sizes(
    batch_size: int, ratios: Shares, *, caps: Sequence[int | None] | None = None, granularity: int = 1
) -> tuple[int, ...]:
    """The samples of each rank: whole numbers in proportion to the shares, their sum the batch.

    Each is within one of batch_size · ratio, and a larger share never gets less. What is left after rounding down goes
    to the largest remainders (equal ones to the larger share, then to the lower rank). Any batch will do: ranks may
    get nothing. A rank that would get more than its cap gets its cap, and the others share the rest.

    Args:
        batch_size: >= 0.
        ratios: >= 0, of sum 1.
        caps: The most samples that a rank can hold, None for no limit.
        granularity: Shards are multiples of it, but for the one that takes what the batch has beyond a multiple.

    Raises:
        ArgumentError: an argument out of its range, or caps that leave no room for the batch.

    Example:
        >>> compute_shard_sizes(10, [0.5, 0.3, 0.2]), compute_shard_sizes(1, [0.5, 0.5])
        ((5, 3, 2), (1, 0))
        >>> compute_shard_sizes(100, [0.5, 0.3, 0.2], caps=[40, None, None], granularity=4)
        (40, 36, 24)
    """
    who = "compute_shard_sizes"
    total = as_integer(who, "batch_size", batch_size, 0)
    granule = as_integer(who, "granularity", granularity, 1)
    check_shares(who, ratios)
    limits = check_caps(who, caps, len(ratios), total)
    units, rest = divmod(total, granule)
    counts = [granule * n for n in _capped(who, units, ratios, [limit // granule for limit in limits])]
    if rest:
        rank = max(
            (i for i, count in enumerate(counts) if count + rest <= limits[i]),
            key=lambda i: (total * Fraction(ratios[i]) - counts[i], ratios[i], -i),
            default=None,
        )
        if rank is None:
            raise no_room(who, total, limits, granule)
        counts[rank] += rest
    return tuple(counts)


def _capped(who: str, units: int, ratios: Shares, limits: Sequence[int]) -> list[int]:
    """Largest remainders under caps: what is over a cap goes to the ranks that are under theirs."""
    counts = largest_remainder(units, ratios)
    full = {i for i, count in enumerate(counts) if count > limits[i]}
    while full:
        free = [i for i in range(len(ratios)) if i not in full]
        left = units - sum(limits[i] for i in full)
        if left > sum(limits[i] for i in free):
            raise no_room(who, units, limits, 1)
        for i in full:
            counts[i] = limits[i]
        for i, count in zip(free, largest_remainder(left, _normal([ratios[i] for i in free]))):
            counts[i] = count
        over = {i for i in free if counts[i] > limits[i]}
        if not over:
            break
        full |= over
    return counts


def _normal(ratios: Shares) -> list[Fraction]:
    """The same proportions with sum 1; equal ones where all are zero."""
    total = sum(Fraction(ratio) for ratio in ratios)
    return [Fraction(ratio) / total if total else Fraction(1, len(ratios)) for ratio in ratios]


def check_caps(who: str, caps: Sequence[int | None] | None, world_size: int, total: int) -> list[int]:
    """The most samples of each rank, none above total.

    Raises:
        ArgumentError: not one cap a rank, or one that is no integer >= 0.
    """
    if caps is None:
        return [total] * world_size
    if not isinstance(caps, Sequence) or len(caps) != world_size:
        raise ArgumentError(f"{who}: expected a cap for each of {world_size} ranks, got {caps!r}")
    return [total if cap is None else min(total, as_integer(who, "each cap", cap, 0)) for cap in caps]


def no_room(who: str, total: int, limits: Sequence[int], granule: int) -> ArgumentError:
    """The error for caps that a batch does not fit in."""
    unit = f" in shards that are multiples of {granule}" if granule > 1 else ""
    return ArgumentError(f"{who}: expected caps that hold {total} samples{unit}, got {list(limits)}: lower batch_size")


def is_balanced(shard_sizes: Sequence[int]) -> bool:
    """Whether the shards really used are equal, so that a plain mean over ranks is the mean over samples.

    Equal shares are not enough: a batch of 11 on two ranks makes 6 and 5.

    Example:
        >>> is_balanced([8, 8]), is_balanced([6, 5])
        (True, False)
    """
    return len(set(as_list("is_balanced", "shard_sizes", shard_sizes))) <= 1
