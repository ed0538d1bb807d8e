"""Dispatch: which batches each rank runs in a round, out of one epoch after the other. Pure: state and counts in.

A round is from one reduction to the next; all ranks come to it together, with equal counts, and compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from minigrad.arguments import as_integer, as_list, check_choice, check_shares
from minigrad.data.chunks import ChunkPool
from minigrad.data.intervals import Interval, Intervals, size_of, split, united
from minigrad.data.sampler import check_keys
from minigrad.errors import ArgumentError, StateDictError

DISPATCHES = ("progressive", "static", "proportional")
_OPTIONS = ("mode", "world_size", "shares", "max_overshoot", "max_batch_diff", "epochs")


class Portion(NamedTuple):
    """Some places of one epoch's order."""

    epoch: int
    places: Intervals


class Batches(NamedTuple):
    """What a round gives: for each rank its batches, and why they are these."""

    of_ranks: tuple[tuple[Portion, ...], ...]
    reason: str


def overshoot_left(planned: int, steps: int, max_overshoot: int) -> tuple[int, str]:
    """How many more batches a rank may run that has run `steps` of the `planned` ones of an epoch; and why.

    Args:
        max_overshoot: The most batches past the plan, out of the next epoch; at 0 the rank waits for the others.

    Example:
        >>> overshoot_left(10, 10, 0), overshoot_left(10, 10, 40)[0]
        ((0, 'waits: 10 batches of a plan of 10, and 0 past it'), 40)
    """
    for name, value in {"planned": planned, "steps": steps, "max_overshoot": max_overshoot}.items():
        as_integer("overshoot_left", name, value, 0)
    left = max(0, planned + max_overshoot - steps)
    return left, f"{'runs' if left else 'waits'}: {steps} batches of a plan of {planned}, and {max_overshoot} past it"


def throttled(counts: Sequence[int], max_batch_diff: int | None) -> tuple[tuple[int, ...], str]:
    """Counts of which none is more than max_batch_diff above that of the slowest rank; and who waits.

    Args:
        counts: Batches of each rank until all meet; one of 0 takes no part, and holds nobody back.
        max_batch_diff: >= 0; None for no limit.

    Example:
        >>> throttled((6, 4, 2), 3)
        ((5, 4, 2), 'rank 0 waits after 5 batches, 3 more than the slowest')
    """
    if max_batch_diff is None or not any(counts):
        return tuple(counts), ""
    most = min(count for count in counts if count) + max_batch_diff
    late = [rank for rank, count in enumerate(counts) if count > most]
    ranks = f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))} wait{'s' * (len(late) == 1)}"
    words = f"{ranks} after {most} batches, {max_batch_diff} more than the slowest" if late else ""
    return tuple(min(count, most) for count in counts), words


def counts_of(shares: Sequence[float | Fraction]) -> tuple[int, ...]:
    """The batches of each rank in a round, in proportion to shares as near as the one with the smallest share has one.

    Example:
        >>> counts_of((0.75, 0.25, 0.0))
        (3, 1, 0)
    """
    exact = [Fraction(share).limit_denominator(10**6) or Fraction(share) for share in shares]  # 0.3 means 3/10
    least = min(share for share in exact if share)
    return tuple(int(share / least + Fraction(1, 2)) for share in exact)


@dataclass(frozen=True)
class _Stock:
    """One epoch: a pool, or the parts into which it was divided."""

    pool: ChunkPool
    parts: tuple[Intervals, ...] | None = None

    @property
    def remaining(self) -> int:
        return self.pool.remaining if self.parts is None else sum(map(size_of, self.parts))

    def deal(self, counts: Sequence[int]) -> tuple[_Stock, list[list[Portion]]]:
        if self.parts is None:
            pool, taken = self.pool.deal(counts)
            left = replace(self, pool=pool)
        else:
            halves = [split(part, count * self.pool.batch_size) for part, count in zip(self.parts, counts)]
            taken = tuple(first for first, _ in halves)
            left = replace(self, parts=tuple(rest for _, rest in halves))
        return left, [self._batches(part) for part in taken]

    def take(self, rank: int, counts: Sequence[int], most: int) -> tuple[_Stock, list[Portion]]:
        if self.parts is None:
            pool, taken = self.pool.take(rank, counts, most)
            return replace(self, pool=pool), self._batches(taken)
        taken, rest = split(self.parts[rank], most * self.pool.batch_size)
        return replace(self, parts=(*self.parts[:rank], rest, *self.parts[rank + 1 :])), self._batches(taken)

    def give_back(self, of_ranks: Sequence[Iterable[Portion]]) -> _Stock:
        back = [
            tuple(place for portion in mine if portion.epoch == self.pool.epoch for place in portion.places)
            for mine in of_ranks
        ]
        if self.parts is None:
            return replace(self, pool=self.pool.give_back(place for mine in back for place in mine))
        parts = tuple(united((*part, *mine)) for part, mine in zip(self.parts, back))
        if size_of(united(place for part in parts for place in part)) < self.remaining + sum(map(size_of, back)):
            raise ArgumentError(
                f"Dispatch.give_back: expected places that were taken, got {back} with {self.parts} left"
            )
        return replace(self, parts=parts)

    def joined(self) -> _Stock:
        left = united(place for part in self.parts or (self.pool.places,) for place in part)
        return _Stock(replace(self.pool, left=left, ready=()))

    def _batches(self, places: Intervals) -> list[Portion]:
        return [Portion(self.pool.epoch, batch) for batch in self.pool.batches(places)]


