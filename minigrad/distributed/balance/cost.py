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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minigrad.distributed.balance.shares import check_number
from minigrad.errors import ArgumentError

_ROUNDS = 12  # of reweighting
_TUKEY = 4.685  # biweight cut, in standard deviations: 95 % efficient for normal noise
_MAD = 1.4826  # standard deviation over median absolute deviation, for normal noise
_FIRST_SPREAD, _LEAST_SPREAD = 0.05, 1e-4  # relative: what is never an outlier, in the first round and later
_LEAST_NOISE = 1e-6  # relative
_FIXED_SPREAD = 0.3  # of fixed_s / seconds around 0, before any reading
_SAME_SIZE = 1e-12  # relative variance under which sizes are one
_DRIFT = 0.002  # relative: by how much a rank changes from plan to plan without a cause
_FADE = 0.8  # what the readings of a plan count for after the next
_POINTS = 12  # sizes remembered from earlier plans
_CHANGE_SCORE, _CHANGE_SIZE, _CHANGE_LENGTH = 4.0, 0.1, 5  # a change of speed: in deviations, relative, in steps


@dataclass(frozen=True)
class Reading:
    """One step of one rank: so many samples took so many seconds of computing, waiting not counted."""

    samples: float
    seconds: float

    def __post_init__(self) -> None:
        for name in ("samples", "seconds"):
            value = getattr(self, name)
            if not check_number("Reading", name, value):
                raise ArgumentError(f"Reading: expected {name} as a finite number > 0, got {value!r}")
            object.__setattr__(self, name, float(value))


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
        for name in ("fixed_s", "per_sample_s"):
            object.__setattr__(self, name, check_number("CostModel", name, getattr(self, name)))

    def time_s(self, samples: float) -> float:
        """Seconds for so many samples."""
        return self.fixed_s + self.per_sample_s * samples

    def scaled(self, factor: float) -> CostModel:
        """The model of a rank that takes `factor` times as long for everything."""
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
    return _fit(readings, earlier)[0]


def median_cost(costs: Sequence[CostModel]) -> CostModel:
    """What a rank without readings is taken for: the median of each part over the others."""
    return CostModel(
        statistics.median(cost.fixed_s for cost in costs), statistics.median(cost.per_sample_s for cost in costs)
    )


def settle(history: History) -> tuple[History, CostModel | None]:
    """Fit a rank at the end of a plan, and put the readings away for the next.

    A rank that changes its speed does so in both parts of its cost. So where speed changed among the readings, those
    before and all that earlier plans said are brought to the level of those after; and what earlier plans said is, too,
    where no cost model that it allows explains the readings.

    Returns:
        The history with an empty window, and the model; None where there was never a reading.
    """
    earlier, readings = history.earlier, history.window
    if not readings:
        return history, _regress(earlier) if earlier else None
    start = change_of_speed(readings, earlier)
    if start:
        earlier = _remember(_at_present_speed(earlier, readings[:start]), readings[:start])[0]
        earlier = _scaled(earlier, _level(_regress(earlier), readings[start:]))
    else:
        earlier = _at_present_speed(earlier, readings)
    earlier, model = _remember(earlier, readings[start:])
    return History(earlier), model


# ------------------------------------------------------------------------------------------------------- regression


_Fit = tuple[CostModel, list[float], float]  # the weight in [0, 1] of each reading, the relative noise of those


def _fit(readings: Sequence[Reading], earlier: Sequence[Point]) -> _Fit:
    """The model that most readings agree with, of those found from several guesses."""
    if not readings:
        if not earlier:
            raise ArgumentError("fit_cost: expected at least one reading, got none")
        return _regress(earlier), [], _LEAST_NOISE
    guesses = [_first_guess(readings, earlier), _line_through_medians(readings)]
    return max((_refined(guess, readings, earlier) for guess in guesses), key=lambda fit: math.fsum(fit[1]))


def _refined(model: CostModel, readings: Sequence[Reading], earlier: Sequence[Point]) -> _Fit:
    weights, noise, least = [1.0] * len(readings), _LEAST_NOISE, _FIRST_SPREAD
    for _ in range(_ROUNDS):
        weights = _biweights(_residuals(model, readings), least)
        noise = _noise(model, readings, weights)
        previous, model = model, _regress([*_points(readings, weights, noise), *earlier], model)
        if least == _LEAST_SPREAD and _is_close(model, previous):
            break
        least = _LEAST_SPREAD
    return model, weights, noise


def _first_guess(readings: Sequence[Reading], earlier: Sequence[Point]) -> CostModel:
    """The shape that earlier plans showed, else fixed_s = 0; at the level of the median reading."""
    shape = _regress(earlier) if earlier else CostModel(0.0, 1.0)
    return shape.scaled(_level(shape, readings))


