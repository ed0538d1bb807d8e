"""A collective as a schedule: rounds of transfers, in each of which ranks send parts of an array. Pure.

All transfers of a round read what was there before it. A part that arrives is added to what the target has there, or
takes its place. So a schedule can be played with true numbers, priced on links, drawn, and run on any communicator.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from minigrad.arguments import as_integer, as_sequence, check_text, is_integer, keep_as
from minigrad.distributed.collectives import pairwise
from minigrad.errors import ArgumentError


class Chunk(NamedTuple):
    """Consecutive parts of an array that is cut into `of` parts: first, first + 1, ..., stop - 1.

    Part i of an array of n elements begins at element n · i // of, so parts differ by one element at most.
    """

    first: int
    stop: int
    of: int

    def slice(self, size: int) -> slice:
        """Where it lies in an array of so many elements."""
        return slice(size * self.first // self.of, size * self.stop // self.of)

    def count(self, size: int) -> int:
        """Elements of it, in an array of so many."""
        return size * self.stop // self.of - size * self.first // self.of


WHOLE = Chunk(0, 1, 1)
MOST_CELLS = 2**16  # into which all chunks of a schedule may cut an array together


class Op(enum.Enum):
    """What a target does with what arrives: it combines it with its own, or lets it take its place."""

    COMBINE = "combine"
    REPLACE = "replace"


class Transfer(NamedTuple):
    """A chunk of an array on its way from one rank to another."""

    source: int
    target: int
    chunk: Chunk
    op: Op


Round = tuple[Transfer, ...]


@dataclass(frozen=True)
class CollectiveSchedule:
    """An all-reduce: after all rounds every rank has the combination of all ranks' arrays.

    Attributes:
        name: What people call it.
        world_size: Ranks that take part, >= 1.
        rounds: Transfers that are under way at the same time; what arrives at one place in one round is combined in
            the order in which it stands there.

    Raises:
        ArgumentError: a rank or a chunk that is none, a transfer of a rank to itself, or after which a rank lacks the
            part of another, or has it twice; or chunks that cut an array into more than 65,536 parts together.

    Example:
        >>> there = Transfer(1, 0, WHOLE, Op.COMBINE)
        >>> back = Transfer(0, 1, WHOLE, Op.REPLACE)
        >>> schedule = CollectiveSchedule("by way of rank 0", 2, ((there,), (back,)))
        >>> len(schedule.rounds), schedule.is_in_order
        (2, True)
    """

    name: str
    world_size: int
    rounds: tuple[Round, ...]

    def __post_init__(self) -> None:
        check_text("CollectiveSchedule", name=self.name)
        keep_as(self, as_integer, "world_size", least=1)
        rounds = (as_sequence(self._who, "each round", each) for each in as_sequence(self._who, "rounds", self.rounds))
        object.__setattr__(self, "rounds", tuple(map(tuple, rounds)))
        for number, transfers in enumerate(self.rounds):
            for transfer in transfers:
                self._check(number, transfer)
        if self.cells > MOST_CELLS:
            raise ArgumentError(f"{self._who}: expected chunks of at most {MOST_CELLS} parts in all, got {self.cells}")
        self._check_sums()

    def _check(self, number: int, transfer: Any) -> None:
        if not isinstance(transfer, Transfer):
            raise ArgumentError(f"{self._who}: expected a Transfer in round {number}, got {transfer!r:.100}")
        source, target, chunk, op = transfer
        if source == target or not all(is_integer(rank) and 0 <= rank < self.world_size for rank in transfer[:2]):
            raise ArgumentError(
                f"{self._who}: expected in round {number} a transfer between two ranks below {self.world_size}, got "
                f"one from {source!r:.50} to {target!r:.50}"
            )
        is_chunk = isinstance(chunk, Chunk) and all(map(is_integer, chunk)) and 0 <= chunk.first <= chunk.stop
        if not (is_chunk and chunk.stop <= chunk.of and chunk.of >= 1 and isinstance(op, Op)):
            raise ArgumentError(f"{self._who}: expected in round {number} a chunk and an Op, got {transfer!r:.150}")

    def _check_sums(self) -> None:
        everybody = (1 << self.world_size) - 1
        *_, last = self._states([1 << rank for rank in range(self.world_size)], _joined)
        for rank, cells in enumerate(last):
            for cell, ranks in enumerate(cells):
                if ranks != everybody:
                    raise ArgumentError(
                        f"{self._who}: expected on rank {rank}, in part {cell} of {self.cells}, the array of each of "
                        f"{self.world_size} ranks once, got {spelled(self._last[rank][cell])}"
                    )

    @property
    def _who(self) -> str:
        return f"CollectiveSchedule {self.name!r}"

    @cached_property
    def cells(self) -> int:
        """Into how many parts an array is cut, so that each chunk is some of them."""
        return math.lcm(*(transfer.chunk.of for transfers in self.rounds for transfer in transfers))

    def held(self) -> list[list[list[Any]]]:
        """What each rank holds in each part, before the first round and after each: `terms[round][rank][part]`.

        Terms are a rank, or a pair of terms that were combined, in no order: a + b has the bits of b + a.
        """
        return list(self._states(range(self.world_size), combined))

    @cached_property
    def _last(self) -> list[list[Any]]:
        """What each rank holds in the end; see `held`."""
        *_, last = self._states(range(self.world_size), combined)
        return last

    def _states(self, begun: Sequence[Any], combine: Callable[[Any, Any], Any]) -> Iterator[list[list[Any]]]:
        """What each rank holds in each part before the first round and after each.

        Args:
            begun: Of each rank, in all parts.
            combine: What two of them are together.
        """
        now: list[list[Any]] = [[own] * self.cells for own in begun]
        yield now
        for transfers in self.rounds:
            after = [list(cells) for cells in now]
            for source, target, chunk, op in transfers:
                for cell in self.parts_of(chunk):
                    came, own = now[source][cell], after[target][cell]
                    after[target][cell] = came if op is Op.REPLACE else combine(own, came)
            now = after
            yield now

    def parts_of(self, chunk: Chunk) -> range:
        """Those of the `cells` parts that a chunk is."""
        each = self.cells // chunk.of
        return range(chunk.first * each, chunk.stop * each)

    @cached_property
    def is_in_order(self) -> bool:
        """Whether every sum is made in the fixed order of `minigrad.distributed.collectives`, and so has its bits."""
        wanted = pairwise_terms(self.world_size)
        return all(terms == wanted for cells in self._last for terms in cells)

    def sent_elements(self, size: int) -> list[int]:
        """Elements that each rank sends, for an array of so many.

        Raises:
            ArgumentError: size is no integer >= 0.
        """
        as_integer("sent_elements", "size", size, 0)
        sent = [0] * self.world_size
        for transfers in self.rounds:
            for transfer in transfers:
                sent[transfer.source] += transfer.chunk.count(size)
        return sent


def _joined(x: int, y: int) -> int:
    """Two sets of ranks as bits; -1, which is none, once one of the ranks is in both."""
    return -1 if min(x, y) < 0 or x & y else x | y


def combined(x: Any, y: Any) -> Any:
    """The terms of a sum: a pair in one order, whichever came first."""
    return (x, y) if _key(x) <= _key(y) else (y, x)


def _key(terms: Any) -> tuple[int, ...]:
    return tuple(_ranks_in(terms))


def _ranks_in(terms: Any) -> list[int]:
    """The ranks of which terms are made, each as often as it is there."""
    found, stack = list[int](), [terms]
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            stack += part
        else:
            found.append(part)
    return sorted(found)


def pairwise_terms(world_size: int) -> Any:
    """The terms of a sum over all ranks in the order of `collectives.pairwise`."""
    boxes = [[rank] for rank in range(world_size)]

    def fold(into: list[Any], other: list[Any]) -> None:
        into[0] = combined(into[0], other[0])

    return pairwise(boxes, fold)[0]


def spelled(terms: Any) -> str:
    """The ranks that terms add up: "0", "0-3", "0-1,4" where some are missing between; each where one is twice."""
    ranks = _ranks_in(terms)
    if len(set(ranks)) < len(ranks):
        return ",".join(map(str, ranks))
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in _runs(ranks))


def _runs(ranks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive ranks as (first, last)."""
    start = before = None
    for rank in ranks:
        if before is None or rank != before + 1:
            if before is not None and start is not None:
                yield start, before
            start = rank
        before = rank
    if before is not None and start is not None:
        yield start, before
