"""How arrays move between MPI ranks that have all come to a call: the ranks' sums are added up in the one order.

That is the order of `collectives`, not MPI's, so that the sums have the bits of every other kind of world.
"""

from __future__ import annotations

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
        self._reduce_gathered(flat, op) if gathered else self._reduce_in_slices(flat, op)

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

    def _reduce_in_slices(self, flat: Array, op: ReduceOp) -> None:
        """Each rank adds up one slice of the elements, and sends the result to all."""
        step = _CHUNK_BYTES // flat.dtype.itemsize
        for start in range(0, flat.size, step):
            chunk = flat[start : start + step]
            cuts = [chunk.size * r // self._world_size for r in range(self._world_size + 1)]
            slices = [chunk[a:b] for a, b in zip(cuts[:-1], cuts[1:])]
            mine = slices[self._rank]
            mine[...] = self._reduced_part(slices, op)
            self._trade([mine] * self._world_size, slices)

    def _reduced_part(self, parts: list[Array], op: ReduceOp) -> Array:
        """Send part r to rank r, and reduce what all ranks sent to this one; this rank's own part is used up."""
        mine = parts[self._rank]
        if self._scratch.size < mine.nbytes * self._world_size:
            self._scratch = aligned_zeros(mine.nbytes * self._world_size, np.dtype(np.uint8))
        rows = self._scratch[: mine.nbytes * self._world_size].reshape(self._world_size, mine.nbytes)
        received = [row.view(mine.dtype) for row in rows]
        received[self._rank] = mine
        self._trade(parts, received)
        return collectives.reduced(received, op)

    def _trade(self, outgoing: list[Array], incoming: list[Array]) -> None:
        """Send outgoing[r] to rank r and receive incoming[r] from it, for all ranks but this one."""
        others = [r for r in range(self._world_size) if r != self._rank]
        requests = [self._comm.Irecv(self._bytes(incoming[r]), r, _DATA) for r in others]
        requests += [self._comm.Isend(self._bytes(outgoing[r]), r, _DATA) for r in others]
        self._mpi.Request.Waitall(requests)

    def _bytes(self, flat: Array) -> list[Any]:
        return [flat.view(np.uint8), self._mpi.BYTE]  # MPI has no name for 16-bit floats, and needs none
