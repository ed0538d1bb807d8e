"""ChunkPool: the samples of one epoch that no rank was given yet. Pure: every call returns the pool that is left.

A chunk is whole batches, each a stretch of the epoch's order; only what ends an epoch is shortened, and so that all
ranks are done at one time. Chunks grow smaller as fewer samples are left: guided self-scheduling (Polychronopoulos and
Kuck, IEEE Transactions on Computers C-36, 1987), with the speeds of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_list, check_switch
from minigrad.data.intervals import Interval, Intervals, cut, shown, size_of, split, united, without
from minigrad.data.order import WORD, Indices, Shares, largest_remainder, permutation
from minigrad.data.sampler import check_keys
from minigrad.errors import ArgumentError, StateDictError

_FIXED = ("length", "batch_size", "seed", "shuffle")


@dataclass(frozen=True)
class ChunkPool:
    """What is left of one epoch, and when each rank is done with what it was given.

    Args:
        length: Samples of an epoch, >= 0.
        batch_size: Of a whole batch of one rank, > 0.
        seed: Of the shuffle, in [0, 2**64), the same on all ranks.
        epoch: Which one, in [0, 2**64).
        shuffle: Another order in each epoch; else the samples' own.

    Attributes:
        left: Places of the epoch's order that nobody was given, as [start, stop); all of them at first.
        ready: When each rank is done with its chunks, as if it took counts[rank] samples in a unit of time; without
            effect but for the differences. Empty before the first `take`, and after ranks have met.

    Raises:
        ArgumentError: a value out of its range.

    Example:
        >>> pool = ChunkPool(10, batch_size=32, shuffle=False)  # fewer samples than a batch: each rank gets a part
        >>> pool, mine = pool.take(0, counts=(1, 1))
        >>> pool, theirs = pool.take(1, counts=(1, 1))
        >>> mine, theirs, pool.remaining
        (((0, 5),), ((5, 10),), 0)
    """

    length: int
    batch_size: int
    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    left: Intervals | None = None
    ready: tuple[Fraction, ...] = ()

    def __post_init__(self) -> None:
        ranges = {"length": (0, None), "batch_size": (1, None), "seed": (0, WORD), "epoch": (0, WORD)}
        for name, (least, end) in ranges.items():
            object.__setattr__(self, name, as_integer("ChunkPool", name, getattr(self, name), least, end))
        check_switch("ChunkPool", shuffle=self.shuffle)
        left = ((0, self.length),) if self.left is None else self.left
        object.__setattr__(self, "left", united(left))
        self._check_places("left", self.places)

    @property
    def places(self) -> Intervals:
        """What is left, as intervals of the epoch's order."""
        return self.left or ()

    @property
    def remaining(self) -> int:
        """Samples that are left."""
        return size_of(self.places)

    def order(self) -> Indices:
        """The samples of the epoch, in its order."""
        return permutation(self.length, self.seed, self.epoch) if self.shuffle else np.arange(self.length)

    def take(self, rank: int, counts: Sequence[int], most: int | None = None) -> tuple[ChunkPool, Intervals]:
        """What a rank that comes for work gets, while the others may still be busy.

        That is ceil(batches left · counts[rank] / Σ counts) batches. It is shortened, to whole batches where it can
        be, to what the rank can do until all are done, where the others go on at the speed of their counts: what is
        left for a rank that comes late is not given to one that comes again.

        Args:
            rank: In [0, len(counts)).
            counts: The batches of each rank in the same time, integers >= 0 of which one is > 0, equal on all ranks.
            most: The most batches that it gets, >= 0; None for no limit.

        Returns:
            The pool that is left, and the places of the epoch's order: none where the rest is for the other ranks.

        Raises:
            ArgumentError: a rank that is none of those with counts, or counts or most that are no such numbers.
        """
        speeds = self.check_counts("ChunkPool.take", counts)
        rank = as_integer("ChunkPool.take", "rank", rank, 0, len(speeds))
        ready = self.ready or (Fraction(0),) * len(speeds)
        batches = -(-(-(-self.remaining // self.batch_size)) * speeds[rank] // sum(speeds))
        if most is not None:
            batches = min(batches, as_integer("ChunkPool.take", "most", most, 0))
        samples = min(self._until_all_are_done(speeds, ready)[rank], batches * self.batch_size)
        if samples > self.batch_size:
            samples -= samples % self.batch_size
        taken, left = split(self.places, samples)
        done = ready if not samples else tuple(
            when + Fraction(samples, speeds[rank]) if number == rank else when for number, when in enumerate(ready)
        )
        return replace(self, left=left, ready=done), taken

    def deal(self, counts: Sequence[int]) -> tuple[ChunkPool, tuple[Intervals, ...]]:
        """What each rank gets where all have met: counts[rank] whole batches, one rank's behind the other's.

        Where fewer samples are left they are divided in proportion, by largest remainders, so that all ranks are done
        at one time: batches are shortened, and no rank with a count is left without while there are enough samples.

        Args:
            counts: See `take`.

        Returns:
            The pool that is left, and the places of each rank.

        Example:
            >>> pool, parts = ChunkPool(128, batch_size=32, shuffle=False).deal((1, 1))
            >>> parts, pool.remaining
            ((((0, 32),), ((32, 64),)), 64)
        """
        given = self.check_counts("ChunkPool.deal", counts)
        sizes = [count * self.batch_size for count in given]
        if sum(sizes) > self.remaining:
            sizes = largest_remainder(self.remaining, [Fraction(count, sum(given)) for count in given])
        return self._dealt(sizes)

    def divide(self, shares: Shares) -> tuple[ChunkPool, tuple[Intervals, ...]]:
        """All that is left, one contiguous part a rank in proportion to shares, by largest remainders.

        Args:
            shares: Fraction for each rank, >= 0, of sum 1.
        """
        return self._dealt(largest_remainder(self.remaining, shares))

    def _dealt(self, sizes: Sequence[int]) -> tuple[ChunkPool, tuple[Intervals, ...]]:
        parts = tuple(cut(self.places, sizes))
        _, left = split(self.places, sum(sizes))
        return replace(self, left=left, ready=()), parts

    def batches(self, places: Iterable[Interval]) -> list[Intervals]:
        """Places cut into batches, of which the last one may be shorter.

        Example:
            >>> ChunkPool(9, batch_size=4).batches([(0, 3), (5, 9)])
            [((0, 3), (5, 6)), ((6, 9),)]
        """
        given = tuple(places)
        whole, rest = divmod(size_of(given), self.batch_size)
        return cut(given, [self.batch_size] * whole + [rest] * (rest > 0))

    def give_back(self, places: Iterable[Interval]) -> ChunkPool:
        """The pool with places in it again that were taken, and not used: they are dealt again, to any rank.

        Raises:
            ArgumentError: places that are outside the epoch, twice among these, or not taken.
        """
        back = tuple(places)
        self._check_places("places to give back", back)
        double = without(back, without(back, self.places))
        if double or size_of(united(back)) < size_of(back):
            what = f"{shown(double)}, which nobody has" if double else f"some of them twice: {shown(back)}"
            raise ArgumentError(f"ChunkPool.give_back: expected places that were taken, got {what}")
        return replace(self, left=(*self.places, *back), ready=())

    def next_epoch(self) -> ChunkPool:
        """The whole pool of the epoch after this one."""
        return replace(self, epoch=self.epoch + 1, left=None, ready=())

    def check_counts(self, who: str, counts: Any) -> list[int]:
        """Counts for each rank, as a list.

        Raises:
            ArgumentError: they are no integers >= 0, one of them > 0; or of another number of ranks than before.
        """
        given = [as_integer(who, "each count", count, 0) for count in as_list(who, "counts", counts)]
        if not any(given):
            raise ArgumentError(f"{who}: expected a rank with a count > 0, got {given}")
        if self.ready and len(given) != len(self.ready):
            raise ArgumentError(f"{who}: expected counts for {len(self.ready)} ranks, got {len(given)}: {given}")
        return given

    def _until_all_are_done(self, speeds: Sequence[int], ready: Sequence[Fraction]) -> list[int]:
        """The samples of each rank if what is left is divided so that all are done at one time."""
        if not self.remaining:
            return [0] * len(speeds)
        ranks = sorted((when, rank) for rank, when in enumerate(ready) if speeds[rank])
        end, speed, owed = Fraction(0), 0, Fraction(self.remaining)
        for number, (when, rank) in enumerate(ranks):
            speed += speeds[rank]
            owed += when * speeds[rank]
            end = owed / speed
            if number + 1 == len(ranks) or end <= ranks[number + 1][0]:
                break
        exact = [max(Fraction(0), (end - when) * count) for when, count in zip(ready, speeds)]
        return largest_remainder(self.remaining, [part / self.remaining for part in exact])

    def _check_places(self, what: str, places: Iterable[Interval]) -> None:
        for place in places:
            if len(place) != 2 or not 0 <= place[0] <= place[1] <= self.length:
                raise ArgumentError(f"ChunkPool: expected {what} in [0, {self.length}), got {place!r}")

    def state_dict(self) -> dict[str, Any]:
        """What is left, and all settings, as plain data for JSON."""
        ready = [[when.numerator, when.denominator] for when in self.ready]
        fixed = {name: getattr(self, name) for name in _FIXED}
        return {**fixed, "epoch": self.epoch, "left": [list(place) for place in self.places], "ready": ready}

    def loaded(self, state: Mapping[str, Any]) -> ChunkPool:
        """The pool that a `state_dict` tells of.

        Raises:
            StateDictError: it is of other settings, or no state of a pool.
        """
        check_keys("ChunkPool", state, self.state_dict())
        for name in _FIXED:
            own = getattr(self, name)
            if name != "seed" and state[name] != own:
                raise StateDictError(f"ChunkPool: expected a state with {name} {own!r}, got {state[name]!r}")
        try:
            left = tuple((int(start), int(stop)) for start, stop in state["left"])
            ready = tuple(Fraction(*when) for when in state["ready"])
            return replace(self, seed=state["seed"], epoch=state["epoch"], left=left, ready=ready)
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise StateDictError(f"ChunkPool: expected a usable state, got {state!r:.200}: {error}") from error
