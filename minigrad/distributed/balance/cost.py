"""What a rank's step costs: seconds = fixed_s + per_sample_s · samples, fitted while training goes on. Pure.

Both parts matter. A rank whose time is mostly launching kernels gains little from fewer samples; read as so many
samples a second, it would look the slower the fewer it gets, and any division of a batch would confirm itself.

The fit weighs readings by how far they are from the rest (Tukey's biweight), so that a pause of the garbage collector
does not count. It leans towards fixed_s = 0 as far as noise leaves the two parts open: exact readings at two sizes
give both parts exactly; readings at one size give fixed_s = 0, and a time that is right at that size.

Many ranks are fitted at once, as arrays with a row for each reading and a column for each rank. Columns have nothing to
do with each other, and sums run down a column one by one, so what a rank gets depends neither on how many there are nor
on their order.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import as_amount, as_real, keep_as
from minigrad.backend.dtypes import Array
from minigrad.errors import ArgumentError

_FADE = 0.8  # what the readings of a division count for after the next
_POINTS = 12  # sizes remembered from earlier divisions
_BLOCK = 4096  # ranks that are fitted at once: what they need fits into a cache
_ROUNDS = 12  # of reweighting
_TUKEY = 4.685  # biweight cut, in standard deviations: 95 % efficient for normal noise
_MAD = 1.4826  # standard deviation over median absolute deviation, for normal noise
_FIRST_SPREAD, _LEAST_SPREAD = 0.05, 1e-4  # relative: what is never an outlier, in the first round and later
_LEAST_NOISE = 1e-6  # relative
_FIXED_SPREAD = 0.3  # of fixed_s / seconds around 0, before any reading
_SAME_SIZE = 1e-12  # relative variance under which sizes are one
_DRIFT = 0.002  # relative: by how much a rank changes from division to division without a cause
_CHANGE_SCORE, _CHANGE_SIZE, _CHANGE_LENGTH = 4.0, 0.1, 5  # a change of speed: in deviations, relative, in steps


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
    """What readings at one size said under an earlier division.

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
        earlier: From before the division in use.
        window: Readings under the division in use, the oldest first.
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
    """Fit ranks at the end of a division, and put the readings away for the next.

    A rank that changes its speed does so in both parts of its cost. So where speed changed among the readings, those
    before and all that earlier divisions said are brought to the level of those after; and what earlier divisions
    said is, too, where no cost model that it allows explains the readings.

    Returns:
        Of each rank, the history with an empty window, and the model; None where there was never a reading.
    """
    read = [rank for rank, history in enumerate(histories) if history.window]
    windows, earlier = [histories[rank].window for rank in read], [histories[rank].earlier for rank in read]
    starts = _of_all(_change_of_speed, windows, earlier)
    heads = [window[:start] or window for window, start in zip(windows, starts)]
    tails = [window[start:] for window, start in zip(windows, starts)]
    earlier = _brought_to(_of_all(_present_level, heads, earlier), earlier)
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
    compute: Callable[[Readings, Points], Array],
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
            rows = Readings(*_columns([windows[rank] for rank in ranks], ("samples", "seconds")))
            points = Points(*_columns([earlier[rank] for rank in ranks], ("samples", "seconds", "weight")))
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


def _fit_rows(rows: Readings, earlier: Points) -> Array:
    """Fixed and per-sample cost, noise, and the weight of each reading."""
    costs, weights, noise = _fit(rows, earlier)
    return np.concatenate([[*costs, noise], weights])


def _level_of_earlier(rows: Readings, earlier: Points) -> Array:
    return _level(_regress(earlier), rows)


def _from_earlier(points: Sequence[Point]) -> CostModel | None:
    return CostModel(*_of_all(lambda _, earlier: np.array(_regress(earlier)), [()], [points])[0]) if points else None


def _brought_to(levels: Sequence[float], earlier: Sequence[tuple[Point, ...]]) -> list[tuple[Point, ...]]:
    return [
        points if level == 1.0 else tuple(replace(point, seconds=point.seconds * level) for point in points)
        for points, level in zip(earlier, levels)
    ]