def _line_through_medians(readings: Sequence[Reading]) -> CostModel:
    """From few samples one more is much more, so what costs a fixed part seems an outlier where none is assumed."""
    by_size: dict[float, list[float]] = {}
    for reading in readings:
        by_size.setdefault(reading.samples, []).append(reading.seconds)
    weight = 1.0 / _LEAST_SPREAD**2
    return _regress([Point(n, statistics.median(times), weight * len(times)) for n, times in by_size.items()])


def _level(model: CostModel, readings: Sequence[Reading]) -> float:
    """How many times as long as the model says steps take."""
    return statistics.median(r.seconds / model.time_s(r.samples) for r in readings)


def _residuals(model: CostModel, readings: Sequence[Reading]) -> list[float]:
    return [r.seconds / model.time_s(r.samples) - 1.0 for r in readings]


def _few(count: int) -> float:
    """By how much few residuals have to be widened to count as much as many (Rousseeuw and Leroy, 1987)."""
    return 1.0 + 5.0 / max(1, count - 2)


def _biweights(residuals: Sequence[float], least: float) -> list[float]:
    cut = _TUKEY * max(least, _MAD * _few(len(residuals)) * statistics.median(map(abs, residuals)))
    return [(1.0 - (r / cut) ** 2) ** 2 if abs(r) < cut else 0.0 for r in residuals]


def _noise(model: CostModel, readings: Sequence[Reading], weights: Sequence[float]) -> float:
    """Relative deviation of readings around the best line through them, whatever its slope."""
    line = _Moments([(r.samples, r.seconds, w / model.time_s(r.samples) ** 2) for r, w in zip(readings, weights)])
    squares = math.fsum(
        w * ((r.seconds - line.at(r.samples)) / model.time_s(r.samples)) ** 2 for r, w in zip(readings, weights)
    )
    return max(_LEAST_NOISE, _few(len(readings)) * math.sqrt(squares / max(1.0, math.fsum(weights) - 2.0)))


class _Moments:
    """Weighted mean and sums of squares of (samples, seconds, weight)."""

    def __init__(self, rows: Sequence[tuple[float, float, float]]) -> None:
        self.weight = math.fsum(w for _, _, w in rows)
        self.x = math.fsum(w * x for x, _, w in rows) / self.weight
        self.y = math.fsum(w * y for _, y, w in rows) / self.weight
        self.xx = math.fsum(w * (x - self.x) ** 2 for x, _, w in rows)
        self.xy = math.fsum(w * (x - self.x) * (y - self.y) for x, y, w in rows)
        if self.xx <= _SAME_SIZE * self.weight * self.x**2:
            self.xx = self.xy = 0.0

    def at(self, x: float) -> float:
        """The best line at x; the mean where there is but one size."""
        return self.y + (self.xy / self.xx * (x - self.x) if self.xx else 0.0)


def _regress(points: Sequence[Point], model: CostModel | None = None) -> CostModel:
    """Least squares of relative errors, with fixed_s / seconds normal around 0 before any reading, and no part < 0.

    Args:
        model: What errors are relative to; by default each point's own seconds.
    """
    scales = [p.seconds if model is None else model.time_s(p.samples) for p in points]
    m = _Moments([(p.samples, p.seconds, p.weight / scale**2) for p, scale in zip(points, scales)])
    prior = 1.0 / (_FIXED_SPREAD * m.y) ** 2
    determinant = m.weight * m.xx + prior * (m.xx + m.weight * m.x**2)
    fixed_s = m.weight * (m.y * m.xx - m.x * m.xy) / determinant
    per_sample_s = (m.xy * (m.weight + prior) + prior * m.weight * m.x * m.y) / determinant
    if fixed_s < 0.0:
        fixed_s, per_sample_s = 0.0, (m.xy + m.weight * m.x * m.y) / (m.xx + m.weight * m.x**2)
    elif per_sample_s < 0.0:
        fixed_s, per_sample_s = m.y, 0.0
    return CostModel(fixed_s, per_sample_s)


def _points(readings: Sequence[Reading], weights: Sequence[float], noise: float) -> list[Point]:
    return [Point(r.samples, r.seconds, w / noise**2) for r, w in zip(readings, weights) if w]


def _is_close(one: CostModel, other: CostModel) -> bool:
    return math.isclose(one.fixed_s, other.fixed_s, rel_tol=1e-9, abs_tol=1e-12 * one.per_sample_s) and math.isclose(
        one.per_sample_s, other.per_sample_s, rel_tol=1e-9, abs_tol=1e-12 * one.fixed_s
    )


