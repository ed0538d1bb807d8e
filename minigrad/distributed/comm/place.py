"""Where an array lies in the memory of every rank, and the part of its elements that this rank works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.grad_scale import as_factor, multiply
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.board import STAGING_BYTES, encode_header
from minigrad.distributed.comm.headers import Header

_ALIGNMENT = 16  # elements: no two ranks write to one cache line
_BLOCK_BYTES = 128 * 1024  # what is added up is still in the cache when it is copied to the others


class Place:
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

    def header(self, kind: str, detail: str) -> bytes:
        """What a call on this place writes on the board."""
        header = self._headers.get((kind, detail))
        if header is None:
            dtype = self.views[0].dtype.name
            header = encode_header(Header(0, kind, detail, dtype, self._count, self._name))
            self._headers[kind, detail] = header
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

    def give(self, mine: Array) -> None:
        """Copy into this rank's view what the other ranks reduce: all but its own share."""
        _copy_around(self._share, mine, self.views[self._rank])

    def take(self, mine: Array) -> None:
        """Copy from this rank's view what the other ranks have reduced."""
        _copy_around(self._share, self.views[self._rank], mine)


def _weigh(block: list[Array], factors: list[tuple[int, Array]]) -> None:
    """Multiply, in place and without a word of overflows, the elements of some ranks by a factor of each."""
    with np.errstate(over="ignore", invalid="ignore"):
        for r, factor in factors:
            multiply(block[r], factor, block[r])


def _copy_around(share: slice, source: Array, target: Array) -> None:
    target[: share.start] = source[: share.start]
    target[share.stop :] = source[share.stop :]


def chunks(flat: Array) -> Iterator[tuple[int, Array]]:
    """Start and elements of each chunk that fits into the staging area; one empty chunk of an empty array."""
    step = STAGING_BYTES // flat.dtype.itemsize
    for start in range(0, max(flat.size, 1), step):
        yield start, flat[start : start + step]