def _remembered(
    windows: Sequence[Sequence[Reading]], earlier: Sequence[Sequence[Point]]
) -> Iterator[tuple[tuple[Point, ...], CostModel]]:
    """Fit; then make one point of the readings at each size, earlier ones faded; the heaviest, by size."""
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
    return Point(size, seconds, 1.0 / (noise**2 / count + _DRIFT**2))


def _joined(one: Point, other: Point) -> Point:
    weight = one.weight + other.weight
    return Point(one.samples, (one.weight * one.seconds + other.weight * other.seconds) / weight, weight)


# ------------------------------------------------------------------------------------------------ fits, for all columns


class Costs(NamedTuple):
    """The cost model of each rank, (ranks,)."""

    fixed_s: Array
    per_sample_s: Array

    def time_s(self, samples: Array) -> Array:
        """Seconds for so many samples."""
        return self.fixed_s + self.per_sample_s * samples

    def scaled(self, factor: Array) -> Costs:
        """Models that take `factor` times as long."""
        return Costs(self.fixed_s * factor, self.per_sample_s * factor)


class Readings(NamedTuple):
    """Readings of each rank, (readings, ranks): at least one."""

    samples: Array
    seconds: Array


class Points(NamedTuple):
    """What earlier divisions said of each rank, (points, ranks): perhaps nothing."""

    samples: Array
    seconds: Array
    weight: Array


class Fit(NamedTuple):
    """Models, the weight in [0, 1] of each reading (readings, ranks), and the relative noise of those (ranks,)."""

    costs: Costs
    weights: Array
    noise: Array


def _fit(rows: Readings, earlier: Points) -> Fit:
    """The models that most readings agree with, of those found from several guesses."""
    first, second = (
        _refined(guess, rows, earlier) for guess in (_first_guess(rows, earlier), _line_through_medians(rows))
    )
    better = _total(second.weights) > _total(first.weights)
    fixed_s, per_sample_s = (np.where(better, b, a) for a, b in zip(first.costs, second.costs))
    weights, noise = (np.where(better, b, a) for a, b in zip(first[1:], second[1:]))
    return Fit(Costs(fixed_s, per_sample_s), weights, noise)


def _level(costs: Costs, rows: Readings) -> Array:
    """How many times as long as the models say steps take."""
    return _median(rows.seconds / costs.time_s(rows.samples))


