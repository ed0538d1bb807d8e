"""`reduce`, `gather`, `scatter` and `all_to_all` of processes over shared memory.

A reduction is posted as that of all ranks is. The others are carried out through the staging area, chunk by chunk: each
rank writes its parts for others there, and takes its own from what the others wrote.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.protocol import Work
from minigrad.distributed.comm.rooted import Rooted, What
from minigrad.distributed.comm.shm.region import Region, Regions, chunks
from minigrad.distributed.comm.work import Span, over

Execute = Callable[[Region, list[float]], None]


class RootedShm(Rooted):
    """The part of `ShmCommunicator` that moves their bytes."""

    _regions: Regions

    def _near(
        self, what: What, array: Array, execute: Execute, weight: float = 1.0, delivers: bool = True
    ) -> Work | None:
        raise NotImplementedError

    def _carry_out(self, what: What, region: Region, execute: Execute, weight: float = 1.0) -> Span | None:
        raise NotImplementedError

    def _reduce_to(self, what: What, array: Array, root: int, op: ReduceOp) -> Work:
        execute: Execute = functools.partial(Region.reduce_to, root=root, op=op)
        near = self._near(what, array, execute, delivers=self.rank == root)
        if near is not None:
            return near
        spans = []
        for start, part in chunks(array):
            region = self._regions.in_staging(start, part, array.size)
            region.views[self.rank][...] = part
            spans.append(self._carry_out(what, region, execute))
            if self.rank == root:
                part[...] = region.views[root]
        return over(spans)

    def _gather(self, what: What, output: Array | None, source: Array, root: int) -> Work:
        return self._take_in(what, output, source)

    def _take_in(self, what: What, output: Array | None, source: Array) -> Work:
        """Overwrite output by the sources of all ranks, where this rank has one."""
        rows, flat, spans = [] if output is None else output.reshape(self.world_size, -1), source.reshape(-1), []
        for start, part in chunks(flat):
            region = self._regions.in_staging(start, part, flat.size)
            region.views[self.rank][...] = part
            spans.append(self._carry_out(what, region, functools.partial(_take, rows=rows, start=start)))
        return over(spans)

    def _scatter(self, what: What, output: Array, source: Array | None, root: int) -> Work:
        flat, rows = output.reshape(1, -1), None if source is None else source.reshape(self.world_size, -1)
        return self._exchange(what, flat, rows, [root])

    def _all_to_all(self, what: What, output: Array, source: Array) -> Work:
        into, out_of = output.reshape(self.world_size, -1), source.reshape(self.world_size, -1)
        return self._exchange(what, into, out_of, range(self.world_size))

    def _exchange(self, what: What, into: Array, out_of: Array | None, givers: Sequence[int]) -> Work:
        """Overwrite a row of `into` for each giver by what it has for this rank: row `rank` of its `out_of`."""
        spans = []
        for start, part in chunks(into[0], self.world_size):
            stop = start + part.size
            parts = np.broadcast_to(part, (self.world_size, part.size))
            region = self._regions.in_staging(start, parts, into.size)
            if out_of is not None:
                region.views[self.rank][...] = out_of[:, start:stop].reshape(-1)
            rows = [row[start:stop] for row in into]
            spans.append(self._carry_out(what, region, functools.partial(self._take_own, rows=rows, givers=givers)))
        return over(spans)

    def _take_own(self, region: Region, weights: list[float], rows: list[Array], givers: Sequence[int]) -> None:
        for row, giver in zip(rows, givers):
            row[...] = region.views[giver].reshape(self.world_size, -1)[self.rank]


def _take(region: Region, weights: list[float], rows: Sequence[Array], start: int) -> None:
    """Copy a chunk of each rank's elements to its row."""
    for row, view in zip(rows, region.views):
        row[start : start + view.size] = view