@dataclass(frozen=True)
class Dispatch:
    """What is left of an epoch and, where ranks run ahead, of the one after it.

    Args:
        pool: The first epoch.
        world_size: Number of ranks.
        mode: "progressive": all ranks take from one pool, whose end is divided in proportion to the counts of the
            last round, so that all are done at one time. "static": each has one contiguous part of the epoch's order,
            in proportion to shares, equal ones by default. "proportional": the same, and without shares in proportion
            to the counts of the epoch's first round.
        shares: Fraction of each rank, >= 0, of sum 1. With "progressive" they say the counts, by `counts_of`.
        max_overshoot: The most batches that a rank runs of the next epoch while others are in this one; 0 for none.
        max_batch_diff: The most batches that a rank runs in a round beyond those of the slowest; None for no limit.
        epochs: How many there are, the first being number 0; needed where ranks run ahead, which ends with the last.

    Raises:
        ArgumentError: a value out of its range, not a share for each rank, or max_overshoot without epochs.
    """

    pool: ChunkPool
    world_size: int
    mode: str = "progressive"
    shares: tuple[float, ...] | None = None
    max_overshoot: int = 0
    max_batch_diff: int | None = None
    epochs: int | None = None
    parts: tuple[Intervals, ...] | None = None
    ahead: _Stock | None = None
    over: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        who = "Dispatch"
        if not isinstance(self.pool, ChunkPool):
            raise ArgumentError(f"{who}: expected a ChunkPool, got {self.pool!r:.100}")
        as_integer(who, "world_size", self.world_size, 1)
        check_choice(who, DISPATCHES, mode=self.mode)
        as_integer(who, "max_overshoot", self.max_overshoot, 0)
        for name, least in {"max_batch_diff": 0, "epochs": 1}.items():
            if getattr(self, name) is not None:
                as_integer(who, name, getattr(self, name), least)
        if self.shares is not None:
            check_shares(who, self.shares)
            object.__setattr__(self, "shares", tuple(float(share) for share in self.shares))
            if len(self.shares) != self.world_size:
                raise ArgumentError(
                    f"{who}: expected a share for each of {self.world_size} ranks, got {len(self.shares)}: "
                    f"{list(self.shares)}"
                )
        if self.max_overshoot and self.epochs is None:
            raise ArgumentError(f"{who}: expected epochs with max_overshoot={self.max_overshoot}, for the last ends it")
        if not self.over:
            object.__setattr__(self, "over", (0,) * self.world_size)

    @property
    def epoch(self) -> int:
        """The epoch that is being dealt."""
        return self.pool.epoch

    @property
    def remaining(self) -> int:
        """Samples that are left of the epoch."""
        return self._now.remaining

    @property
    def counts(self) -> tuple[int, ...]:
        """The batches of each rank in a round, where nobody measures speeds: by shares, or one each."""
        return (1,) * self.world_size if self.shares is None else counts_of(self.shares)

    def round(self, counts: Sequence[int] | None = None) -> tuple[Dispatch, Batches]:
        """The batches of each rank until all meet again; none of any where the epoch is over.

        Args:
            counts: How many, in proportion to the speeds of ranks: integers >= 0, one of them > 0; equal on all ranks.

        Raises:
            ArgumentError: counts that are no such numbers, or 0 of every rank with samples left in its part.

        Example:
            >>> dispatch, batches = Dispatch(ChunkPool(10, batch_size=2, shuffle=False), world_size=2).round((2, 1))
            >>> [[portion.places for portion in mine] for mine in batches.of_ranks]
            [[((0, 2),), ((2, 4),)], [((4, 6),)]]
            >>> batches.reason
            'epoch 0: counts (2, 1), 4 samples left'
        """
        given = self._checked("Dispatch.round", self.counts if counts is None else counts)
        allowed, waits = throttled(given, self.max_batch_diff)
        begun = self._divided(given)
        now, dealt = begun._now.deal(allowed)
        said = [f"epoch {self.epoch}: counts {allowed}, {now.remaining} samples left", waits]
        ahead, over = begun.ahead, list(begun.over)
        missing = [count - len(batches) for count, batches in zip(allowed, dealt)]
        if self.max_overshoot and any(missing) and self._has_next:
            room = [min(count, self.max_overshoot - done) for count, done in zip(missing, over)]
            if any(room):
                ahead, more = self._next_one(given).deal(room)
                dealt = [[*own, *extra] for own, extra in zip(dealt, more)]
                over = [done + len(extra) for done, extra in zip(over, more)]
                said.append(f"{[len(extra) for extra in more]} batches of epoch {self.epoch + 1}")
        if self.remaining and not any(dealt):  # nothing would ever be left of it
            raise ArgumentError(
                f"Dispatch.round: expected a count > 0 of a rank with samples left in its part, got {given} with parts "
                f"of {[size_of(part) for part in begun.parts or ()]}"
            )
        left = replace(begun, pool=now.pool, parts=now.parts, ahead=ahead, over=tuple(over))
        return left, Batches(tuple(map(tuple, dealt)), "; ".join(filter(None, said)))

    def take(self, rank: int, counts: Sequence[int], most: int) -> tuple[Dispatch, tuple[Portion, ...], str]:
        """The batches of one rank that comes for work, while others may be busy, and why these.

        They are out of what is left by `ChunkPool.take`, or of its part; past the end of those, out of the next epoch
        as far as max_overshoot lets it.

        Args:
            rank: In [0, world_size).
            counts: See `round`; here they are the speeds of ranks.
            most: The most batches that it gets, >= 0.

        Returns:
            What is left, the batches, and in words where they are from; none where it has to wait for the next epoch.

        Raises:
            ArgumentError: a rank out of its range, or counts or most that are no such numbers.

        Example:
            >>> dispatch = Dispatch(ChunkPool(10, batch_size=2, shuffle=False), world_size=2)
            >>> dispatch.take(1, (2, 1), most=3)[1:]
            ((Portion(epoch=0, places=((0, 2),)),), 'epoch 0: 1 of at most 3 batches, 8 samples left')
        """
        who = "Dispatch.take"
        given = self._checked(who, counts)
        rank, most = as_integer(who, "rank", rank, 0, self.world_size), as_integer(who, "most", most, 0)
        begun = self._divided(given)
        now, batches = begun._now.take(rank, given, most)
        said = f"epoch {self.epoch}: {len(batches)} of at most {most} batches, {now.remaining} samples left"
        ahead, over = begun.ahead, list(begun.over)
        room = min(most - len(batches), self.max_overshoot - over[rank]) if self._has_next else 0
        if room > 0:
            ahead, more = self._next_one(given).take(rank, given, room)
            batches, said = batches + more, f"{said}; {len(more)} of epoch {self.epoch + 1}"
            over[rank] += len(more)
        left = replace(begun, pool=now.pool, parts=now.parts, ahead=ahead, over=tuple(over))
        return left, tuple(batches), said

    def give_back(self, of_ranks: Sequence[Iterable[Portion]]) -> Dispatch:
        """The state with batches in it again that each rank was given, and that came to nothing: they are dealt again.

        Raises:
            ArgumentError: not some for each rank, or places that were not taken.
        """
        given = [tuple(mine) for mine in of_ranks]
        if len(given) != self.world_size:
            raise ArgumentError(
                f"Dispatch.give_back: expected what each of {self.world_size} ranks gives, got that of {len(given)}"
            )
        now = self._now.give_back(given)
        ahead = None if self.ahead is None else self.ahead.give_back(given)
        more = [sum(portion.epoch > self.epoch for portion in mine) for mine in given]
        over = tuple(before - fewer for before, fewer in zip(self.over, more))
        return replace(self, pool=now.pool, parts=now.parts, ahead=ahead, over=over)

    def among(self, ranks: Sequence[int], shares: Sequence[float] | None = None) -> Dispatch:
        """The state where only these ranks go on, in this order, and take over what is left in the others' parts.

        Args:
            ranks: Some of those until now.
            shares: Theirs from now on; see the class.

        Raises:
            ArgumentError: no ranks, or some that are none of those until now; or shares that do not fit.
        """
        given = [as_integer("Dispatch.among", "each rank", rank, 0, self.world_size) for rank in ranks]
        if not given or len({*given}) < len(given):
            raise ArgumentError(f"Dispatch.among: expected ranks, each once, got {given}")
        ahead = None if self.ahead is None else self.ahead.joined()
        return replace(
            self,
            pool=self._now.joined().pool,
            parts=None,
            ahead=ahead,
            world_size=len(given),
            shares=None if shares is None else tuple(shares),
            over=tuple(self.over[rank] for rank in given),
        )

    def next_epoch(self) -> Dispatch:
        """The next epoch, less what was run of it already."""
        stock = self.ahead or _Stock(self.pool.next_epoch())
        return replace(self, pool=stock.pool, parts=stock.parts, ahead=None, over=(0,) * self.world_size)

    def _checked(self, who: str, counts: Sequence[int]) -> tuple[int, ...]:
        given = tuple(as_list(who, "counts", counts))
        self.pool.check_counts(who, given)
        if len(given) != self.world_size:
            raise ArgumentError(f"{who}: expected counts for {self.world_size} ranks, got {list(given)}")
        return given

    @property
    def _now(self) -> _Stock:
        return _Stock(self.pool, self.parts)

    @property
    def _has_next(self) -> bool:
        return self.epochs is None or self.epoch + 1 < self.epochs

    def _next_one(self, counts: Sequence[int]) -> _Stock:
        """The next epoch, where ranks run ahead into it; with a part for each, where the mode wants them."""
        stock = self.ahead or _Stock(self.pool.next_epoch())
        divided = replace(self, pool=stock.pool, parts=stock.parts, ahead=None)._divided(counts)
        return divided._now

    def _divided(self, counts: Sequence[int]) -> Dispatch:
        """The same with a part for each rank, where the mode wants them."""
        if self.mode == "progressive" or self.parts is not None:
            return self
        equal = self.mode == "static" and self.shares is None
        weights = [1] * self.world_size if equal else counts
        shares = self.shares or [count / sum(weights) for count in weights]
        pool, parts = self.pool.divide(shares)
        return replace(self, pool=pool, parts=parts)

    def state_dict(self) -> dict[str, Any]:
        """What is left, and all options, as plain data for JSON."""
        options = {name: getattr(self, name) for name in _OPTIONS}
        options["shares"] = None if self.shares is None else list(self.shares)
        ahead = None if self.ahead is None else [self.ahead.pool.state_dict(), _told(self.ahead.parts)]
        now = {"pool": self.pool.state_dict(), "parts": _told(self.parts)}
        return {**options, **now, "ahead": ahead, "over": list(self.over)}

    def loaded(self, state: Mapping[str, Any]) -> Dispatch:
        """The state that a `state_dict` tells of; there may be more epochs than there were to be.

        Raises:
            StateDictError: it is of other options or another pool, or no state of a dispatch.
        """
        own = self.state_dict()
        check_keys("Dispatch", state, own)
        for name in _OPTIONS:
            may_differ = name == "epochs" and (not self.max_overshoot or own[name] > (state[name] or math.inf))
            if state[name] != own[name] and not may_differ:
                raise StateDictError(f"Dispatch: expected a state with {name} {own[name]!r}, got {state[name]!r}")
        try:
            ahead = None if state["ahead"] is None else self._stock(*state["ahead"])
            now = self._stock(state["pool"], state["parts"])
            return replace(self, pool=now.pool, parts=now.parts, ahead=ahead, over=tuple(map(int, state["over"])))
        except (TypeError, ValueError) as error:
            if isinstance(error, StateDictError):
                raise
            raise StateDictError(f"Dispatch: expected a usable state, got {state!r:.200}: {error}") from error

    def resumed(self, state: Mapping[str, Any]) -> Dispatch:
        """The state that a `state_dict` tells of, for these ranks and shares, which may be others than then.

        Where they are, what is left of its parts is left to all, and nobody has run ahead.

        Raises:
            StateDictError: see `loaded`.
        """
        check_keys("Dispatch", state, self.state_dict())
        shares = state["shares"]
        if (state["world_size"], shares) == (self.world_size, None if self.shares is None else list(self.shares)):
            return self.loaded(state)
        try:
            then = replace(self, world_size=state["world_size"], shares=shares, over=())
        except (ArgumentError, TypeError) as error:
            raise StateDictError(f"Dispatch: expected a usable state, got {state!r:.200}: {error}") from error
        left = then.loaded(state).among(range(then.world_size))
        return replace(left, world_size=self.world_size, shares=self.shares, over=())

    def _stock(self, pool: Mapping[str, Any], parts: Sequence[Sequence[Interval]] | None) -> _Stock:
        found = None if parts is None else tuple(tuple((int(a), int(b)) for a, b in part) for part in parts)
        return _Stock(self.pool.loaded(pool), found)


def _told(parts: Sequence[Intervals] | None) -> list[list[list[int]]] | None:
    return None if parts is None else [[list(place) for place in part] for part in parts]