def _change_of_speed(rows: Readings, earlier: Points) -> Array:
    """The number of the first reading after a rank changed its speed; 0 where it did not.

    The split that separates two levels best counts as a change where they differ by more than noise (as steps that
    follow each other show it) and by more than a tenth.
    """
    length, ranks = rows.samples.shape
    best_score, best_start = np.full(ranks, _CHANGE_SCORE), np.zeros(ranks, np.int64)
    if length < 2 * _CHANGE_LENGTH:
        return best_start
    levels = np.log(rows.seconds / _first_guess(rows, earlier).time_s(rows.samples))
    steps = _median(np.abs(levels[1:] - levels[:-1]))
    noise = np.maximum(_MAD * steps / math.sqrt(2.0), _CHANGE_SIZE / _CHANGE_SCORE)
    ordered = np.sort(levels, axis=0)
    levels = np.clip(levels, ordered[length // 10], ordered[-1 - length // 10])
    whole, before = _total(levels), _total(levels[: _CHANGE_LENGTH - 1])
    for start in range(_CHANGE_LENGTH, length - _CHANGE_LENGTH + 1):
        before = before + levels[start - 1]
        jump = np.abs((whole - before) / (length - start) - before / start)
        score = jump / (noise * math.sqrt(1.0 / start + 1.0 / (length - start)))
        better = (score > best_score) & (jump > _CHANGE_SIZE)
        best_score, best_start = np.where(better, score, best_score), np.where(better, start, best_start)
    return best_start


def _present_level(rows: Readings, earlier: Points) -> Array:
    """By how much earlier divisions are off: 1 where a model that they allow explains the readings."""
    if not len(earlier.samples):
        return np.ones(rows.samples.shape[1])
    length = len(rows.samples)
    shape, size = _regress(earlier), _total(rows.samples) / length
    factor = _level(shape, rows)
    noise = _MAD * _median(np.abs(_residuals(shape.scaled(factor), rows)))
    slack = 1.0 + 5.0 * _DRIFT + 3.0 * noise / math.sqrt(length)
    least_s, most_s = _forecast_s(earlier, shape, size)
    now_s = factor * shape.time_s(size)
    return np.where((least_s / slack <= now_s) & (now_s <= most_s * slack), 1.0, factor)


def _forecast_s(points: Points, shape: Costs, size: Array) -> tuple[Array, Array]:
    """The least and the most seconds for a size: points leave open how much of the time is fixed."""
    m = _Moments(points.samples, points.seconds, points.weight / points.seconds**2)
    precision = 1.0 / _FIXED_SPREAD**2 + m.y**2 * m.weight * m.xx / (m.xx + m.weight * m.x**2)
    fixed, spread = shape.fixed_s / shape.time_s(m.x), 3.0 / np.sqrt(precision)
    fractions = (np.maximum(0.0, fixed - spread), np.minimum(1.0, fixed + spread))
    one, other = (m.y * (f + (1.0 - f) * size / m.x) for f in fractions)
    return np.minimum(one, other), np.maximum(one, other)


# ------------------------------------------------------------------------------------------------------- regression


def _refined(costs: Costs, rows: Readings, earlier: Points) -> Fit:
    """Fit and weigh in turn, until a rank's model stays."""
    samples, seconds = (np.concatenate([now, before]) for now, before in zip(rows, earlier))
    found, least = Fit(costs, np.ones(rows.samples.shape), np.ones(rows.samples.shape[1])), _FIRST_SPREAD
    moving = np.ones(rows.samples.shape[1], bool)
    for _ in range(_ROUNDS):
        costs = found.costs
        weights = _biweights(_residuals(costs, rows), least)
        noise = _noise(costs, rows, weights)
        points = Points(samples, seconds, np.concatenate([weights / noise**2, earlier.weight]))
        better = _regress(points, costs.time_s(samples))
        kept = Costs(*(np.where(moving, new, old) for new, old in zip(better, costs)))
        found = Fit(kept, np.where(moving, weights, found.weights), np.where(moving, noise, found.noise))
        if least == _LEAST_SPREAD:
            moving = moving & ~_is_close(better, costs)
            if not moving.any():
                break
        least = _LEAST_SPREAD
    return found


def _first_guess(rows: Readings, earlier: Points) -> Costs:
    """The shape that earlier divisions showed, else fixed_s = 0; at the level of the median reading."""
    ranks = rows.samples.shape[1]
    shape = _regress(earlier) if len(earlier.samples) else Costs(np.zeros(ranks), np.ones(ranks))
    return shape.scaled(_level(shape, rows))


def _line_through_medians(rows: Readings) -> Costs:
    """From few samples one more is much more, so what costs a fixed part seems an outlier where none is assumed."""
    order = np.lexsort((rows.seconds, rows.samples), axis=0)
    samples, seconds = (np.take_along_axis(column, order, 0) for column in rows)
    row, last = np.arange(len(samples))[:, None], len(samples) - 1
    ends = samples[1:] != samples[:-1]  # of a run of one size
    none = np.ones((1, samples.shape[1]), bool)
    start = np.maximum.accumulate(np.where(np.concatenate([none, ends]), row, 0))
    end = np.minimum.accumulate(np.where(np.concatenate([ends, none]), row, last)[::-1])[::-1]
    low, high = (np.take_along_axis(seconds, middle, 0) for middle in ((start + end) // 2, (start + end + 1) // 2))
    medians = (low + high) / 2
    return _regress(Points(samples, medians, np.full(samples.shape, 1.0 / _LEAST_SPREAD**2)))


def _residuals(costs: Costs, rows: Readings) -> Array:
    return rows.seconds / costs.time_s(rows.samples) - 1.0


def _few(count: int) -> float:
    """By how much few residuals have to be widened to count as much as many (Rousseeuw and Leroy, 1987)."""
    return 1.0 + 5.0 / max(1, count - 2)


def _biweights(residuals: Array, least: float) -> Array:
    cut = _TUKEY * np.maximum(least, _MAD * _few(len(residuals)) * _median(np.abs(residuals)))
    return np.maximum(0.0, 1.0 - (residuals / cut) ** 2) ** 2


def _noise(costs: Costs, rows: Readings, weights: Array) -> Array:
    """Relative deviation of readings around the best line through them, whatever its slope."""
    expected_s = costs.time_s(rows.samples)
    line = _Moments(rows.samples, rows.seconds, weights / expected_s**2)
    squares = _total(weights * ((rows.seconds - line.at(rows.samples)) / expected_s) ** 2)
    spread = np.sqrt(squares / np.maximum(1.0, _total(weights) - 2.0))
    return np.maximum(_LEAST_NOISE, _few(len(weights)) * spread)


class _Moments:
    """Weighted means and sums of squares."""

    def __init__(self, x: Array, y: Array, weight: Array) -> None:
        self.weight = _total(weight)
        self.x, self.y = _total(weight * x) / self.weight, _total(weight * y) / self.weight
        off_x = x - self.x
        self.xx, self.xy = _total(weight * off_x**2), _total(weight * off_x * (y - self.y))
        several = self.xx > _SAME_SIZE * self.weight * self.x**2
        self.xx, self.xy = np.where(several, self.xx, 0.0), np.where(several, self.xy, 0.0)

    def at(self, x: Array) -> Array:
        """The best line at x; the mean where there is but one size."""
        return self.y + self.xy / np.where(self.xx > 0.0, self.xx, 1.0) * (x - self.x)


def _regress(points: Points, scales: Array | None = None) -> Costs:
    """Least squares of relative errors, with fixed_s / seconds normal around 0 before any reading, and no part < 0.

    Args:
        scales: What errors are relative to; by default the seconds.
    """
    m = _Moments(points.samples, points.seconds, points.weight / (points.seconds if scales is None else scales) ** 2)
    prior = 1.0 / (_FIXED_SPREAD * m.y) ** 2
    determinant = m.weight * m.xx + prior * (m.xx + m.weight * m.x**2)
    fixed_s = m.weight * (m.y * m.xx - m.x * m.xy) / determinant
    per_sample_s = (m.xy * (m.weight + prior) + prior * m.weight * m.x * m.y) / determinant
    proportional = (m.xy + m.weight * m.x * m.y) / (m.xx + m.weight * m.x**2)
    no_fixed, no_slope = fixed_s < 0.0, (fixed_s >= 0.0) & (per_sample_s < 0.0)
    return Costs(
        np.where(no_fixed, 0.0, np.where(no_slope, m.y, fixed_s)),
        np.where(no_fixed, proportional, np.where(no_slope, 0.0, per_sample_s)),
    )


def _is_close(one: Costs, other: Costs) -> Array:
    fixed = _differ_little(one.fixed_s, other.fixed_s, 1e-12 * one.per_sample_s)
    return fixed & _differ_little(one.per_sample_s, other.per_sample_s, 1e-12 * one.fixed_s)


def _differ_little(a: Array, b: Array, slack: Array) -> Array:
    return np.abs(a - b) <= np.maximum(1e-9 * np.maximum(np.abs(a), np.abs(b)), slack)


def _total(rows: Array) -> Array:
    """The sum of each column, from above: NumPy's own order depends on the number of columns."""
    total: Array = np.add.accumulate(rows)[-1]
    return total


def _median(rows: Array) -> Array:
    ordered = np.sort(rows, axis=0)
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2
