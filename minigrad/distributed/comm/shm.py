"""Ranks that are processes of one x86-64 host, over memory that they share.

A collective has two steps. Each rank *posts* its part: a header and where its array lies. Once all have posted,
each rank *executes* its share of the work, for an all-reduce one slice of the elements in the arrays of all ranks,
in place. It is over when all have executed. Counters in shared memory say how far every rank has come, so posting
never waits; waiting spins briefly, then sleeps. Arrays from `empty` lie in shared memory already and are never
copied; small ones travel in the slot of their call; others go in chunks through a staging area.

Only the order of stores matters between ranks: data first, then the counter. x86-64 keeps that order.
"""

from __future__ import annotations

import os
import platform
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.backend.device import CPU
from minigrad.backend.dtypes import Array
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.base import (
    Clock,
    DoneWork,
    Header,
    HostClock,
    Work,
    check_array,
    check_parts,
    check_reduction,
    check_root,
    check_world,
    decode_object,
    default_timeout_s,
    encode_object,
    incomplete,
)
from minigrad.distributed.comm.board import INLINE_BYTES, SLOTS, STAGING_BYTES, Board
from minigrad.distributed.comm.segment import Segment
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, DistributedError, RankFailedError

Views = list[Array]
_SPINS, _YIELD_S, _LONGEST_SLEEP_S, _LIVENESS_S = 200, 1e-3, 1e-3, 0.02


class _Operation:
    """One posted collective."""

    def __init__(self, header: Header, execute: Callable[[], None]) -> None:
        self.header, self.execute = header, execute
        self.executed = False


class _ShmWork:
    """A posted collective, and how its result gets to where the caller wants it."""

    __slots__ = ("_comm", "_seq", "_deliver")

    def __init__(self, comm: ShmCommunicator, seq: int, deliver: Callable[[], None] | None = None) -> None:
        self._comm, self._seq, self._deliver = comm, seq, deliver

    def done(self) -> bool:
        """Whether all ranks have executed their share; helps along without waiting."""
        self._comm.advance()
        return self._comm.board.least_executed() > self._seq

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        self._comm.complete(self._seq)
        if self._deliver is not None:
            self._deliver()
            self._deliver = None


