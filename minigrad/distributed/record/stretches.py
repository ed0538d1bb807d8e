"""Stretches of time, as when they began and when they ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Stretch = tuple[float, float]


def merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Disjoint stretches, in order, that cover the same time."""
    found: list[Stretch] = []
    for began_s, ended_s in sorted(stretches):
        if found and began_s <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], ended_s)
        else:
            found.append((began_s, ended_s))
    return found


def covered_s(disjoint: Iterable[Stretch]) -> float:
    """The seconds of disjoint stretches."""
    return float(sum(ended_s - began_s for began_s, ended_s in disjoint))


def shared_s(some: Sequence[Stretch], others: Sequence[Stretch]) -> float:
    """The seconds that lie in both of two lists of disjoint stretches."""
    both = covered_s(some) + covered_s(others) - covered_s(merged([*some, *others]))
    return max(0.0, both)
