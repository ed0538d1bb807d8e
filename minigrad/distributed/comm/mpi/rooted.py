"""`reduce`, `gather`, `scatter` and `all_to_all` of MPI ranks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.mpi.carrier import MpiWork
from minigrad.distributed.comm.mpi.mover import Mover
from minigrad.distributed.comm.rooted import Rooted, What

_NOTHING = np.empty(0)  # of a rank that is not the root


class RootedMpi(Rooted):
    """The part of `MpiCommunicator` that moves their bytes."""

    _mover: Mover

    def _post(self, what: What, array: Array | None, execute: Callable[[], object]) -> MpiWork:
        raise NotImplementedError

    def _reduce_to(self, what: What, array: Array, root: int, op: ReduceOp) -> MpiWork:
        return self._post(what, array, lambda: self._mover.reduce_to(array, root, op))

    def _gather(self, what: What, output: Array | None, source: Array, root: int) -> MpiWork:
        whole, part = _NOTHING if output is None else output.reshape(-1), source.reshape(-1)
        return self._post(what, source, lambda: self._mover.gather(whole, part, root))

    def _scatter(self, what: What, output: Array, source: Array | None, root: int) -> MpiWork:
        part, whole = output.reshape(-1), _NOTHING if source is None else source.reshape(-1)
        return self._post(what, output, lambda: self._mover.scatter(part, whole, root))

    def _all_to_all(self, what: What, output: Array, source: Array) -> MpiWork:
        into, out_of = output.reshape(-1), source.reshape(-1)
        return self._post(what, source, lambda: self._mover.all_to_all(into, out_of))
