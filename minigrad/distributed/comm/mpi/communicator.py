"""Ranks that are processes of one or many hosts, under mpirun: CPU arrays over mpi4py."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import default_timeout_s
from minigrad.distributed.comm.front import Front, What
from minigrad.distributed.comm.mpi.carrier import Carrier, MpiWork
from minigrad.distributed.comm.mpi.groups import MpiGroups
from minigrad.distributed.comm.mpi.mover import Mover
from minigrad.distributed.comm.mpi.offers import MpiMessages
from minigrad.distributed.comm.mpi.rooted import RootedMpi
from minigrad.distributed.comm.mpi.sightings import Watch
from minigrad.distributed.comm.mpi.start import load_mpi, meet
from minigrad.distributed.comm.mpi.talk import Talk
from minigrad.distributed.comm.protocol import Clock
from minigrad.errors import CollectiveTimeoutError, DistributedError

_GRACE_S = 2.0
_OUTPUT_S = 0.2  # mpirun drops what it has not passed on when the job is ended


class MpiCommunicator(MpiMessages, RootedMpi, MpiGroups, Front):
    """The collectives of one process among those that mpirun started; see `Communicator`.

    All ranks construct it together. Each call is checked against those of the other ranks before data moves.

    Args:
        base: An mpi4py communicator, which is duplicated; COMM_WORLD by default.
        timeout_s: How long a rank is waited for, from `wait()` on; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        MissingPackageError: mpi4py or the MPI library is not there.
        CollectiveTimeoutError: ranks did not come; they are named.
    """

    def __init__(self, base: Any = None, *, timeout_s: float | None = None, clock: Clock | None = None) -> None:
        timeout_s = default_timeout_s(timeout_s)
        self.mpi = mpi = load_mpi(timeout_s)
        base = base if base is not None else mpi.COMM_WORLD
        super().__init__(int(base.Get_rank()), int(base.Get_size()), timeout_s=timeout_s, clock=clock)
        try:
            token = meet(mpi, base, timeout_s)
        except CollectiveTimeoutError:
            atexit.register(self._end_job_at_exit)  # or MPI's own end would wait for those ranks
            raise
        self.inner = comm = base.Dup()
        self._mover = Mover(mpi, comm)
        talk = Talk(mpi, comm, token, self.failure)
        watch = Watch(self, comm, threading.get_ident())
        self._carrier = Carrier(talk, self.failure, self.calls, timeout_s, mpi, comm, watch)
        self.mail = self._carrier.mail
        atexit.register(self._leave_at_exit)

    # -------------------------------------------------------------------------------------------------- collectives

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> MpiWork:
        flat = array.reshape(-1)
        return self._post(what, array, lambda: self._mover.reduce(flat, op))

    def _broadcast(self, what: What, array: Array, root: int) -> MpiWork:
        flat = array.reshape(-1)
        return self._post(what, array, lambda: self._mover.broadcast(flat, root))

    def _reduce_scatter(self, what: What, output: Array, source: Array, op: ReduceOp) -> MpiWork:
        rows, flat = source.reshape(self.world_size, output.size), output.reshape(-1)
        return self._post(what, source, lambda: self._mover.reduce_rows(flat, rows, op))

    def _all_gather(self, what: What, output: Array, source: Array) -> MpiWork:
        whole, part = output.reshape(-1), source.reshape(-1)
        return self._post(what, source, lambda: self._mover.all_gather(whole, part))

    def _meet(self, what: What) -> MpiWork:
        return self._post(what, None, lambda: None)

    def _gather_bytes(self, what: What, data: bytes) -> list[bytes]:
        parts: list[bytes] = []
        self._post(what, None, lambda: parts.extend(self._mover.gather_bytes(data))).wait()
        return parts

    def _post(self, what: What, array: Array | None, execute: Callable[[], object]) -> MpiWork:
        work = MpiWork(self._carrier, self._next(what, array), execute, self.clock)
        self._carrier.post(work)
        return work

    # --------------------------------------------------------------------------------------------------------- ends

    def _tell(self, error: DistributedError) -> None:
        self._carrier.tell(error)

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason; they go on running, see `end_job`."""
        super().abort(reason)
        self._carrier.flush(_GRACE_S)

    def end_job(self, status: int = 1) -> None:
        """End all processes of the job now (MPI_Abort)."""
        self.failure.check_process(self.rank)
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_OUTPUT_S)
        self.mpi.COMM_WORLD.Abort(status)

    def _leave(self) -> None:
        """Leave; where all ranks do at about the same time, MPI's communicator is freed, else it is at MPI's end."""
        whole = self.failure.error is None
        self.failure.close()
        self._carrier.stop(whole)
        if not self._carrier.thread.is_alive():
            atexit.unregister(self._leave_at_exit)

    def _leave_at_exit(self) -> None:
        """MPI ends only where all ranks end it: a thread that is held inside of it would hold all processes."""
        if self.failure.inherited:
            return
        self.close()
        if self._carrier.thread.is_alive():
            doing = self._carrier.doing
            print(f"rank {self.rank}: mpi: ends the job: a collective is held up: {doing}", file=sys.stderr)
            self.end_job()

    def _end_job_at_exit(self) -> None:
        if not self.failure.inherited:
            self.end_job()
