"""Ranks that are processes of one x86-64 host, over memory that they share.

A collective has two steps. Each rank *posts* its part: a header, where its array lies, and its weight in a sum. Once
all have posted, each rank *executes* its share of the work, for an all-reduce one slice of the elements in the arrays
of all ranks, in place. It is over when all have executed. Counters in shared memory say how far every rank has come,
so posting never waits; waiting spins briefly, then sleeps. Arrays from `empty` lie in shared memory already and are
never copied; small ones travel in the slot of their call; others go in chunks through a staging area.

Only the order of stores matters between ranks: data first, then the counter. x86-64 keeps that order.
"""

from __future__ import annotations

import functools
import os
import platform
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Optional

import numpy as np

from minigrad.backend.device import CPU
from minigrad.backend.dtypes import Array, DtypeLike, is_float
from minigrad.backend.memory import address_of
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.board import INLINE_BYTES, SLOTS, Board, encode_header
from minigrad.distributed.comm.checks import (
    check_array,
    check_empty,
    check_parts,
    check_reduction,
    check_root,
    check_world,
    decode_object,
    default_timeout_s,
    encode_object,
    stays_here,
)
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.front import Front, HostClock
from minigrad.distributed.comm.headers import GIVE_UP, Header
from minigrad.distributed.comm.place import Place, chunks
from minigrad.distributed.comm.protocol import Clock, Work
from minigrad.distributed.comm.segment import Segment
from minigrad.distributed.comm.where import Watcher
from minigrad.distributed.comm.work import DoneWork
from minigrad.errors import DistributedError, DtypeError, RankFailedError

Views = list[Array]
Span = Optional[tuple[float, float]]
Execute = Callable[[Place, list[float]], None]  # this rank's share of a call, given the weights of all ranks
_SPINS, _YIELD_S, _LIVENESS_S = 3, 1e-3, 0.02
_SLEEP_RATIO, _LONGEST_SLEEP_S = 0.05, 1e-3  # a sleep is that share of the time waited so far
_MOST_PLACES = 4096  # remembered at once
_BARRIER, _GIVE_UP = encode_header(Header(0, "barrier")), encode_header(Header(0, GIVE_UP))


class _Call:
    """A posted collective: this rank's share of it, and how its result gets to where the caller wants it."""

    __slots__ = ("seq", "header", "over", "_comm", "_place", "_execute", "_deliver", "_span")

    def __init__(
        self, comm: ShmCommunicator, header: bytes, place: Place, execute: Execute, deliver: Callable[[], None] | None
    ) -> None:
        self.seq, self.header, self.over = comm.seq, header, False
        self._comm, self._place, self._execute, self._deliver = comm, place, execute, deliver
        self._span: tuple[float, float] | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """See `Work.span`; to be asked for before 64 more calls."""
        if self._span is None and self.over:
            self._span = self._comm.board.span(self.seq)
        return self._span

    def execute(self) -> None:
        """Do this rank's share, once all have posted the call."""
        self._execute(self._place, self._comm.board.weights(self.seq))

    def done(self) -> bool:
        """Whether all ranks have executed their share; helps along without waiting."""
        self._comm.advance()
        return self._comm.board.all_executed(self.seq)

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        if not self.over:
            self._comm.complete(self.seq)
            if self._deliver is not None:
                self._deliver()
            self.over = True


