"""In which steps a rank is late: in each, now and then, or more and more. Pure.

What varies is told from what stands out by how much the seconds of one step differ from those of the next: that spread
is the same whether they grow, or jump now and then. Lines are those of Theil (1950) and Sen (1968): the median of all
slopes between two points, which some outliers do not turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import fmean, median
from typing import Literal

Pattern = Literal["constant", "occasional", "growing"]

_QUANTILE, _AT_QUANTILE = 0.35, 0.4538  # of the size of a normal deviate: so far from its mean it is in 35 of 100 cases
_STANDS_OUT = 4.0  # standard deviations
_BY_CHANCE = 2.0  # one step has to cost three times as much as many have, two of them twice: anything may happen once
_MOST_POINTS = 24  # that a line is drawn through
_LEAST_POINTS, _LEAST_SIDE = 6, 3
_FILLED = 0.8  # of a stretch of steps


@dataclass(frozen=True)
class Seen:
    """What was found in the seconds of one rank.

    Attributes:
        at: In which steps, by their place.
        by_s: On average in them.
        first_s, last_s: In the first and the last of them; by_s where it does not grow.
    """

    pattern: Pattern
    at: tuple[int, ...]
    by_s: float
    first_s: float
    last_s: float


def spread_of(values: Sequence[float]) -> float:
    """The standard deviation of numbers that may also grow, or jump now and then; 0 for fewer than two.

    Example:
        >>> spread_of([1.0, 2.0, 3.0, 4.0, 9.0, 6.0]) < 2.0
        True
    """
    between = sorted(abs(later - before) for before, later in zip(values, values[1:]))
    return between[int(_QUANTILE * len(between))] / (sqrt(2.0) * _AT_QUANTILE) if between else 0.0


def pattern_in(late_s: Sequence[float], spread_s: float, least_s: float, at_once_s: float = 0.0) -> Seen | None:
    """In which steps a rank is late; None where it is not.

    Args:
        late_s: How much longer it took than the others, in each step.
        spread_s: How that varies anyway.
        least_s: What it has to come to, on average over all steps; more where these are few.
        at_once_s: What it has to come to in a step that is named by itself.

    Example:
        >>> pattern_in([0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 7.0, 0.0], 0.0, 0.5)
        Seen(pattern='occasional', at=(2, 6), by_s=6.0, first_s=6.0, last_s=6.0)
    """
    count = len(late_s)
    found = _growing(late_s, range(count), least_s)
    if found is None:
        stands_out_s = max(least_s, at_once_s, _STANDS_OUT * spread_s)
        at = [place for place, seconds in enumerate(late_s) if seconds > stands_out_s]
        is_one_stretch = len(at) in (count, *range(3, count)) and len(at) >= _FILLED * (at[-1] - at[0] + 1)
        if is_one_stretch:
            found = _growing(late_s, range(at[0], at[-1] + 1), least_s) if at[-1] - at[0] + 1 < count else None
            found = found or _seen("constant", late_s, at)
        elif _is_level([seconds for seconds in late_s if seconds <= stands_out_s], spread_s, least_s):
            found = _seen("constant", late_s, _of_level(late_s, least_s))
        elif at and at != [0]:  # the first step sets much up
            found = _seen("occasional", late_s, at)
    if found is None:
        return None
    by_chance = 1.0 + _BY_CHANCE / len(found.at) if found.pattern == "occasional" else 1.0
    return found if found.by_s * len(found.at) >= least_s * count * by_chance else None


def _is_level(values: Sequence[float], spread_s: float, least_s: float) -> bool:
    """Whether the middle one of some numbers is more than that, and than its own error."""
    return bool(values) and median(values) > max(least_s, 1.25 * _STANDS_OUT * spread_s / sqrt(len(values)))


def _of_level(late_s: Sequence[float], least_s: float) -> range:
    """The steps of a level: all of them, or those on one side of a step where it ends, or begins."""
    count = len(late_s)
    cut = min(range(_LEAST_SIDE, count - _LEAST_SIDE + 1), key=lambda cut: _off_in_two(late_s, cut), default=0)
    if cut and _off_in_two(late_s, cut) <= 0.5 * _off(late_s):
        late = [part for part in (range(cut), range(cut, count)) if median(late_s[part[0] : part[-1] + 1]) > least_s]
        if len(late) == 1:
            return late[0]
    return range(count)


def _off_in_two(values: Sequence[float], cut: int) -> float:
    return _off(values[:cut]) + _off(values[cut:])


def _seen(pattern: Pattern, late_s: Sequence[float], at: Sequence[int]) -> Seen:
    by_s = fmean(late_s[place] for place in at)
    return Seen(pattern, tuple(at), by_s, by_s, by_s)


def _growing(late_s: Sequence[float], places: range, least_s: float) -> Seen | None:
    """What grows in some steps that follow each other; None where a level, or two, say as much as a line does."""
    points = _points(late_s, places)
    if len(points) < _LEAST_POINTS:
        return None
    slope = median((other[1] - one[1]) / (other[0] - one[0]) for one, other in combinations(points, 2))
    level = median(y - slope * x for x, y in points)
    off = sum(abs(y - slope * x - level) for x, y in points)
    values = [y for _, y in points]
    flat = _off(values)
    steps = min(_off_in_two(values, cut) for cut in range(1, len(values)))
    last_s = slope * places[-1] + level
    rise_s = slope * (len(places) - 1)
    if rise_s < max(2.0 * least_s, 0.5 * last_s) or off > 0.5 * flat or off > steps:
        return None
    at = [place for place in places if slope * place + level > least_s]
    if not at:
        return None
    seen = _seen("growing", late_s, at)
    return Seen("growing", seen.at, seen.by_s, slope * at[0] + level, slope * at[-1] + level)


def _points(late_s: Sequence[float], places: range) -> list[tuple[float, float]]:
    """Places and seconds; of many, the medians of so many that lie beside each other."""
    count = min(len(places), _MOST_POINTS)
    cuts = [places[0] + len(places) * number // count for number in range(count + 1)]
    return [((begin + end - 1) / 2, median(late_s[begin:end])) for begin, end in zip(cuts, cuts[1:])]


def _off(values: Sequence[float]) -> float:
    """How far numbers are from their median, all in all."""
    middle = median(values)
    return sum(abs(value - middle) for value in values)
