"""Intervals: places of an epoch's order as [start, stop) pairs, so that a million of them are a few numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]  # [start, stop), start < stop
Intervals = tuple[Interval, ...]


def size_of(intervals: Iterable[Interval]) -> int:
    """How many places they hold."""
    return sum(stop - start for start, stop in intervals)


def united(intervals: Iterable[Interval]) -> Intervals:
    """The places that are in any of them: in order, none empty, those that touch as one.

    Example:
        >>> united([(4, 6), (0, 2), (2, 3), (7, 7)])
        ((0, 3), (4, 6))
    """
    found: list[Interval] = []
    for start, stop in sorted(intervals):
        if start < stop and found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], stop)
        elif start < stop:
            found.append((start, stop))
    return tuple(found)


def without(intervals: Iterable[Interval], others: Iterable[Interval]) -> Intervals:
    """The places that are in some of them, and in none of the others.

    Example:
        >>> without([(0, 10)], [(2, 3), (9, 12)])
        ((0, 2), (3, 9))
    """
    left: list[Interval] = []
    holes = united(others)
    for start, stop in united(intervals):
        for hole, end in holes:
            if end > start and hole < stop:
                left.append((start, hole))
                start = end
        left.append((start, stop))
    return tuple((start, stop) for start, stop in left if start < stop)


def split(intervals: Iterable[Interval], count: int) -> tuple[Intervals, Intervals]:
    """The first `count` places, or all where they are fewer, and the others.

    Example:
        >>> split([(0, 3), (5, 9)], 4)
        (((0, 3), (5, 6)), ((6, 9),))
    """
    first: list[Interval] = []
    rest: list[Interval] = []
    for start, stop in intervals:
        cut = min(stop, start + count)
        first.append((start, cut))
        rest.append((cut, stop))
        count -= cut - start
    return tuple(part for part in first if part[0] < part[1]), tuple(part for part in rest if part[0] < part[1])


def cut(intervals: Iterable[Interval], sizes: Iterable[int]) -> list[Intervals]:
    """Consecutive parts of so many places each.

    Example:
        >>> cut([(0, 3), (5, 9)], [2, 2, 3])
        [((0, 2),), ((2, 3), (5, 6)), ((6, 9),)]
    """
    parts: list[Intervals] = []
    rest = tuple(intervals)
    for size in sizes:
        first, rest = split(rest, size)
        parts.append(first)
    return parts


def shown(intervals: Sequence[Interval]) -> str:
    """Places in words, the last one of each stretch named too.

    Example:
        >>> shown([(0, 3), (7, 8)])
        '0-2, 7'
    """
    return ", ".join(f"{start}-{stop - 1}" if stop - start > 1 else f"{start}" for start, stop in intervals) or "none"
