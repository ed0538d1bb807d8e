"""What a rank's step costs: seconds = fixed_s + per_sample_s · samples, fitted while training goes on. Pure.

Both parts matter. A rank whose time is mostly launching kernels gains little from fewer samples; read as so many
samples a second, it would look the slower the fewer it gets, and any division of a batch would confirm itself.

The fit weighs readings by how far they are from the rest (Tukey's biweight), so that a pause of the garbage collector
does not count. It leans towards fixed_s = 0 as far as noise leaves the two parts open: exact readings at two sizes
give both parts exactly; readings at one size give fixed_s = 0, and a time that is right at that size.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad.arguments import as_amount, as_real, keep_as
from minigrad.backend.dtypes import Array
from minigrad.distributed.balance import fitting
from minigrad.errors import ArgumentError

_FADE = 0.8  # what the readings of a plan count for after the next
_POINTS = 12  # sizes remembered from earlier plans
_BLOCK = 4096  # ranks that are fitted at once: what they need fits into a cache


@dataclass(frozen=True)
class Reading:
    """One step of one rank: so many samples took so many seconds of computing, waiting not counted."""

    samples: float
    seconds: float

    def __post_init__(self) -> None:
        keep_as(self, as_real, "samples", "seconds", above=0.0, finite=True)


@dataclass(frozen=True)
class CostModel:
    """seconds = fixed_s + per_sample_s · samples, both >= 0.

    Example:
        >>> CostModel(1.0, 0.25).time_s(8)
        3.0
    """

    fixed_s: float
    per_sample_s: float

    def __post_init__(self) -> None:
        keep_as(self, as_amount, "fixed_s", "per_sample_s")

    def time_s(self, samples: float) -> float:
        """Seconds for so many samples."""
        return self.fixed_s + self.per_sample_s * as_amount("time_s", "samples", samples)

    def scaled(self, factor: float) -> CostModel:
        """The model of a rank that takes `factor` times as long for everything."""
        factor = as_amount("scaled", "factor", factor)
        return CostModel(self.fixed_s * factor, self.per_sample_s * factor)


@dataclass(frozen=True)
class Point:
    """What readings at one size said under an earlier plan.

    Attributes:
        weight: How many readings of noise 1 it is worth.
    """

    samples: float
    seconds: float
    weight: float


@dataclass(frozen=True)
class History:
    """What is known of one rank.

    Attributes:
        earlier: From before the plan in use.
        window: Readings under the plan in use, the oldest first.
    """

    earlier: tuple[Point, ...] = ()
    window: tuple[Reading, ...] = ()

    def add(self, reading: Reading, window_steps: int | None = None) -> History:
        """The history with one more reading; only the last window_steps are kept."""
        window = (*self.window, reading)
        return replace(self, window=window if window_steps is None else window[-window_steps:])

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> History:
        """The history whose fields came as plain data."""
        earlier = tuple(Point(**point) for point in data["earlier"])
        return History(earlier, tuple(Reading(**reading) for reading in data["window"]))


def fit_cost(readings: Sequence[Reading], earlier: Sequence[Point] = ()) -> CostModel:
    """The cost model of a rank, robust to outliers.

    Args:
        readings: At least one, or else `earlier` has one.

    Raises:
        ArgumentError: nothing to fit.

    Example:
        >>> model = fit_cost([Reading(10, 2.0)])
        >>> model.fixed_s, round(model.per_sample_s, 6)
        (0.0, 0.2)
        >>> model = fit_cost([Reading(n, 1.0 + 0.5 * n) for n in (8, 9, 10, 8, 9, 10)] + [Reading(9, 50.0)])
        >>> round(model.fixed_s, 6), round(model.per_sample_s, 6)
        (1.0, 0.5)
    """
    if not readings:
        model = _from_earlier(earlier)
        if model is None:
            raise ArgumentError("fit_cost: expected at least one reading, got none")
        return model
    return CostModel(*_of_all(_fit_rows, [readings], [earlier])[0][:2])


def median_cost(costs: Sequence[CostModel]) -> CostModel:
    """What a rank without readings is taken for: the median of each part over the others.

    Raises:
        ArgumentError: no cost model at all, or something else.
    """
    if not costs or not all(isinstance(cost, CostModel) for cost in costs):
        raise ArgumentError(f"median_cost: expected the cost model of at least one rank, got {costs!r:.100}")
    return CostModel(
        statistics.median(cost.fixed_s for cost in costs), statistics.median(cost.per_sample_s for cost in costs)
    )


def settle(histories: Sequence[History]) -> list[tuple[History, CostModel | None]]:
    """Fit ranks at the end of a plan, and put the readings away for the next.

    A rank that changes its speed does so in both parts of its cost. So where speed changed among the readings, those
    before and all that earlier plans said are brought to the level of those after; and what earlier plans said is, too,
    where no cost model that it allows explains the readings.

    Returns:
        Of each rank, the history with an empty window, and the model; None where there was never a reading.
    """
    read = [rank for rank, history in enumerate(histories) if history.window]
    windows, earlier = [histories[rank].window for rank in read], [histories[rank].earlier for rank in read]
    starts = _of_all(fitting.change_of_speed, windows, earlier)
    heads = [window[:start] or window for window, start in zip(windows, starts)]
    tails = [window[start:] for window, start in zip(windows, starts)]
    earlier = _brought_to(_of_all(fitting.present_level, heads, earlier), earlier)
    changed = [i for i, start in enumerate(starts) if start]
    for i, (points, _) in zip(changed, _remembered([heads[i] for i in changed], [earlier[i] for i in changed])):
        earlier[i] = points
    after = _of_all(_level_of_earlier, [tails[i] for i in changed], [earlier[i] for i in changed])
    for i, points in zip(changed, _brought_to(after, [earlier[i] for i in changed])):
        earlier[i] = points
    settled = {rank: (History(points), model) for rank, (points, model) in zip(read, _remembered(tails, earlier))}
    return [
        settled[rank] if rank in settled else (history, _from_earlier(history.earlier))
        for rank, history in enumerate(histories)
    ]


# ------------------------------------------------------------------------------------------- many ranks, as arrays


def _of_all(
    compute: Callable[[fitting.Rows, fitting.Points], Array],
    windows: Sequence[Sequence[Reading]],
    earlier: Sequence[Sequence[Point]],
) -> list[Any]:
    """What compute finds for each rank, of those at once that have as many readings and points."""
    alike: dict[tuple[int, int], list[int]] = {}
    for rank, (window, points) in enumerate(zip(windows, earlier)):
        alike.setdefault((len(window), len(points)), []).append(rank)
    found: list[Any] = [None] * len(windows)
    for all_ranks in alike.values():
        for first in range(0, len(all_ranks), _BLOCK):
            ranks = all_ranks[first : first + _BLOCK]
            rows = fitting.Rows(*_columns([windows[rank] for rank in ranks], ("samples", "seconds")))
            points = fitting.Points(*_columns([earlier[rank] for rank in ranks], ("samples", "seconds", "weight")))
            for rank, value in zip(ranks, compute(rows, points).T.tolist()):
                found[rank] = value
    return found


def _columns(lists: Sequence[Sequence[Any]], names: Sequence[str]) -> list[Array]:
    """A (length, ranks) array of each attribute."""
    shape = len(lists), len(lists[0])
    return [
        np.array([getattr(item, name) for each in lists for item in each], np.float64).reshape(shape).T.copy()
        for name in names
    ]


def _fit_rows(rows: fitting.Rows, earlier: fitting.Points) -> Array:
    """Fixed and per-sample cost, noise, and the weight of each reading."""
    costs, weights, noise = fitting.fit(rows, earlier)
    return np.concatenate([[*costs, noise], weights])


def _regress_rows(rows: fitting.Rows, earlier: fitting.Points) -> Array:
    return np.array(fitting.regress(earlier))


def _level_of_earlier(rows: fitting.Rows, earlier: fitting.Points) -> Array:
    return fitting.level(fitting.regress(earlier), rows)


def _from_earlier(points: Sequence[Point]) -> CostModel | None:
    return CostModel(*_of_all(_regress_rows, [()], [points])[0]) if points else None


def _brought_to(levels: Sequence[float], earlier: Sequence[tuple[Point, ...]]) -> list[tuple[Point, ...]]:
    return [points if level == 1.0 else _scaled(points, level) for points, level in zip(earlier, levels)]


def _scaled(points: Sequence[Point], factor: float) -> tuple[Point, ...]:
    return tuple(replace(point, seconds=point.seconds * factor) for point in points)


def _remembered(
    windows: Sequence[Sequence[Reading]], earlier: Sequence[Sequence[Point]]
) -> Iterator[tuple[tuple[Point, ...], CostModel]]:
    """Fit; then make one point of the readings at each size, those of earlier plans faded; the heaviest, by size."""
    for row, readings, points in zip(_of_all(_fit_rows, windows, earlier), windows, earlier):
        fixed_s, per_sample_s, noise, *weights = row
        yield _remember(points, readings, weights, noise), CostModel(fixed_s, per_sample_s)


def _remember(
    earlier: Sequence[Point], readings: Sequence[Reading], weights: Sequence[float], noise: float
) -> tuple[Point, ...]:
    groups: dict[float, list[tuple[float, float]]] = {}
    for reading, weight in zip(readings, weights):
        if weight:
            groups.setdefault(reading.samples, []).append((reading.seconds, weight))
    points = {size: _mean_point(size, rows, noise) for size, rows in groups.items()}
    for old in earlier:
        faded = replace(old, weight=old.weight * _FADE)
        points[old.samples] = _joined(points[old.samples], faded) if old.samples in points else faded
    heaviest = sorted(points.values(), key=lambda point: (-point.weight, point.samples))[:_POINTS]
    return tuple(sorted(heaviest, key=lambda point: point.samples))


def _mean_point(size: float, rows: Sequence[tuple[float, float]], noise: float) -> Point:
    count = math.fsum(weight for _, weight in rows)
    seconds = math.fsum(weight * seconds for seconds, weight in rows) / count
    return Point(size, seconds, 1.0 / (noise**2 / count + fitting.DRIFT**2))


def _joined(one: Point, other: Point) -> Point:
    weight = one.weight + other.weight
    return Point(one.samples, (one.weight * one.seconds + other.weight * other.seconds) / weight, weight)
