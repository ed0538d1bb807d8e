"""What the entries of a ledger come to: what of an epoch is missing, came twice or was padded, and by whom. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from minigrad.data.intervals import Intervals, shown
from minigrad.data.order import Indices

_NAMED = 8  # in words


class Taking(NamedTuple):
    """Samples that a rank took in a step, as intervals of places."""

    step: int
    rank: int
    places: Intervals

    def __str__(self) -> str:
        return f"{shown(self.places)} by rank {self.rank} in step {self.step}"


class _Taken(Protocol):
    """What `Takings` reads of an entry."""

    @property
    def step(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def weight(self) -> float: ...


class Takings(NamedTuple):
    """The samples of some entries, one a place of each array.

    Attributes:
        places: In the epoch's order; from its length on they are padding. int64, as ranks and steps.
        weights: What each counted by, float64.
    """

    places: Indices
    ranks: Indices
    steps: Indices
    weights: np.ndarray[Any, np.dtype[np.float64]]

    @staticmethod
    def of(entries: Iterable[tuple[_Taken, Indices]]) -> Takings:
        """From entries and their places, a row of these for each step."""
        found = list(entries)

        def row(values: Iterable[Any], dtype: Any) -> Any:
            return np.concatenate([np.zeros(0, dtype), *values]).astype(dtype, copy=False)

        return Takings(
            row((places.reshape(-1) for _, places in found), np.int64),
            row((np.full(places.size, entry.rank) for entry, places in found), np.int64),
            row((np.repeat(entry.step + np.arange(len(places)), places.shape[1]) for entry, places in found), np.int64),
            row((np.full(places.size, entry.weight) for entry, places in found), np.float64),
        )

    def named(self, chosen: np.ndarray[Any, np.dtype[np.bool_]], length: int) -> tuple[Taking, ...]:
        """Those that are chosen, by step and rank; places of padding are those of the samples that came again."""
        picked = np.flatnonzero(chosen)
        order = picked[np.lexsort((self.places[picked] % length, self.ranks[picked], self.steps[picked]))]
        places, ranks, steps = self.places[order] % length, self.ranks[order], self.steps[order]
        changes = np.flatnonzero((np.diff(ranks) != 0) | (np.diff(steps) != 0)) + 1
        return tuple(
            Taking(int(steps[part[0]]), int(ranks[part[0]]), intervals_of(places[part]))
            for part in np.split(np.arange(len(order)), changes)
            if len(part)
        )


@dataclass(frozen=True)
class Audit:
    """What there is to say of an epoch.

    Attributes:
        epoch, length: Which one, of how many samples.
        missing: Places of its order that no step combined.
        repeated: Each taking of a place that was combined more than once, the first one too.
        padded: Takings beyond the end of the order, by which ranks got equally many: places of samples that came again.
    """

    epoch: int
    length: int
    missing: Intervals
    repeated: tuple[Taking, ...]
    padded: tuple[Taking, ...]

    @property
    def is_exact(self) -> bool:
        """Whether each sample was combined once, and none more often."""
        return not (self.missing or self.repeated or self.padded)

    def __str__(self) -> str:
        found = [f"missing {shown(self.missing)}"] if self.missing else []
        found += [f"{what} {_listed(each)}" for what, each in self._takings() if each]
        return f"epoch {self.epoch} of {self.length} samples: {'; '.join(found) or 'each once'}"

    def _takings(self) -> Sequence[tuple[str, tuple[Taking, ...]]]:
        return ("repeated", self.repeated), ("padded", self.padded)


def audit_of(length: int, taken: Takings, epoch: int) -> Audit:
    """What the takings of an epoch of so many samples come to."""
    padded = taken.places >= length
    times = np.bincount(taken.places[~padded], minlength=length)
    repeated = ~padded & (times[np.where(padded, 0, taken.places)] > 1)
    missing = intervals_of(np.flatnonzero(times == 0))
    return Audit(epoch, length, missing, taken.named(repeated, length), taken.named(padded, length))


def intervals_of(places: Indices) -> Intervals:
    """Places in ascending order as intervals.

    Example:
        >>> intervals_of(np.array([0, 1, 2, 5]))
        ((0, 3), (5, 6))
    """
    if not len(places):
        return ()
    breaks = np.flatnonzero(np.diff(places) > 1) + 1
    return tuple((int(part[0]), int(part[-1]) + 1) for part in np.split(places, breaks))


def _listed(takings: Sequence[Taking]) -> str:
    more = f" and {len(takings) - _NAMED} more" if len(takings) > _NAMED else ""
    return ", ".join(map(str, takings[:_NAMED])) + more
