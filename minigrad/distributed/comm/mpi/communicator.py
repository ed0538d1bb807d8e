"""Ranks that are processes of one or many hosts, under mpirun: CPU arrays over mpi4py.

A thread of each rank carries the calls out, one after the other, so that they go on while the rank computes: MPI's
own nonblocking collectives move only while somebody asks for them. A call has two steps. First the ranks *agree*: they
tell each other what they are about to do, and wait politely until all have come; there a mismatch, a missing rank or
a failed one becomes an error, before anything can hang inside MPI. Then the data travels, by calls that block.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from minigrad.backend.device import CPU
from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.backend.memory import aligned_zeros
from minigrad.backend.thread import new_thread
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import (
    check_array,
    check_empty,
    check_parts,
    check_reduction,
    check_root,
    decode_object,
    default_timeout_s,
    encode_object,
    stays_here,
)
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.front import Front, HostClock
from minigrad.distributed.comm.headers import GIVE_UP, Header, given_up, mismatch, timed_out
from minigrad.distributed.comm.mpi.mover import Mover
from minigrad.distributed.comm.mpi.start import load_mpi, meet
from minigrad.distributed.comm.mpi.talk import Talk
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.comm.where import ask, user_line
from minigrad.errors import (
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
)

_NEWS_S = 0.05  # how often a rank tells how far it is
_SPINS, _NAP_S, _LONGEST_NAP_S = 50, 2e-5, 1e-3
_GRACE_S, _PARTING_S = 2.0, 0.2
_OUTPUT_S = 0.2  # mpirun drops what it has not passed on when the job is ended


class _MpiWork:
    """A posted collective."""

    __slots__ = ("_comm", "header", "execute", "finished", "span")

    def __init__(self, comm: MpiCommunicator, header: Header, execute: Callable[[], None]) -> None:
        self._comm, self.header, self.execute = comm, header, execute
        self.finished = False
        self.span: tuple[float, float] | None = None  # see `Work.span`

    def done(self) -> bool:
        """Whether the result is there; raises what `wait` would where it never will be."""
        if not self.finished:
            self._comm.raise_failure()
        return self.finished

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        self._comm.complete(self)


class MpiCommunicator(Front):
    """The collectives of one process among those that mpirun started; see `Communicator`.

    All ranks construct it together. Each call is checked against those of the other ranks before data moves.

    Args:
        base: An mpi4py communicator, which is duplicated; COMM_WORLD by default.
        timeout_s: How long a collective waits for a rank; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        MissingPackageError: mpi4py or the MPI library is not there.
        CollectiveTimeoutError: ranks did not come; they are named.
    """

    device = CPU

    __reduce_ex__ = stays_here

    def __init__(self, base: Any = None, *, timeout_s: float | None = None, clock: Clock | None = None) -> None:
        self.timeout_s = default_timeout_s(timeout_s)
        self._mpi = load_mpi(self.timeout_s)
        base = base if base is not None else self._mpi.COMM_WORLD
        self.clock: Clock = clock if clock is not None else HostClock()
        self.rank, self.world_size = int(base.Get_rank()), int(base.Get_size())
        self._inherited = False
        tell_children(self)
        try:
            token = meet(self._mpi, base, self.timeout_s)
        except CollectiveTimeoutError:
            atexit.register(self.end_job)  # or MPI's own end would wait for those ranks
            raise
        self._comm = base.Dup()
        thread = threading.get_ident()
        self._mover = Mover(self._mpi, self._comm)
        self._talk = Talk(self._mpi, self._comm, token, lambda: user_line(thread))
        self._changed = threading.Condition()
        self._failure: DistributedError | None = None
        self.failure = Failure()
        self._to_tell = self._to_ask = False
        self._closed, self._whole = False, True
        self._posted, self._carried_out, self._doing, self._agreeing_on = 0, 0, "", ""
        self._told_at = 0.0
        self._queue: queue.SimpleQueue[_MpiWork | None] = queue.SimpleQueue()
        self._thread = new_thread(self._serve, name=f"mpi-rank-{self.rank}")
        self._thread.start()
        atexit.register(self._leave_at_exit)

    # --------------------------------------------------------------------------------------------------- interface

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros."""
        return aligned_zeros(count, check_empty(self.rank, count, dtype))

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> _MpiWork:
        """Overwrite array by its reduction over the ranks."""
        check_array("all_reduce", self.rank, array)
        check_reduction("all_reduce", self.rank, array, op)
        flat = array.reshape(-1)
        return self._post("all_reduce", f"{op.name} {layout}".strip(), array, lambda: self._mover.reduce(flat, op))

    def broadcast(self, array: Array, root: int = 0) -> _MpiWork:
        """Overwrite array by the root's."""
        check_array("broadcast", self.rank, array)
        check_root("broadcast", self.rank, root, self.world_size)
        flat = array.reshape(-1)
        return self._post("broadcast", f"root {root}", array, lambda: self._mover.broadcast(flat, root))

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> _MpiWork:
        """Overwrite output by this rank's part of the reduction of source."""
        for array in (output, source):
            check_array("reduce_scatter", self.rank, array)
        check_reduction("reduce_scatter", self.rank, source, op)
        check_parts("reduce_scatter", self.rank, source, output, self.world_size)
        rows, flat = source.reshape(self.world_size, output.size), output.reshape(-1)
        return self._post("reduce_scatter", op.name, source, lambda: self._mover.reduce_rows(flat, rows, op))

    def all_gather(self, output: Array, source: Array) -> _MpiWork:
        """Overwrite output by the sources of all ranks."""
        for array in (output, source):
            check_array("all_gather", self.rank, array)
        check_parts("all_gather", self.rank, output, source, self.world_size)
        whole, part = output.reshape(-1), source.reshape(-1)
        return self._post("all_gather", "", source, lambda: self._mover.all_gather(whole, part))

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        data = encode_object("all_gather_object", self.rank, value)
        parts: list[bytes] = []
        self._post("all_gather_object", "", None, lambda: parts.extend(self._mover.gather_bytes(data))).wait()
        return [decode_object(part) for part in parts]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._post("barrier", "", None, lambda: None).wait()

    def give_up(self, reason: str) -> None:
        """Fail all ranks, unless all of them make this call; see comm.given_up."""
        try:
            self._post(GIVE_UP, reason, None, lambda: None)
        except DistributedError:
            pass  # it has failed already, which every later call says

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason; they go on running, see `end_job`."""
        self._check_process()
        self._fail(RankFailedError(f"rank {self.rank} aborted: {reason}"))
        with self._changed:
            self._changed.wait_for(lambda: not self._to_tell, _GRACE_S)

    def end_job(self, status: int = 1) -> None:
        """End all processes of the job now (MPI_Abort)."""
        self._check_process()
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_OUTPUT_S)
        self._mpi.COMM_WORLD.Abort(status)

    def close(self) -> None:
        """Leave the world, whatever the other ranks do: those that wait for this one raise.

        Where all ranks leave at about the same time, MPI's communicator is freed too; else MPI frees it at its end.
        """
        self._check_process()
        if self._closed:
            return
        self._whole = self._failure is None
        self._closed = True
        self._fail(RankFailedError("the communicator was closed"), tell=False)
        self._thread.join(_GRACE_S)
        if not self._thread.is_alive():
            atexit.unregister(self._leave_at_exit)

    def forked(self) -> None:
        """See `Inherited`: this process has neither the thread nor, as MPI sees it, a place among the ranks."""
        self._changed, self._queue = threading.Condition(), queue.SimpleQueue()
        self._failure, self._inherited = in_a_child(), True
        for at_exit in (self._leave_at_exit, self.end_job):
            atexit.unregister(at_exit)

    def _check_process(self) -> None:
        if self._inherited:
            self.raise_failure()

    def _leave_at_exit(self) -> None:
        """MPI ends only where all ranks end it: a thread that is held inside of it would hold all processes."""
        self.close()
        if self._thread.is_alive():
            print(f"rank {self.rank}: mpi: ends the job: a collective is held up: {self._doing}", file=sys.stderr)
            self.end_job()

    # -------------------------------------------------------------------------------------------- calls, by the caller

    def _post(self, kind: str, detail: str, array: Array | None, execute: Callable[[], None]) -> _MpiWork:
        self.raise_failure()
        size = (array.dtype.name, int(array.size)) if array is not None else ("", -1)
        header = Header(self._posted, kind, detail, *size)
        self._doing = f"last called {header}"
        self._posted += 1
        work = _MpiWork(self, header, execute)
        self._queue.put(work)
        return work

    def complete(self, work: _MpiWork) -> None:
        """Block until a call is over.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        with self._changed:
            came = self._changed.wait_for(lambda: work.finished or self._failure is not None, self.timeout_s)
        if work.finished:
            return
        if not came:
            self._fail(self._timeout(work.header))
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what made this communicator fail, if anything did."""
        if self._failure is not None:
            raise type(self._failure)(f"rank {self.rank}: {self._failure}")

    def _timeout(self, header: Header) -> CollectiveTimeoutError:
        peers = self._talk.peers
        absent = {r: peer.doing for r, peer in enumerate(peers) if r != self.rank and peer.posted <= header.seq}
        self._to_ask = True
        ask(lambda: all(peer.line for r, peer in enumerate(peers) if r != self.rank))
        lines = {r: peer.line for r, peer in enumerate(peers)} | {self.rank: user_line(threading.get_ident())}
        return timed_out(header, self.world_size, self.timeout_s, absent, lines)

    def _fail(self, error: DistributedError, tell: bool = True) -> None:
        """Fail for good; the communication thread lets the other ranks know."""
        with self._changed:
            if self._failure is None:
                self._failure, self._to_tell = error, tell
            self._changed.notify_all()
        self._queue.put(None)

    # ----------------------------------------------------------------------------------- the communication thread

    def _serve(self) -> None:
        try:
            while not self._closed:
                self._serve_next()
            self._attend()
            self._talk.tell_left(self._carried_out)
            if self._whole and self._talk.all_left(_PARTING_S):
                self._comm.Free()
        except Exception as error:
            self._fail(DistributedError(f"mpi: {self._doing or 'no call yet'}: {error!r}"), tell=False)

    def _serve_next(self) -> None:
        try:
            work = self._queue.get(timeout=_NEWS_S)
        except queue.Empty:
            work = None
        self._attend()
        if work is None or self._failure is not None:
            return
        try:
            self._carry_out(work)
        except DistributedError as error:
            self._fail(error)
        except Exception as error:
            self._fail(DistributedError(f"{work.header}: expected a reduction that works, got {error!r}"))
        self._attend()

    def _carry_out(self, work: _MpiWork) -> None:
        self._agreeing_on = str(work.header)
        seen = self._talk.agree(self._agreeing_on, self._pause)
        if len(seen) > 1 and not all(map(given_up, seen)):
            raise mismatch(*sorted((rank, text) for text, rank in seen.items()))
        started_s = self.clock.now_s()
        work.execute()
        work.span = started_s, self.clock.now_s()
        with self._changed:
            self._carried_out += 1
            work.finished = True
            self._changed.notify_all()

    def _attend(self) -> None:
        """Hear the news of the other ranks, and tell them this rank's; never waits."""
        self._talk.listen()
        if self._talk.failure is not None and self._failure is None:
            self._fail(self._talk.failure, tell=False)
        if self._to_tell and self._failure is not None:
            self._talk.tell_failure(self._failure)
            with self._changed:
                self._to_tell = False
                self._changed.notify_all()
        if self._to_ask:
            self._to_ask = False
            self._talk.ask_lines()
        now = time.monotonic()
        if now - self._told_at > _NEWS_S:
            self._told_at = now
            self._talk.tell_state(self._posted, self._doing)

    def _pause(self, misses: int) -> None:
        """Wait a little for a rank that has not come; gives up where this rank has failed, or that rank has left."""
        if misses < _SPINS:
            os.sched_yield()
            return
        time.sleep(min(_LONGEST_NAP_S, _NAP_S * (misses - _SPINS + 1)))
        self._attend()
        if self._failure is not None:
            raise self._failure
        peers, call = self._talk.peers, self._carried_out
        gone = [r for r, peer in enumerate(peers) if peer.left_after is not None and peer.left_after <= call]
        if gone:
            listed = ", ".join(f"rank {r} closed its communicator and {peers[r].doing}" for r in gone)
            raise RankFailedError(f"{self._agreeing_on}: expected all {self.world_size} ranks, but {listed}")