# ---------------------------------------------------------------------------------------------- changes of speed


def change_of_speed(readings: Sequence[Reading], earlier: Sequence[Point] = ()) -> int:
    """The number of the first reading after a rank changed its speed; 0 where it did not.

    The split that separates two levels best counts as a change where they differ by more than noise (as steps that
    follow each other show it) and by more than a tenth.
    """
    length = len(readings)
    if length < 2 * _CHANGE_LENGTH:
        return 0
    shape = _first_guess(readings, earlier)
    levels = [math.log(r.seconds / shape.time_s(r.samples)) for r in readings]
    steps = statistics.median(abs(b - a) for a, b in zip(levels, levels[1:]))
    noise = max(_MAD * steps / math.sqrt(2.0), _CHANGE_SIZE / _CHANGE_SCORE)
    ordered = sorted(levels)
    low, high = ordered[length // 10], ordered[-1 - length // 10]
    levels = [min(high, max(low, level)) for level in levels]
    whole, before = math.fsum(levels), math.fsum(levels[: _CHANGE_LENGTH - 1])
    best_score, best_start = 0.0, 0
    for start in range(_CHANGE_LENGTH, length - _CHANGE_LENGTH + 1):
        before += levels[start - 1]
        jump = abs((whole - before) / (length - start) - before / start)
        score = jump / (noise * math.sqrt(1.0 / start + 1.0 / (length - start)))
        if score > best_score and jump > _CHANGE_SIZE:
            best_score, best_start = score, start
    return best_start if best_score > _CHANGE_SCORE else 0


def _at_present_speed(earlier: Sequence[Point], readings: Sequence[Reading]) -> tuple[Point, ...]:
    """What earlier plans said; scaled to the level of the readings where no model that it allows explains them."""
    if not earlier:
        return ()
    shape = _regress(earlier)
    size = math.fsum(r.samples for r in readings) / len(readings)
    level = _level(shape, readings)
    noise = _MAD * statistics.median(map(abs, _residuals(shape.scaled(level), readings)))
    slack = 1.0 + 5.0 * _DRIFT + 3.0 * noise / math.sqrt(len(readings))
    least_s, most_s = _forecast_s(earlier, shape, size)
    if least_s / slack <= level * shape.time_s(size) <= most_s * slack:
        return tuple(earlier)
    return _scaled(earlier, level)


def _scaled(points: Sequence[Point], factor: float) -> tuple[Point, ...]:
    return tuple(replace(point, seconds=point.seconds * factor) for point in points)


def _forecast_s(points: Sequence[Point], shape: CostModel, size: float) -> tuple[float, float]:
    """The least and the most seconds for a size: points leave open how much of the time is fixed."""
    m = _Moments([(p.samples, p.seconds, p.weight / p.seconds**2) for p in points])
    precision = 1.0 / _FIXED_SPREAD**2 + m.y**2 * m.weight * m.xx / (m.xx + m.weight * m.x**2)
    fixed, spread = shape.fixed_s / shape.time_s(m.x), 3.0 / math.sqrt(precision)
    ends = [m.y * (f + (1.0 - f) * size / m.x) for f in (max(0.0, fixed - spread), min(1.0, fixed + spread))]
    return min(ends), max(ends)


def _remember(earlier: Sequence[Point], readings: Sequence[Reading]) -> tuple[tuple[Point, ...], CostModel]:
    """Fit; then make one point of the readings at each size, those of earlier plans faded; the heaviest, by size."""
    model, weights, noise = _fit(readings, earlier)
    groups: dict[float, list[tuple[float, float]]] = {}
    for reading, weight in zip(readings, weights):
        if weight:
            groups.setdefault(reading.samples, []).append((reading.seconds, weight))
    points = {size: _mean_point(size, rows, noise) for size, rows in groups.items()}
    for old in earlier:
        faded = replace(old, weight=old.weight * _FADE)
        points[old.samples] = _joined(points[old.samples], faded) if old.samples in points else faded
    heaviest = sorted(points.values(), key=lambda point: (-point.weight, point.samples))[:_POINTS]
    return tuple(sorted(heaviest, key=lambda point: point.samples)), model


def _mean_point(size: float, rows: Sequence[tuple[float, float]], noise: float) -> Point:
    count = math.fsum(weight for _, weight in rows)
    seconds = math.fsum(weight * seconds for seconds, weight in rows) / count
    return Point(size, seconds, 1.0 / (noise**2 / count + _DRIFT**2))


def _joined(one: Point, other: Point) -> Point:
    weight = one.weight + other.weight
    return Point(one.samples, (one.weight * one.seconds + other.weight * other.seconds) / weight, weight)