class ShmCommunicator(Front):
    """The collectives of one process among those of one host; see `Communicator`.

    Args:
        rank, world_size: This process.
        exchange: All-gathers small bytes over the ranks, for the start: `Rendezvous.all_gather`.
        timeout_s: How long a collective waits for a rank; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        DistributedError: the processor is no x86-64, or the shared memory could not be made.
    """

    device = CPU
    adds_weighted = True

    __reduce_ex__ = stays_here

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
        self.seq = 0  # of the next call
        self._queue: deque[_Call] = deque()  # not executed by this rank yet
        self._calls: deque[_Call] = deque()  # not known to be over
        self._places: dict[tuple[Any, ...], Place] = {}
        self._seen: dict[int, tuple[Array, Place]] = {}  # by id, since to ask for an address takes long
        self._nowhere = Place("", 0, [np.empty(0)], 0)
        self._failure: DistributedError | None = None
        self._inherited = False
        self._watcher = Watcher(self, self.board.answer)
        tell_children(self)

    # ------------------------------------------------------------------------------------------------ collectives

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros in shared memory; all ranks call it together. It lasts as long as the communicator."""
        kind = check_empty(self.rank, count, dtype)
        segment = Segment(self.rank, self.world_size, count * kind.itemsize, self._exchange)
        self._segments.append(segment)
        return segment.view(self.rank, 0, count, kind)

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> Work:
        """Overwrite array by its reduction over the ranks."""
        check_array("all_reduce", self.rank, array)
        check_reduction("all_reduce", self.rank, array, op)
        return self._reduce_places("all_reduce", f"{op.name} {layout}".strip(), array, op)

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Overwrite array by the sum over the ranks of array · weight; each block is weighted when it is summed.

        Other ranks may call `all_reduce` instead, where their elements are weighted already.
        """
        check_array("weighted_all_reduce", self.rank, array)
        if not is_float(array.dtype):
            raise DtypeError(f"rank {self.rank}: weighted_all_reduce: expected a float dtype, got {array.dtype.name}")
        op, factor = ReduceOp.SUM, 1.0 if weight is None else float(weight[0])
        return self._reduce_places("all_reduce", f"{op.name} {layout}".strip(), array, op, factor)

    def broadcast(self, array: Array, root: int = 0) -> Work:
        """Overwrite array by the root's."""
        check_array("broadcast", self.rank, array)
        check_root("broadcast", self.rank, root, self.world_size)

        def copy(place: Place, weights: list[float]) -> None:
            if self.rank != root:
                place.views[self.rank][...] = place.views[root]

        detail, flat = f"root {root}", array.reshape(-1)
        near = self._near("broadcast", detail, array, copy)
        if near is not None:
            return near
        spans = []
        for start, part in chunks(flat):
            spans.append(self._staged("broadcast", detail, start, part, flat.size, copy))
            part[...] = self._chunk_place(start, part, flat.size).views[self.rank]
        return _over(spans)

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> Work:
        """Overwrite output by this rank's part of the reduction of source; blocks."""
        for array in (output, source):
            check_array("reduce_scatter", self.rank, array)
        check_reduction("reduce_scatter", self.rank, source, op)
        check_parts("reduce_scatter", self.rank, source, output, self.world_size)
        whole = source.copy()
        work = self._reduce_places("reduce_scatter", op.name, whole, op)
        work.wait()
        output[...] = whole.reshape(self.world_size, -1)[self.rank].reshape(output.shape)
        return DoneWork(work.span)

    def all_gather(self, output: Array, source: Array) -> Work:
        """Overwrite output by the sources of all ranks; blocks."""
        for array in (output, source):
            check_array("all_gather", self.rank, array)
        check_parts("all_gather", self.rank, output, source, self.world_size)
        rows = output.reshape(self.world_size, -1)
        flat, spans = source.reshape(-1), []
        for start, part in chunks(flat):

            def copy(place: Place, weights: list[float], start: int = start, size: int = part.size) -> None:
                for row, view in zip(rows, place.views):
                    row[start : start + size] = view

            spans.append(self._staged("all_gather", "", start, part, flat.size, copy))
        return _over(spans)

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        data = np.frombuffer(encode_object("all_gather_object", self.rank, value), np.uint8)
        sizes = np.zeros(self.world_size, np.int64)
        sizes[self.rank] = data.size
        self._reduce_places("all_gather_object", "", sizes, ReduceOp.SUM).wait()
        padded = np.zeros(max(sizes.tolist()), np.uint8)
        padded[: data.size] = data
        gathered = np.empty(self.world_size * padded.size, np.uint8)
        self.all_gather(gathered, padded)
        rows = gathered.reshape(self.world_size, -1)
        return [decode_object(bytes(row[:size])) for row, size in zip(rows, sizes)]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self._post(_BARRIER, self._nowhere, _nothing).wait()

    def give_up(self, reason: str) -> None:
        """Fail all ranks, unless all of them make this call; see comm.given_up."""
        try:
            self._make_room()
            self.board.note(self.seq, reason)
            self._post(_GIVE_UP, self._nowhere, _nothing)
        except DistributedError:
            pass  # it has failed already, which every later call says

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason."""
        self._check_process()
        if self._failure is None:
            self._failure = RankFailedError(f"rank {self.rank} aborted: {reason}")
            self.board.tell_failure(self._failure)

    def close(self) -> None:
        """Leave the world: ranks that still wait for this one raise. Memory lasts as long as arrays on it do."""
        self._check_process()
        if self._failure is None:
            self._failure = RankFailedError("the communicator was closed")
        self.board.leave()
        self._watcher.stop()
        for held in (self._queue, self._calls, self._places, self._seen):
            held.clear()

    def forked(self) -> None:
        """See `Inherited`."""
        self._failure, self._inherited = in_a_child(), True

    def _check_process(self) -> None:
        if self._inherited:
            self._raise_failure()

    # ------------------------------------------------------------------------------------------------------ places

    def _reduce_places(self, kind: str, detail: str, array: Array, op: ReduceOp, weight: float = 1.0) -> Work:
        """Post the reduction of arrays, or carry it out where they need the staging area."""
        near = self._near(kind, detail, array, functools.partial(Place.reduce, op=op), weight)
        if near is not None:
            return near
        flat, spans = array.reshape(-1), []
        for start, part in chunks(flat):
            place = self._chunk_place(start, part, flat.size)
            place.give(part)
            execute = functools.partial(Place.reduce, op=op, mine=part)
            call = self._post(place.header(kind, detail), place, execute, weight)
            call.wait()
            spans.append(call.span)
            place.take(part)
        return _over(spans)

    def _near(self, kind: str, detail: str, array: Array, execute: Execute, weight: float = 1.0) -> Work | None:
        """Post an operation on arrays that lie in a segment or fit into the slot; None for others."""
        place = self._segment_place(array)
        if place is not None:
            return self._post(place.header(kind, detail), place, execute, weight)
        return self._inline(kind, detail, array, execute, weight) if array.nbytes <= INLINE_BYTES else None

    def _inline(self, kind: str, detail: str, array: Array, execute: Execute, weight: float) -> Work:
        self._make_room()
        size, dtype = array.size, array.dtype
        views = self.board.slot_views
        place = self._place((self.seq % SLOTS, size, dtype), "", size, lambda: views(self.seq, size, dtype))
        mine = place.views[self.rank]
        mine[...] = array.reshape(-1)

        def deliver() -> None:
            array.reshape(-1)[...] = mine

        return self._post(place.header(kind, detail), place, execute, weight, deliver)

    def _staged(self, kind: str, detail: str, start: int, part: Array, whole: int, execute: Execute) -> Span:
        """Carry out an operation on a chunk, through the staging area."""
        place = self._chunk_place(start, part, whole)
        place.views[self.rank][...] = part
        call = self._post(place.header(kind, detail), place, execute)
        call.wait()
        return call.span

    def _segment_place(self, array: Array) -> Place | None:
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
                place = self._place((address, size, dtype), f"segment {number} at {offset}", size, views)
                if len(self._seen) >= _MOST_PLACES:
                    self._seen.clear()
                self._seen[id(array)] = array, place
                return place
        return None

    def _chunk_place(self, start: int, part: Array, whole: int) -> Place:
        views = self.board.staging_views
        key = (start, whole, part.size, part.dtype)
        return self._place(key, f"chunk {start}", whole, lambda: views(part.size, part.dtype))

    def _place(self, key: tuple[Any, ...], name: str, count: int, views: Callable[[], Views]) -> Place:
        place = self._places.get(key)
        if place is None:
            if len(self._places) >= _MOST_PLACES:
                self._places.clear()
            place = self._places[key] = Place(name, count, views(), self.rank)
        return place

    # --------------------------------------------------------------------------------------------------- progress

    def _make_room(self) -> None:
        """Finish, and deliver, the calls whose slot the next one will take."""
        self._raise_failure()
        calls = self._calls
        while calls and (calls[0].over or calls[0].seq <= self.seq - SLOTS + 1):
            calls.popleft().wait()

    def _post(
        self,
        header: bytes,
        place: Place,
        execute: Execute,
        weight: float = 1.0,
        deliver: Callable[[], None] | None = None,
    ) -> _Call:
        self._make_room()
        call = _Call(self, header, place, execute, deliver)
        self._calls.append(call)
        self._queue.append(call)
        self.seq += 1
        self.board.post(call.seq, header, weight)
        self.advance()
        return call

    def advance(self) -> None:
        """Execute this rank's share of the calls that all ranks have posted; never waits."""
        while self._queue and self.board.all_posted(self._queue[0].seq):
            try:
                call = self._queue.popleft()
                if not self.board.all_agree(call.seq, call.header):
                    self._fail(self.board.mismatch(call.seq))
                began_s = self.clock.now_s()
                call.execute()
                self.board.executed(call.seq, began_s, self.clock.now_s())
            except BaseException as error:  # an interrupt, say: half of this rank's share may be done
                self.abort(f"its share of a collective raised {type(error).__name__}: {error}")
                raise

    def complete(self, seq: int) -> None:
        """Block until a call is over on all ranks.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        if self.board.all_executed(seq):  # a rank may have failed since
            return
        self._raise_failure()
        started, looked, spins = 0.0, 0.0, 0
        while True:
            self.advance()
            if self.board.all_executed(seq):
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
                self._fail(self.board.timeout(seq, self.timeout_s))
            if now - started < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(min(_SLEEP_RATIO * (now - started), _LONGEST_SLEEP_S))

    # ---------------------------------------------------------------------------------------------------- failure

    def _look_for_failure(self, seq: int) -> None:
        gone = self.board.gone()  # first: a rank leaves after its last call, and after it told why it failed
        told, absent = self.board.told_failure(), self.board.absent(seq)
        if told is not None:
            self._fail(told, tell=False)
        given_up = self.board.gave_up(self._queue[0].seq) if self._queue else None
        if given_up is not None:
            self._fail(given_up)
        if any(r in gone for r in absent):
            known = {r: f"{gone.get(r, 'did not come yet')} and {self.board.doing(r)}" for r in absent}
            self._fail(self.board.departed(seq, known))

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


def _over(spans: list[Span]) -> DoneWork:
    """What is left to wait for of calls that are all over: nothing."""
    first, last = spans[0], spans[-1]
    return DoneWork((first[0], last[1]) if first and last else None)


def _nothing(place: Place, weights: list[float]) -> None:
    """A rank's share of a barrier."""