class ShmCommunicator:
    """The collectives of one process among those of one host; see `Communicator`.

    Args:
        rank, world_size: This process.
        exchange: All-gathers small bytes over the ranks, for the start: `Rendezvous.all_gather`.
        timeout_s: How long a collective waits for a rank; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        DistributedError: the processor is no x86-64, or the shared memory could not be made.
    """

    device = CPU

    def __init__(
        self,
        rank: int,
        world_size: int,
        exchange: Callable[[bytes], list[bytes]],
        *,
        timeout_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_world("ShmCommunicator", rank, world_size)
        if platform.machine().lower() not in ("x86_64", "amd64"):
            raise DistributedError(f"ShmCommunicator: expected an x86-64 processor, got {platform.machine()}: use mpi")
        self.rank, self.world_size = rank, world_size
        self.timeout_s = default_timeout_s(timeout_s)
        self.clock: Clock = clock if clock is not None else HostClock()
        self.board = Board(rank, world_size, exchange)
        self._segments: list[Segment] = []
        self._seq = 0
        self._queue: deque[_Operation] = deque()
        self._works: deque[_ShmWork] = deque()
        self._failure: DistributedError | None = None

    # ------------------------------------------------------------------------------------------------ collectives

    def empty(self, count: int, dtype: np.dtype[Any]) -> Array:
        """A 1-D array of zeros in shared memory; all ranks call it together. It lasts as long as the communicator."""
        nbytes = count * np.dtype(dtype).itemsize
        segment = Segment(self.rank, self.world_size, nbytes, self._exchange)
        self._segments.append(segment)
        return segment.view(self.rank, 0, count, np.dtype(dtype))

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks."""
        check_array("all_reduce", self.rank, array)
        check_reduction("all_reduce", self.rank, array, op)
        detail = f"{op.name} {layout}".strip()
        return self._in_place("all_reduce", detail, array, lambda views: self._reduce_slice(views, op))

    def broadcast(self, array: Array, root: int = 0) -> Work:
        """Overwrite array by the root's."""
        check_array("broadcast", self.rank, array)
        check_root("broadcast", self.rank, root, self.world_size)

        def copy(views: Views) -> None:
            if self.rank != root:
                views[self.rank][...] = views[root]

        return self._in_place("broadcast", f"root {root}", array, copy)

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output by this rank's part of the reduction of source; blocks."""
        for array in (output, source):
            check_array("reduce_scatter", self.rank, array)
        check_reduction("reduce_scatter", self.rank, source, op)
        check_parts("reduce_scatter", self.rank, source, output, self.world_size)
        whole = source.copy()
        self._in_place("reduce_scatter", op.name, whole, lambda views: self._reduce_slice(views, op)).wait()
        output[...] = whole.reshape(self.world_size, -1)[self.rank].reshape(output.shape)
        return DoneWork()

    def all_gather(self, output: Array, source: Array) -> Work:
        """Overwrite output by the sources of all ranks; blocks."""
        for array in (output, source):
            check_array("all_gather", self.rank, array)
        check_parts("all_gather", self.rank, output, source, self.world_size)
        rows = output.reshape(self.world_size, -1)
        flat = source.reshape(-1)
        step = STAGING_BYTES // flat.dtype.itemsize
        for start in range(0, max(flat.size, 1), step):
            part = flat[start : start + step]

            def copy(views: Views, start: int = start, size: int = part.size) -> None:
                for row, view in zip(rows, views):
                    row[start : start + size] = view

            header = self._header("all_gather", "", source)
            views = self.board.staging_views(part.size, part.dtype)
            views[self.rank][...] = part
            self._post(header, lambda copy=copy, views=views: copy(views))  # type: ignore[misc]
            self.complete(header.seq)
        return DoneWork()

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        data = np.frombuffer(encode_object("all_gather_object", self.rank, value), np.uint8)
        sizes = np.zeros(self.world_size, np.int64)
        sizes[self.rank] = data.size
        self._in_place("all_gather_object", "", sizes, lambda views: self._reduce_slice(views, ReduceOp.SUM)).wait()
        padded = np.zeros(max(sizes.tolist()), np.uint8)
        padded[: data.size] = data
        gathered = np.empty(self.world_size * padded.size, np.uint8)
        self.all_gather(gathered, padded)
        rows = gathered.reshape(self.world_size, -1)
        return [decode_object(bytes(row[:size])) for row, size in zip(rows, sizes)]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        header = Header(self._seq, "barrier")
        self._post(header, lambda: None)
        self.complete(header.seq)

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason."""
        if self._failure is None:
            self._failure = RankFailedError(f"rank {self.rank} aborted: {reason}")
            self.board.tell_failure(self._failure)

    def close(self) -> None:
        """Leave the world: ranks that still wait for this one raise."""
        if self._failure is None:
            self._failure = RankFailedError("the communicator was closed")
        self.board.leave()

    # ------------------------------------------------------------------------------------------ parts of an operation

    def _reduce_slice(self, views: Views, op: ReduceOp) -> None:
        """Reduce this rank's slice of the elements, in the arrays of all ranks."""
        size = views[0].size
        cuts = [size * r // self.world_size // 16 * 16 for r in range(self.world_size)] + [size]
        mine = slice(cuts[self.rank], cuts[self.rank + 1])
        if mine.start < mine.stop:
            collectives.all_reduce([view[mine] for view in views], op)

    def _header(self, kind: str, detail: str, array: Array, place: str = "") -> Header:
        return Header(self._seq, kind, detail, array.dtype.name, int(array.size), place)

    def _in_place(self, kind: str, detail: str, array: Array, execute: Callable[[Views], None]) -> Work:
        """Post an operation on arrays that lie alike on all ranks: in a segment, in the slot, or in chunks."""
        for number, segment in enumerate(self._segments):
            offset = segment.offset_of(array)
            if offset is not None:
                views = [segment.view(r, offset, array.size, array.dtype) for r in range(self.world_size)]
                header = self._header(kind, detail, array, f"segment {number} at {offset}")
                return self._post(header, lambda: execute(views))
        if array.nbytes <= INLINE_BYTES:
            return self._inline(kind, detail, array, execute)
        flat = array.reshape(-1)
        step = STAGING_BYTES // flat.dtype.itemsize
        for start in range(0, flat.size, step):
            part = flat[start : start + step]
            views = self.board.staging_views(part.size, part.dtype)
            views[self.rank][...] = part
            header = self._header(kind, detail, array, f"chunk {start}")
            self._post(header, lambda views=views: execute(views))  # type: ignore[misc]
            self.complete(header.seq)
            part[...] = views[self.rank]
        return DoneWork()

    def _inline(self, kind: str, detail: str, array: Array, execute: Callable[[Views], None]) -> Work:
        self._make_room()
        views = self.board.slot_views(self._seq, array.size, array.dtype)
        views[self.rank][...] = array.reshape(-1)

        def deliver() -> None:
            array.reshape(-1)[...] = views[self.rank]

        return self._post(self._header(kind, detail, array), lambda: execute(views), deliver)

    # --------------------------------------------------------------------------------------------------- progress

    def _make_room(self) -> None:
        """Finish, and deliver, the calls whose slot the next one will take."""
        self._raise_failure()
        while self._works and self._works[0]._seq <= self._seq - SLOTS + 1:
            self._works.popleft().wait()

    def _post(self, header: Header, execute: Callable[[], None], deliver: Callable[[], None] | None = None) -> _ShmWork:
        self._make_room()
        self._seq += 1
        self._queue.append(_Operation(header, execute))
        self.board.post(header.seq, header)
        self.advance()
        work = _ShmWork(self, header.seq, deliver)
        self._works.append(work)
        return work

    def advance(self) -> None:
        """Execute this rank's share of the calls that all ranks have posted; never waits."""
        posted = self.board.least_posted()
        while self._queue and self._queue[0].header.seq < posted:
            operation = self._queue.popleft()
            self._check_headers(operation.header)
            operation.execute()
            self.board.executed(operation.header.seq)

    def complete(self, seq: int) -> None:
        """Block until a call is over on all ranks.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        if self.board.least_executed() > seq:  # a rank may have failed since
            return
        self._raise_failure()
        started, looked, spins, nap = 0.0, 0.0, 0, 1e-5
        while True:
            self.advance()
            if self.board.least_executed() > seq:
                return
            spins += 1
            if spins < _SPINS:
                continue
            now = time.monotonic()
            if not started:
                started = looked = now
            if now - looked > _LIVENESS_S:
                looked = now
                self._look_for_failure(seq)
            if now - started > self.timeout_s:
                self._fail(self._timeout(seq))
            if now - started < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(nap)
                nap = min(2 * nap, _LONGEST_SLEEP_S)

    # ---------------------------------------------------------------------------------------------------- failure

    def _check_headers(self, header: Header) -> None:
        texts = self.board.headers(header.seq)
        for rank, text in enumerate(texts):
            if text != texts[0]:
                self._fail(
                    CollectiveMismatchError(
                        f"expected all ranks to make one call, got {texts[0]} on rank 0 and {text} on rank {rank}"
                    )
                )

    def _look_for_failure(self, seq: int) -> None:
        gone = self.board.gone()  # first: a rank leaves after its last call, and after it told why it failed
        told, absent = self.board.told_failure(), self._absent(seq)
        if told is not None:
            self._fail(told, tell=False)
        if any(r in gone for r in absent):
            known = {r: f"{gone.get(r, 'did not come yet')} and {self.board.doing(r)}" for r in absent}
            self._fail(RankFailedError(incomplete(self.board.headers(seq)[self.rank], self.world_size, known)))

    def _timeout(self, seq: int) -> CollectiveTimeoutError:
        absent = {r: self.board.doing(r) for r in self._absent(seq)}
        limit = f" within {self.timeout_s:g} s"
        return CollectiveTimeoutError(incomplete(self.board.headers(seq)[self.rank], self.world_size, absent, limit))

    def _absent(self, seq: int) -> list[int]:
        """The ranks that a call still waits for."""
        return [r for r in range(self.world_size) if self.board.is_absent(r, seq)]

    def _fail(self, error: DistributedError, tell: bool = True) -> None:
        """Fail for good, and let the other ranks know."""
        if self._failure is None:
            self._failure = error
            if tell:
                self.board.tell_failure(error)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is None:
            told = self.board.told_failure()
            if told is None:
                return
            self._failure = told
        raise type(self._failure)(f"rank {self.rank}: {self._failure}")

    def _exchange(self, data: bytes) -> list[bytes]:
        return [text.encode() for text in self.all_gather_object(data.decode())]
