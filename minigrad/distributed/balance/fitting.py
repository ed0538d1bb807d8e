"""The arithmetic behind cost models, for many ranks at once. Pure.

Arrays have a row for each reading and a column for each rank. Columns have nothing to do with each other, and sums run
down a column one by one, so what a rank gets depends neither on how many there are nor on their order.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from minigrad.backend.dtypes import Array

_ROUNDS = 12  # of reweighting
_TUKEY = 4.685  # biweight cut, in standard deviations: 95 % efficient for normal noise
_MAD = 1.4826  # standard deviation over median absolute deviation, for normal noise
_FIRST_SPREAD, _LEAST_SPREAD = 0.05, 1e-4  # relative: what is never an outlier, in the first round and later
_LEAST_NOISE = 1e-6  # relative
_FIXED_SPREAD = 0.3  # of fixed_s / seconds around 0, before any reading
_SAME_SIZE = 1e-12  # relative variance under which sizes are one
DRIFT = 0.002  # relative: by how much a rank changes from plan to plan without a cause
_CHANGE_SCORE, _CHANGE_SIZE, _CHANGE_LENGTH = 4.0, 0.1, 5  # a change of speed: in deviations, relative, in steps


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


class Rows(NamedTuple):
    """Readings of each rank, (readings, ranks): at least one."""

    samples: Array
    seconds: Array


class Points(NamedTuple):
    """What earlier plans said of each rank, (points, ranks): perhaps nothing."""

    samples: Array
    seconds: Array
    weight: Array


class Fit(NamedTuple):
    """Models, the weight in [0, 1] of each reading (readings, ranks), and the relative noise of those (ranks,)."""

    costs: Costs
    weights: Array
    noise: Array


def fit(rows: Rows, earlier: Points) -> Fit:
    """The models that most readings agree with, of those found from several guesses."""
    first, second = (
        _refined(guess, rows, earlier) for guess in (_first_guess(rows, earlier), _line_through_medians(rows))
    )
    better = _total(second.weights) > _total(first.weights)
    fixed_s, per_sample_s = (np.where(better, b, a) for a, b in zip(first.costs, second.costs))
    weights, noise = (np.where(better, b, a) for a, b in zip(first[1:], second[1:]))
    return Fit(Costs(fixed_s, per_sample_s), weights, noise)


def regress(points: Points) -> Costs:
    """The models nearest to what earlier plans said."""
    return _regress(points, points.seconds)


def level(costs: Costs, rows: Rows) -> Array:
    """How many times as long as the models say steps take."""
    return _median(rows.seconds / costs.time_s(rows.samples))


def change_of_speed(rows: Rows, earlier: Points) -> Array:
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


def present_level(rows: Rows, earlier: Points) -> Array:
    """By how much earlier plans are off: 1 where a model that they allow explains the readings."""
    if not len(earlier.samples):
        return np.ones(rows.samples.shape[1])
    length = len(rows.samples)
    shape, size = regress(earlier), _total(rows.samples) / length
    factor = level(shape, rows)
    noise = _MAD * _median(np.abs(_residuals(shape.scaled(factor), rows)))
    slack = 1.0 + 5.0 * DRIFT + 3.0 * noise / math.sqrt(length)
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


def _refined(costs: Costs, rows: Rows, earlier: Points) -> Fit:
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


def _first_guess(rows: Rows, earlier: Points) -> Costs:
    """The shape that earlier plans showed, else fixed_s = 0; at the level of the median reading."""
    ranks = rows.samples.shape[1]
    shape = regress(earlier) if len(earlier.samples) else Costs(np.zeros(ranks), np.ones(ranks))
    return shape.scaled(level(shape, rows))


def _line_through_medians(rows: Rows) -> Costs:
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
    return regress(Points(samples, medians, np.full(samples.shape, 1.0 / _LEAST_SPREAD**2)))


def _residuals(costs: Costs, rows: Rows) -> Array:
    return rows.seconds / costs.time_s(rows.samples) - 1.0


def _few(count: int) -> float:
    """By how much few residuals have to be widened to count as much as many (Rousseeuw and Leroy, 1987)."""
    return 1.0 + 5.0 / max(1, count - 2)


def _biweights(residuals: Array, least: float) -> Array:
    cut = _TUKEY * np.maximum(least, _MAD * _few(len(residuals)) * _median(np.abs(residuals)))
    return np.maximum(0.0, 1.0 - (residuals / cut) ** 2) ** 2


def _noise(costs: Costs, rows: Rows, weights: Array) -> Array:
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


def _regress(points: Points, scales: Array) -> Costs:
    """Least squares of relative errors, with fixed_s / seconds normal around 0 before any reading, and no part < 0.

    Args:
        scales: What errors are relative to.
    """
    m = _Moments(points.samples, points.seconds, points.weight / scales**2)
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
    return functools.reduce(np.add, rows)


def _median(rows: Array) -> Array:
    ordered = np.sort(rows, axis=0)
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2
