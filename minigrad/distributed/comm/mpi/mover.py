"""How arrays move between MPI ranks that have all come to a call: the ranks' sums are added up in the one order.

That is the order of `collectives`, not MPI's, so that the sums have the bits of every other kind of world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.backend.memory import aligned_zeros
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp

_DATA = 1  # the tag
_CHUNK_BYTES = 4 * 1024 * 1024  # of an array that is reduced at once: what then lies beside it stays in the cache
_GATHERED_BYTES = 32 * 1024  # below this all arrays go to all ranks: one step in place of two


class Mover:
    """Moves one rank's arrays, in calls that block until all ranks move theirs.

    Args:
        mpi: The module mpi4py.MPI.
        comm: A communicator of minigrad's own.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self._rank, self._world_size = int(comm.Get_rank()), int(comm.Get_size())
        self._scratch = np.empty(0, np.uint8)

    def reduce(self, flat: Array, op: ReduceOp) -> None:
        """Overwrite a 1-D array by its reduction."""
        gathered = flat.nbytes * self._world_size <= _GATHERED_BYTES
        self._reduce_gathered(flat, op) if gathered else self._reduce_in_slices(flat, op, range(self._world_size))

    def broadcast(self, flat: Array, root: int) -> None:
        """Overwrite a 1-D array by the root's."""
        self._comm.Bcast(self._bytes(flat), root)

    def reduce_rows(self, output: Array, rows: Array, op: ReduceOp) -> None:
        """Overwrite a 1-D array by the reduction of this rank's row."""
        step = max(1, _CHUNK_BYTES // rows.dtype.itemsize // self._world_size)
        for start in range(0, output.size, step):
            output[start : start + step] = self._reduced_part([row[start : start + step] for row in rows], op)

    def all_gather(self, output: Array, source: Array) -> None:
        """Overwrite output by the sources of all ranks, both 1-D."""
        source = source.copy() if np.may_share_memory(output, source) else source  # which MPI does not allow
        self._comm.Allgather(self._bytes(source), self._bytes(output))

    def reduce_to(self, flat: Array, root: int, op: ReduceOp) -> None:
        """Overwrite the root's 1-D array by the reduction; the others' stay."""
        is_root = self._rank == root
        if flat.nbytes * self._world_size > _GATHERED_BYTES:
            self._reduce_in_slices(flat, op, [root])
        elif flat.size:
            rows = np.empty((self._world_size if is_root else 0, flat.size), flat.dtype)
            self.gather(rows.reshape(-1), flat, root)
            if is_root:
                flat[...] = collectives.reduced(list(rows), op)

    def gather(self, output: Array, source: Array, root: int) -> None:
        """Overwrite the root's output by the sources of all ranks, all 1-D; the output of another rank stays."""
        self._comm.Gather(self._bytes(source), self._bytes(output) if self._rank == root else None, root)

    def scatter(self, output: Array, source: Array, root: int) -> None:
        """Overwrite output by this rank's part of the root's source, all 1-D; the others' are not read."""
        self._comm.Scatter(self._bytes(source) if self._rank == root else None, self._bytes(output), root)

    def all_to_all(self, output: Array, source: Array) -> None:
        """Overwrite the parts of output by this rank's parts of the sources of all ranks, all 1-D."""
        self._comm.Alltoall(self._bytes(source), self._bytes(output))

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """The data of all ranks, in order of rank."""
        sizes = np.empty(self._world_size, np.int64)
        self._comm.Allgather(np.array([len(data)], np.int64), sizes)
        gathered = bytearray(int(sizes.sum()))
        self._comm.Allgatherv([data, self._mpi.BYTE], [gathered, sizes.tolist(), self._mpi.BYTE])
        ends = np.cumsum(sizes)
        return [bytes(gathered[end - size : end]) for size, end in zip(sizes, ends)]

    def _reduce_gathered(self, flat: Array, op: ReduceOp) -> None:
        if flat.size:
            rows = np.empty((self._world_size, flat.size), flat.dtype)
            self._comm.Allgather(self._bytes(flat), self._bytes(rows.reshape(-1)))
            flat[...] = collectives.reduced(list(rows), op)

    def _reduce_in_slices(self, flat: Array, op: ReduceOp, takers: Sequence[int]) -> None:
        """Each rank adds up one slice of the elements, and sends the result to those that take it."""
        takes = self._rank in takers
        step = _CHUNK_BYTES // flat.dtype.itemsize
        for start in range(0, flat.size, step):
            chunk = flat[start : start + step] if takes else flat[start : start + step].copy()
            cuts = [chunk.size * r // self._world_size for r in range(self._world_size + 1)]
            slices = [chunk[a:b] for a, b in zip(cuts[:-1], cuts[1:])]
            mine = slices[self._rank]
            mine[...] = self._reduced_part(slices, op)
            self._trade(dict.fromkeys(takers, mine), dict(enumerate(slices)) if takes else {})

    def _reduced_part(self, parts: list[Array], op: ReduceOp) -> Array:
        """Send part r to rank r, and reduce what all ranks sent to this one; this rank's own part is used up."""
        mine = parts[self._rank]
        if self._scratch.size < mine.nbytes * self._world_size:
            self._scratch = aligned_zeros(mine.nbytes * self._world_size, np.dtype(np.uint8))
        rows = self._scratch[: mine.nbytes * self._world_size].reshape(self._world_size, mine.nbytes)
        received = [row.view(mine.dtype) for row in rows]
        received[self._rank] = mine
        self._trade(dict(enumerate(parts)), dict(enumerate(received)))
        return collectives.reduced(received, op)

    def _trade(self, outgoing: Mapping[int, Array], incoming: Mapping[int, Array]) -> None:
        """Send outgoing[r] to rank r and receive incoming[r] from it, but for this rank itself."""
        requests = [self._comm.Irecv(self._bytes(x), r, _DATA) for r, x in incoming.items() if r != self._rank]
        requests += [self._comm.Isend(self._bytes(x), r, _DATA) for r, x in outgoing.items() if r != self._rank]
        self._mpi.Request.Waitall(requests)

    def _bytes(self, flat: Array) -> list[Any]:
        return [flat.view(np.uint8), self._mpi.BYTE]  # MPI has no name for 16-bit floats, and needs none
