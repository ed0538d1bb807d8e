"""El Che: how many whole batches each rank runs between two reductions. Pure.

Over a slow link a reduction a step costs more than the step. So every rank runs several batches, the slowest rank
`anchor` of them and each other so many that all are done at one time; then the gradients are combined once, weighted by
samples. (The march goes at the pace of the slowest: hence the name, and the word anchor.)

The anchor follows the overhead, reduction over computing: too much, and it grows in proportion, which brings the
overhead to the target where a reduction costs the same each time; less than half, and it shrinks by one. It and the
speeds move the counts only when they are a tenth away from those in use, so counts are steady, and agree with the
anchor whenever they change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigrad.data.plan import as_list, largest_remainder
from minigrad.distributed.balance.shares import SpeedHint, check_hint, check_number, relative_speeds
from minigrad.distributed.balance.state import config_from, config_of, reading_state, state_data
from minigrad.errors import ArgumentError
from minigrad.ops.arguments import as_integer

DEFAULT_ANCHOR, DEFAULT_MAX_ANCHOR, DEFAULT_OVERHEAD_TARGET = 10, 200, 0.10
OVERHEAD_TARGETS = (0.01, 0.5)  # least and most

_LEAST_PULL, _MOST_PULL = 0.1, 0.8  # of a new reading on the average; as much as it is off, between these
_DEAD_ZONE = 0.1
_LOW_OVERHEAD = 0.5  # of the target
_FASTEST = 1000.0  # times as fast as the slowest rank: faster ranks get no more batches than that


@dataclass(frozen=True)
class CadenceConfig:
    """The options of El Che.

    Attributes:
        anchor: Batches of the slowest rank to begin with, >= 1.
        overhead_target: Reduction time over computing time, in [0.01, 0.5].
        min_anchor: The anchor never shrinks below it; None means the first anchor. `nudge_anchor_down` lowers it.
        max_anchor: The anchor never grows above it. anchor = min_anchor = max_anchor fixes it.
        max_batch_diff: The most by which a rank's count changes in one report, >= 1; None for no limit.
        speed_hint: What counts begin with; see `relative_speeds`.
    """

    anchor: int = DEFAULT_ANCHOR
    overhead_target: float = DEFAULT_OVERHEAD_TARGET
    min_anchor: int | None = None
    max_anchor: int = DEFAULT_MAX_ANCHOR
    max_batch_diff: int | None = None
    speed_hint: SpeedHint | None = None

    def __post_init__(self) -> None:
        who = "CadenceConfig"
        as_integer(who, "anchor", self.anchor, 1)
        as_integer(who, "max_anchor", self.max_anchor, 1)
        for name in ("min_anchor", "max_batch_diff"):
            if getattr(self, name) is not None:
                as_integer(who, name, getattr(self, name), 1)
        if not self.floor <= self.anchor <= self.max_anchor:
            raise ArgumentError(
                f"{who}: expected min_anchor <= anchor <= max_anchor, got {self.floor}, {self.anchor} and "
                f"{self.max_anchor}"
            )
        least, most = OVERHEAD_TARGETS
        if not least <= check_number(who, "overhead_target", self.overhead_target) <= most:
            raise ArgumentError(
                f"{who}: expected overhead_target in [{least}, {most}], got {self.overhead_target!r}"
            )
        if self.speed_hint is not None:
            check_hint(self.speed_hint)

    @property
    def floor(self) -> int:
        """The smallest anchor to begin with."""
        return self.anchor if self.min_anchor is None else self.min_anchor

    @staticmethod
    def fixed(anchor: int, speed_hint: SpeedHint | None = None) -> CadenceConfig:
        """Options under which the anchor stays as it is; counts still follow the speeds."""
        return CadenceConfig(anchor, min_anchor=anchor, max_anchor=anchor, speed_hint=speed_hint)


@dataclass(frozen=True)
class ElChe:
    """The state of the cadence; `report_timing` gives the next.

    Attributes:
        anchor: Batches of the slowest rank.
        batch_counts: Batches of each rank until the next reduction.
        ms_per_batch: Average of each rank; None where it was never measured.
        min_anchor: The anchor never shrinks below it.
        wanted_anchor: Where the overhead asks the anchor to be; the anchor follows out of the dead zone.
        wanted_counts: Where the speeds ask the counts to be; the counts follow by max_batch_diff a report.

    Example:
        >>> el_che = ElChe.start(2)
        >>> el_che, counts, reason = el_che.report_timing([500.0, 1000.0], [10, 10], sync_ms=80.0)
        >>> counts
        (20, 10)
        >>> reason
        'first report, the anchor stays 10; counts (10, 10) -> (20, 10): speeds are known'
    """

    config: CadenceConfig
    anchor: int
    batch_counts: tuple[int, ...]
    ms_per_batch: tuple[float | None, ...]
    min_anchor: int
    wanted_anchor: int
    wanted_counts: tuple[int, ...]

    @staticmethod
    def start(world_size: int, config: CadenceConfig | None = None) -> ElChe:
        """The state before the first report.

        Raises:
            ArgumentError: a hint that does not fit the number of ranks.
        """
        config = config_of("ElChe", config, CadenceConfig)
        as_integer("ElChe", "world_size", world_size, 1)
        counts = (config.anchor,) * world_size
        if config.speed_hint is not None:
            speeds = relative_speeds(world_size, config.speed_hint)
            counts = tuple(_count(config.anchor, speed / min(speeds)) for speed in speeds)
        unknown = (None,) * world_size
        return ElChe(config, config.anchor, counts, unknown, config.floor, config.anchor, counts)

    def state_dict(self) -> dict[str, Any]:
        """All of it as plain data, for JSON; `from_state_dict` takes it."""
        return state_data(self)

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> ElChe:
        """The state that `state_dict` told.

        Raises:
            StateDictError: it is no such data.
        """
        with reading_state("ElChe"):
            config = config_from(CadenceConfig, state["config"])
            lists = {name: tuple(state[name]) for name in ("batch_counts", "ms_per_batch", "wanted_counts")}
            return ElChe(**{**state, **lists, "config": config})

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.batch_counts)

    @property
    def total_batches(self) -> int:
        """Batches of all ranks until the next reduction."""
        return sum(self.batch_counts)

    @property
    def is_calibrated(self) -> bool:
        """Whether any rank was measured."""
        return any(ms is not None for ms in self.ms_per_batch)

    @property
    def has_speed_hint(self) -> bool:
        """Whether a hint said what counts to begin with."""
        return self.config.speed_hint is not None

    @property
    def anchor_wall_ms(self) -> float:
        """Milliseconds of computing between two reductions, as expected; 0 before the first report."""
        known = [ms for ms in self.ms_per_batch if ms is not None]
        return self.anchor * max(known) if known else 0.0

    def batches(self, rank: int) -> int:
        """Batches of one rank until the next reduction."""
        return self.batch_counts[as_integer("batches", "rank", rank, 0, self.world_size)]

    def clamp_total(self, limit: int) -> tuple[int, ...]:
        """Counts whose sum is at most limit, for the end of an epoch; see the function `clamp_total`."""
        return clamp_total(self.batch_counts, limit)

    def report_timing(
        self, wall_ms: Sequence[float], batch_counts: Sequence[int], sync_ms: float, *, allow_growth: bool = True
    ) -> tuple[ElChe, tuple[int, ...], str]:
        """Take in what happened between two reductions.

        A rank that seems more than 1000 times as fast as the slowest is given 1000 times its batches.

        Args:
            wall_ms: Computing of each rank, waiting not counted; 0 where it was not measured.
            batch_counts: The batches that each rank really ran; 0 is legal.
            sync_ms: Of the reduction, once all ranks had come.
            allow_growth: False holds the anchor down, for one who watches whether ranks drift apart.

        Returns:
            The new state, the counts to use next, and why they are these.

        Raises:
            ArgumentError: not one number a rank, or one that is negative or no number.
        """
        walls = [check_number("report_timing", "each wall_ms", ms) for ms in self._each("wall_ms", wall_ms)]
        counts = [
            as_integer("report_timing", "each batch count", count, 0)
            for count in self._each("batch_counts", batch_counts)
        ]
        sync = check_number("report_timing", "sync_ms", sync_ms)
        speeds = tuple(
            _average(old, wall / count) if count and wall / count else old
            for old, wall, count in zip(self.ms_per_batch, walls, counts)
        )
        seen = replace(self, ms_per_batch=speeds)
        rounds = zip(walls, self.batch_counts, counts)  # as if all had run what was planned: an epoch may end before
        whole_ms = max((wall * (planned / count) for wall, planned, count in rounds if count), default=0.0)
        if not whole_ms:
            return seen, seen.batch_counts, "no rank was measured, so the counts stay"
        if not self.is_calibrated:
            wanted, anchor, reason = self.anchor, self.anchor, f"first report, the anchor stays {self.anchor}"
        else:
            wanted, anchor, reason = self._next_anchor(sync / whole_ms, allow_growth)
        return replace(seen, wanted_anchor=wanted)._with_anchor(anchor, reason, not self.is_calibrated)

    def nudge_anchor_down(self, factor: float) -> tuple[ElChe, tuple[int, ...], str]:
        """Reduce more often, now: the anchor times factor, rounded up, and the floor with it.

        Args:
            factor: In (0, 1].

        Raises:
            ArgumentError: a factor out of its range.
        """
        if not 0.0 < check_number("nudge_anchor_down", "factor", factor) <= 1.0:
            raise ArgumentError(f"nudge_anchor_down: expected a factor in (0, 1], got {factor!r}")
        anchor = max(1, math.ceil(self.anchor * factor))
        lowered = replace(self, min_anchor=min(self.min_anchor, anchor), wanted_anchor=anchor)
        return lowered._with_anchor(anchor, f"nudged by {factor:g}: anchor {self.anchor} -> {anchor}", False)

    def _each(self, what: str, values: Sequence[float]) -> Sequence[float]:
        if len(values) != self.world_size:
            raise ArgumentError(
                f"report_timing: expected {what} of {self.world_size} ranks, got {len(values)}: {list(values)}"
            )
        return values

    def _next_anchor(self, overhead: float, allow_growth: bool) -> tuple[int, int, str]:
        """Where the anchor should be, where it will be, and why."""
        target, said = self.config.overhead_target, f"overhead {overhead:.3g}"
        wanted = self.wanted_anchor
        if overhead > target:
            grown = math.ceil(min(self.anchor * overhead / target, self.config.max_anchor))
            if not allow_growth and grown > self.anchor:
                return self.anchor, self.anchor, f"{said} is over {target:g}, but growth is held: anchor {self.anchor}"
            wanted, said = grown, f"{said} is over {target:g}"
        elif overhead < _LOW_OVERHEAD * target:
            wanted, said = max(self.min_anchor, wanted - 1), f"{said} is under half of {target:g}"
        else:
            said = f"{said} is near {target:g}"
        if not _is_far(wanted, self.anchor):
            return wanted, self.anchor, f"{said}: anchor {self.anchor} stays"
        return wanted, wanted, f"{said}: anchor {self.anchor} -> {wanted}"

    def _with_anchor(self, anchor: int, reason: str, is_first: bool) -> tuple[ElChe, tuple[int, ...], str]:
        """The counts for an anchor; they stay where neither it nor a speed has moved far."""
        targets = self._targets(anchor)
        moved = is_first or anchor != self.anchor
        if moved or any(_is_far(new, old) for new, old in zip(targets, self.wanted_counts)):
            why = "speeds are known" if is_first else "the anchor moved" if moved else "a speed moved"
            wanted = targets
        else:
            why, wanted = "under way", self.wanted_counts
        limit = None if is_first else self.config.max_batch_diff
        counts = tuple(_towards(now, new, limit) for now, new in zip(self.batch_counts, wanted))
        changed = counts != self.batch_counts
        reason += f"; counts {self.batch_counts} -> {counts}: {why}" if changed else f"; counts {counts} stay"
        return replace(self, anchor=anchor, batch_counts=counts, wanted_counts=wanted), counts, reason

    def _targets(self, anchor: int) -> tuple[int, ...]:
        """Counts with which all ranks are done when the slowest is; a rank not measured takes the median."""
        known = [ms for ms in self.ms_per_batch if ms is not None]
        if not known:
            base = self.wanted_counts
            return tuple(_count(anchor, count / min(base)) for count in base)
        slowest, middle = max(known), statistics.median(known)
        return tuple(_count(anchor, slowest / (middle if ms is None else ms)) for ms in self.ms_per_batch)


def clamp_total(batch_counts: Sequence[int], limit: int) -> tuple[int, ...]:
    """Counts in proportion whose sum is at most limit, by largest remainders; as they are where they fit.

    Args:
        batch_counts: >= 0.
        limit: >= 0. A rank may be left with nothing.

    Example:
        >>> clamp_total([10, 20, 30], 5), clamp_total([10, 10, 10], 2)
        ((1, 2, 2), (1, 1, 0))
    """
    given = as_list("clamp_total", "batch_counts", batch_counts)
    counts = [as_integer("clamp_total", "each count", count, 0) for count in given]
    as_integer("clamp_total", "limit", limit, 0)
    total = sum(counts)
    if total <= limit:
        return tuple(counts)
    return tuple(largest_remainder(limit, [count / total for count in counts]))


def _average(old: float | None, new: float) -> float:
    """The average after a reading: the further off it is, the more it counts."""
    if old is None:
        return new
    pull = min(_MOST_PULL, max(_LEAST_PULL, abs(new - old) / old))
    return pull * new + (1.0 - pull) * old


def _count(anchor: int, speed: float) -> int:
    """Batches of a rank so many times as fast as the slowest, up to 1000 times; halves rounded up."""
    return max(1, math.floor(anchor * min(speed, _FASTEST) + 0.5))


def _is_far(new: int, old: int) -> bool:
    return abs(new - old) > _DEAD_ZONE * old


def _towards(now: int, wanted: int, limit: int | None) -> int:
    return wanted if limit is None else now + max(-limit, min(limit, wanted - now))
