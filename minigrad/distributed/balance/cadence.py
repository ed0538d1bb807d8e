"""El Che: how many whole batches each rank runs between two reductions. Pure.

Over a slow link a reduction a step costs more than the step. So every rank runs several batches, the slowest rank
`anchor` of them and each other so many that all are done at one time; then the gradients are combined once, weighted by
samples. (The march goes at the pace of the slowest: hence the name, and the word anchor.)

The anchor is what brings the overhead, reduction over computing, to its target: reduction / (target · batch), rounded
up, from the medians of the last five reductions and of each rank's last five times of a batch. So one that hiccups is
outvoted, and forgotten; a median of overheads would remember anchors that are gone. At most it doubles in a report.

What is in use moves to what is wanted when a count is a tenth off, or has been off to one side in five reports
running. So counts are steady under jitter, arrive where readings are steady, and agree with the anchor whenever they
change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigrad.absent import tell_lacking
from minigrad.absent_seeds import SEEDS
from minigrad.arguments import as_amount, as_integer, as_list, as_real, keep_as
from minigrad.data.order import largest_remainder
from minigrad.distributed.balance.shares import SpeedHint, as_hint, relative_speeds
from minigrad.distributed.balance.state import config_from, config_of, reading_state, state_data
from minigrad.errors import ArgumentError

DEFAULT_ANCHOR, DEFAULT_MAX_ANCHOR, DEFAULT_OVERHEAD_TARGET = 10, 200, 0.10
OVERHEAD_TARGETS = (0.01, 0.5)  # least and most

_WINDOW = 5  # readings to take the median of; reports in which a count is off to one side before it moves
_DEAD_ZONE = 0.1
_MOST_GROWTH = 2  # times the anchor, in one report
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
        keep_as(self, as_integer, "anchor", "max_anchor", least=1)
        keep_as(self, as_integer, "min_anchor", "max_batch_diff", least=1, optional=True)
        keep_as(self, as_real, "overhead_target", least=OVERHEAD_TARGETS[0], most=OVERHEAD_TARGETS[1])
        if not self.floor <= self.anchor <= self.max_anchor:
            raise ArgumentError(
                f"CadenceConfig: expected min_anchor <= anchor <= max_anchor, got {self.floor}, {self.anchor} and "
                f"{self.max_anchor}"
            )
        if self.speed_hint is not None:
            object.__setattr__(self, "speed_hint", as_hint(self.speed_hint))

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
        recent_ms: The last milliseconds a batch of each rank, at most five, the newest last.
        recent_sync_ms: The last milliseconds of a reduction, at most five; that of the first report is none of them.
        min_anchor: The anchor never shrinks below it.
        wanted_counts: Counts that agree with the anchor; those in use follow them by max_batch_diff a report.
        leaning: For each rank, in how many reports running more (> 0) or fewer (< 0) batches than these were asked for.

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
    recent_ms: tuple[tuple[float, ...], ...]
    recent_sync_ms: tuple[float, ...]
    min_anchor: int
    wanted_counts: tuple[int, ...]
    leaning: tuple[int, ...]

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
        return ElChe(config, config.anchor, counts, ((),) * world_size, (), config.floor, counts, (0,) * world_size)

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
            names = ("batch_counts", "recent_sync_ms", "wanted_counts", "leaning")
            lists = {name: tuple(state[name]) for name in names}
            return ElChe(**{**state, **lists, "recent_ms": tuple(map(tuple, state["recent_ms"])), "config": config})

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.batch_counts)

    @property
    def total_batches(self) -> int:
        """Batches of all ranks until the next reduction."""
        return sum(self.batch_counts)

    @property
    def ms_per_batch(self) -> tuple[float | None, ...]:
        """Milliseconds a batch of each rank, the median of its last five; None where it was never measured."""
        return tuple(statistics.median(recent) if recent else None for recent in self.recent_ms)

    @property
    def is_calibrated(self) -> bool:
        """Whether any rank was measured."""
        return any(self.recent_ms)

    @property
    def has_speed_hint(self) -> bool:
        """Whether a hint said what counts to begin with."""
        return self.config.speed_hint is not None

    @property
    def anchor_wall_ms(self) -> float:
        """Milliseconds of computing between two reductions, as expected; 0 before the first report."""
        return self.anchor * self._slowest_ms

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
        walls = [as_amount("report_timing", "each wall_ms", ms) for ms in self._each("wall_ms", wall_ms)]
        counts = [
            as_integer("report_timing", "each batch count", count, 0)
            for count in self._each("batch_counts", batch_counts)
        ]
        sync = as_amount("report_timing", "sync_ms", sync_ms)
        readings = [wall / count if count else 0.0 for wall, count in zip(walls, counts)]
        if not any(readings):
            return self, self.batch_counts, "no rank was measured, so the counts stay"
        recent = tuple(_recent(old, new) if new else old for old, new in zip(self.recent_ms, readings))
        seen = replace(self, recent_ms=recent)
        if not self.is_calibrated:
            return seen._calibrate()
        seen = replace(seen, recent_sync_ms=_recent(self.recent_sync_ms, sync))
        return seen._move(*seen._wanted_anchor(allow_growth))

    def nudge_anchor_down(self, factor: float) -> tuple[ElChe, tuple[int, ...], str]:
        """Reduce more often, now: the anchor times factor, rounded up, and the floor with it.

        Args:
            factor: In (0, 1].

        Raises:
            ArgumentError: a factor out of its range.
        """
        factor = as_real("nudge_anchor_down", "factor", factor, most=1.0, above=0.0)
        anchor = max(1, math.ceil(self.anchor * factor))
        lowered = replace(self, min_anchor=min(self.min_anchor, anchor))
        return lowered._move(anchor, f"nudged by {factor:g}", at_once=True)

    def _each(self, what: str, values: Sequence[float]) -> Sequence[float]:
        if len(values) != self.world_size:
            raise ArgumentError(
                f"report_timing: expected {what} of {self.world_size} ranks, got {len(values)}: {list(values)}"
            )
        return values

    def _wanted_anchor(self, allow_growth: bool) -> tuple[int, str]:
        """The anchor that brings the overhead to its target, as near as it may come in one report; and why."""
        target, now = self.config.overhead_target, self.anchor
        sync_ms, batch_ms = statistics.median(self.recent_sync_ms), self._slowest_ms
        exact = math.ceil(min(sync_ms / (target * batch_ms or math.ulp(0.0)), self.config.max_anchor))
        side = "near" if not _is_far(exact, now) else "over" if exact > now else "under"
        said = f"overhead {sync_ms / (now * batch_ms):.3g} is {side} {target:g}"
        wanted = min(max(self.min_anchor, exact), _MOST_GROWTH * now)
        return (now, f"{said}, but growth is held") if wanted > now and not allow_growth else (wanted, said)

    def _calibrate(self) -> tuple[ElChe, tuple[int, ...], str]:
        """The first counts that know speeds: there at once, whatever max_batch_diff is."""
        targets = self._targets(self.anchor)
        known = replace(self, batch_counts=targets, wanted_counts=targets)
        return known, targets, self._say(f"first report, the anchor stays {self.anchor}", targets, "speeds are known")

    def _move(self, wanted: int, said: str, *, at_once: bool = False) -> tuple[ElChe, tuple[int, ...], str]:
        """Anchor and counts for the wanted anchor; they stay where no count is far off, or has been off for long."""
        targets, now = self._targets(wanted), self.wanted_counts
        leaning = tuple(_lean(reports, new - old) for reports, new, old in zip(self.leaning, targets, now))
        lasts = any(abs(reports) >= _WINDOW for reports in leaning)
        anchor, why = wanted, "the anchor moved" if wanted != self.anchor else "a speed moved"
        if not (at_once or lasts or any(map(_is_far, targets, now))):
            anchor, targets, why = self.anchor, now, "under way"
        counts = tuple(_towards(n, new, self.config.max_batch_diff) for n, new in zip(self.batch_counts, targets))
        said += f": anchor {self.anchor} -> {anchor}" if anchor != self.anchor else f": anchor {anchor} stays"
        moved = replace(self, anchor=anchor, batch_counts=counts, wanted_counts=targets, leaning=leaning)
        return moved, counts, self._say(said, counts, why)

    def _say(self, said: str, counts: tuple[int, ...], why: str) -> str:
        changed = counts != self.batch_counts
        return f"{said}; counts {self.batch_counts} -> {counts}: {why}" if changed else f"{said}; counts {counts} stay"

    @property
    def _slowest_ms(self) -> float:
        return max((ms for ms in self.ms_per_batch if ms is not None), default=0.0)

    def _targets(self, anchor: int) -> tuple[int, ...]:
        """Counts with which all ranks are done when the slowest is; a rank not measured takes the median."""
        speeds = self.ms_per_batch
        known = [ms for ms in speeds if ms is not None]
        if not known:
            base = self.wanted_counts
            return tuple(_count(anchor, count / min(base)) for count in base)
        slowest, middle = max(known), statistics.median(known)
        return tuple(_count(anchor, slowest / (middle if ms is None else ms)) for ms in speeds)


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


def _recent(old: tuple[float, ...], new: float) -> tuple[float, ...]:
    return (*old, new)[-_WINDOW:]


def _lean(reports: int, change: int) -> int:
    """Reports running in which a count was to change in this direction, as a signed number; 0 where it was not."""
    if not change:
        return 0
    return max(reports, 0) + 1 if change > 0 else min(reports, 0) - 1


def _count(anchor: int, speed: float) -> int:
    """Batches of a rank so many times as fast as the slowest, up to 1000 times; halves rounded up."""
    return max(1, math.floor(anchor * min(speed, _FASTEST) + 0.5))


def _is_far(new: int, old: int) -> bool:
    return abs(new - old) > _DEAD_ZONE * old


def _towards(now: int, wanted: int, limit: int | None) -> int:
    return wanted if limit is None else now + max(-limit, min(limit, wanted - now))


tell_lacking("ElChe", ElChe, SEEDS["ElChe"])
