"""Where an array lies in the memory of every rank, and the part of its elements that this rank works on."""

from __future__ import annotations

from minigrad.backend.dtypes import Array
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.base import Header
from minigrad.distributed.comm.board import encode_header

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
        blocks: For each block of this rank's share of the elements, the views of all ranks.
    """

    __slots__ = ("views", "blocks", "_name", "_count", "_headers")

    def __init__(self, name: str, count: int, views: list[Array], rank: int) -> None:
        self.views, self._name, self._count = views, name, count
        size, ranks = views[0].size, len(views)
        start, stop = (size if r == ranks else size * r // ranks // _ALIGNMENT * _ALIGNMENT for r in (rank, rank + 1))
        step = _BLOCK_BYTES // views[0].dtype.itemsize
        self.blocks = [[view[i : min(i + step, stop)] for view in views] for i in range(start, stop, step)]
        self._headers: dict[tuple[str, str], bytes] = {}

    def header(self, kind: str, detail: str) -> bytes:
        """What a call on this place writes on the board."""
        header = self._headers.get((kind, detail))
        if header is None:
            dtype = self.views[0].dtype.name
            header = encode_header(Header(0, kind, detail, dtype, self._count, self._name))
            self._headers[kind, detail] = header
        return header

    def reduce(self, op: ReduceOp) -> None:
        """Reduce this rank's share of the elements, in the arrays of all ranks."""
        for block in self.blocks:
            collectives.all_reduce(block, op)
