"""Where an array lies in the memory of every rank, and the part of its elements that this rank works on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.grad_scale import as_factor, multiply
from minigrad.backend.memory import address_of
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.headers import Header
from minigrad.distributed.comm.shm.board import SLOTS, STAGING_BYTES, Board, encode_header
from minigrad.distributed.comm.shm.segment import Segment

_ALIGNMENT = 16  # elements: no two ranks write to one cache line
_BLOCK_BYTES = 128 * 1024  # what is added up is still in the cache when it is copied to the others
_MOST_REGIONS = 4096  # remembered at once


class Region:
    """One array a rank; made once for each place, since making views costs more than a small reduction.

    Args:
        name: For headers.
        count: Elements of the array that the caller handed in, of which this may be a chunk.
        views: Each rank's array, 1-D, of one size and dtype.
        rank: This rank.

    Attributes:
        blocks: For each block of this rank's share of the elements, where it is, and the views of all ranks.
    """

    __slots__ = ("views", "blocks", "_rank", "_share", "_name", "_count", "_headers")

    def __init__(self, name: str, count: int, views: list[Array], rank: int) -> None:
        self.views, self._rank, self._name, self._count = views, rank, name, count
        size, ranks = views[0].size, len(views)
        start, stop = (size if r == ranks else size * r // ranks // _ALIGNMENT * _ALIGNMENT for r in (rank, rank + 1))
        self._share = slice(start, stop)
        step = _BLOCK_BYTES // views[0].dtype.itemsize
        parts = [slice(i, min(i + step, stop)) for i in range(start, stop, step)]
        self.blocks = [(part, [view[part] for view in views]) for part in parts]
        self._headers: dict[tuple[str, str], bytes] = {}

    def header(self, what: tuple[str, str]) -> bytes:
        """What a call on this region writes on the board."""
        header = self._headers.get(what)
        if header is None:
            dtype = self.views[0].dtype.name
            header = self._headers[what] = encode_header(Header(0, *what, dtype, self._count, self._name))
        return header

    def reduce(self, weights: Sequence[float], op: ReduceOp, mine: Array | None = None) -> None:
        """Reduce this rank's share of the elements, in the arrays of all ranks.

        Args:
            weights: What the elements of each rank are multiplied by first.
            mine: An array that stands for this rank's view; see `give`.
        """
        dtype = self.views[0].dtype
        factors = [(r, as_factor(weight, dtype)) for r, weight in enumerate(weights) if weight != 1.0]
        exact = [np.array([weight]) for weight in weights] if factors and is_half(dtype) else None
        for part, block in self.blocks:
            if mine is not None:
                block = [*block[: self._rank], mine[part], *block[self._rank + 1 :]]
            if exact is not None:
                collectives.weighted_all_reduce(block, exact)
                continue
            if factors:
                _weigh(block, factors)
            collectives.combine(block, op)

    def reduce_to(self, weights: Sequence[float], root: int, op: ReduceOp) -> None:
        """Reduce this rank's share of the elements into the root's array; the others stay."""
        for part, block in self.blocks:
            self.views[root][part] = collectives.reduced([array.copy() for array in block], op)

    def give(self, mine: Array) -> None:
        """Copy into this rank's view what the other ranks reduce: all but its own share."""
        _copy_around(self._share, mine, self.views[self._rank])

    def take(self, mine: Array) -> None:
        """Copy from this rank's view what the other ranks have reduced."""
        _copy_around(self._share, self.views[self._rank], mine)


class Regions:
    """Finds the region of an array: in memory that `empty` gave, in the slot of a call, or in the staging area.

    It remembers those that it has made.
    """

    def __init__(self, rank: int, board: Board) -> None:
        self._rank, self._board = rank, board
        self._segments: list[Segment] = []
        self._made: dict[tuple[Any, ...], Region] = {}
        self._seen: dict[int, tuple[Array, Region]] = {}  # by id, since to ask for an address takes long

    def add(self, segment: Segment) -> None:
        """Arrays may lie in this one from now on."""
        self._segments.append(segment)

    def place_of(self, array: Array) -> tuple[int, int] | None:
        """The number of the segment in which an array lies, and where in there; None where it lies elsewhere."""
        if array.base is None:  # it owns its memory
            return None
        address = address_of(array)
        offsets = ((i, segment.offset_of(address, array.nbytes)) for i, segment in enumerate(self._segments))
        return next(((i, offset) for i, offset in offsets if offset is not None), None)

    def view(self, segment: int, rank: int, offset: int, count: int, dtype: np.dtype[Any]) -> Array:
        """The elements of a rank at such a place."""
        return self._segments[segment].view(rank, offset, count, dtype)

    def in_segment(self, array: Array) -> Region | None:
        """That of an array in shared memory; None where it lies elsewhere."""
        if array.base is None:  # it owns its memory
            return None
        seen = self._seen.get(id(array))
        if seen is not None and seen[0].dtype is seen[1].views[0].dtype:
            return seen[1]
        address, size, dtype = address_of(array), array.size, array.dtype
        for number, segment in enumerate(self._segments):
            offset = segment.offset_of(address, array.nbytes)
            if offset is not None:
                views = functools.partial(segment.views, offset, size, dtype)
                region = self._find((address, size, dtype), f"segment {number} at {offset}", size, views)
                if len(self._seen) >= _MOST_REGIONS:
                    self._seen.clear()
                self._seen[id(array)] = array, region
                return region
        return None

    def in_slot(self, seq: int, array: Array) -> Region:
        """That for an array of at most INLINE_BYTES, which travels in the slot of its call."""
        size, dtype = array.size, array.dtype
        views = functools.partial(self._board.slot_views, seq, size, dtype)
        return self._find((seq % SLOTS, size, dtype), "", size, views)

    def in_staging(self, start: int, part: Array, whole: int) -> Region:
        """That for a chunk of an array.

        Args:
            start: Where the chunk begins.
            whole: Elements of the array.
        """
        views = functools.partial(self._board.staging_views, part.size, part.dtype)
        return self._find((start, whole, part.size, part.dtype), f"chunk {start}", whole, views)

    def _find(self, key: tuple[Any, ...], name: str, count: int, views: Callable[[], list[Array]]) -> Region:
        region = self._made.get(key)
        if region is None:
            if len(self._made) >= _MOST_REGIONS:
                self._made.clear()
            region = self._made[key] = Region(name, count, views(), self._rank)
        return region

    def forget(self) -> None:
        """Keep no view of memory any more."""
        self._made.clear()
        self._seen.clear()


def _weigh(block: list[Array], factors: list[tuple[int, Array]]) -> None:
    """Multiply, in place and without a word of overflows, the elements of some ranks by a factor of each."""
    with np.errstate(over="ignore", invalid="ignore"):
        for r, factor in factors:
            multiply(block[r], factor, block[r])


def _copy_around(share: slice, source: Array, target: Array) -> None:
    target[: share.start] = source[: share.start]
    target[share.stop :] = source[share.stop :]


def chunks(flat: Array, parts: int = 1) -> Iterator[tuple[int, Array]]:
    """Start and elements of each chunk, of which so many fit into the staging area; an empty one of an empty array."""
    step = STAGING_BYTES // flat.dtype.itemsize // parts
    for start in range(0, max(flat.size, 1), step):
        yield start, flat[start : start + step]
