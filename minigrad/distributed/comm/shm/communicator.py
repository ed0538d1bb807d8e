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
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_empty
from minigrad.distributed.comm.front import Front, What
from minigrad.distributed.comm.headers import GIVE_UP, Header
from minigrad.distributed.comm.protocol import Clock, Work
from minigrad.distributed.comm.shm.board import (
    INLINE_BYTES,
    SLOTS,
    Board,
    absence,
    disagreement,
    encode_header,
    gave_up,
    lateness,
)
from minigrad.distributed.comm.shm.groups import ShmGroups
from minigrad.distributed.comm.shm.mailbox import Mailbox, ShmMessages
from minigrad.distributed.comm.shm.region import Region, Regions, chunks
from minigrad.distributed.comm.shm.rooted import RootedShm
from minigrad.distributed.comm.shm.segment import Segment
from minigrad.distributed.comm.shm.sightings import Places, RememberingShm, look_after
from minigrad.distributed.comm.work import DeliveringWork, Span, over
from minigrad.errors import DistributedError

Execute = Callable[[Region, list[float]], None]  # this rank's share of a call, given the weights of all ranks
_SPINS, _YIELD_S, _LIVENESS_S = 3, 1e-3, 0.02
_SLEEP_RATIO, _LONGEST_SLEEP_S = 0.05, 1e-3  # a sleep is that share of the time waited so far
_WITHOUT_DATA = {kind: encode_header(Header(0, kind)) for kind in ("barrier", GIVE_UP)}


class _Call:
    """A posted collective: this rank's share of it, and how its result gets to where the caller wants it."""

    __slots__ = ("seq", "header", "over", "_comm", "_region", "_execute", "_deliver", "_span")

    def __init__(
        self, comm: ShmCommunicator, header: bytes, region: Region, execute: Execute, deliver: Callable[[], None] | None
    ) -> None:
        self.seq, self.header, self.over = comm.seq, header, False
        self._comm, self._region, self._execute, self._deliver = comm, region, execute, deliver
        self._span: Span | None = None

    @property
    def span(self) -> Span | None:
        """See `Work.span`; to be asked for before 64 more calls."""
        if self._span is None and self.over:
            self._span = self._comm.board.span(self.seq)
        return self._span

    def execute(self) -> None:
        """Do this rank's share, once all have posted the call."""
        self._execute(self._region, self._comm.board.weights(self.seq))

    def done(self) -> bool:
        """Whether all ranks have executed their share; helps along without waiting."""
        self._comm.advance()
        if self._comm.groups or self._comm.parent is not None:
            self._comm.help_relatives()
        return self._comm.board.all_executed(self.seq)

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        if not self.over:
            self._comm.complete(self.seq)
            if self._deliver is not None:
                self._deliver()
            self.over = True


class ShmCommunicator(RememberingShm, ShmMessages, RootedShm, ShmGroups, Front):
    """The collectives of one process among those of one host; see `Communicator`.

    Args:
        rank, world_size: This process.
        exchange: All-gathers small bytes over the ranks, for the start: `Rendezvous.all_gather`.
        timeout_s: How long a rank is waited for, from `wait()` on; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Raises:
        DistributedError: the processor is no x86-64, or the shared memory could not be made.
    """

    adds_weighted = True

    def __init__(
        self,
        rank: int,
        world_size: int,
        exchange: Callable[[bytes], list[bytes]],
        *,
        timeout_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(rank, world_size, timeout_s=timeout_s, clock=clock)
        if platform.machine().lower() not in ("x86_64", "amd64"):
            raise DistributedError(f"ShmCommunicator: expected an x86-64 processor, got {platform.machine()}: use mpi")
        self.board = Board(rank, world_size, exchange)
        self._regions = Regions(rank, self.board)
        self._nowhere = Region("", 0, [np.empty(0)], 0)
        self.thread = threading.get_ident()
        self._places = Places(self.board)
        self._queue: deque[_Call] = deque()  # not executed by this rank yet
        self._posted: deque[_Call] = deque()  # not known to be over
        self.mail = Mailbox(self.board, self._regions, self.timeout_s, self)
        self._watcher = look_after(self)

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros in shared memory; all ranks call it together. It lasts as long as the communicator."""
        kind = check_empty(self.rank, count, dtype)
        exchange = functools.partial(self._gather_bytes, ("all_gather_object", ""))
        segment = Segment(self.rank, self.world_size, count * kind.itemsize, exchange)
        self._regions.add(segment)
        return segment.view(self.rank, 0, count, kind)

    # ------------------------------------------------------------------------------------------------ moving bytes

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> Work:
        """Post the reduction of arrays, or carry it out where they need the staging area."""
        factor = 1.0 if weight is None else float(weight[0])
        near = self._near(what, array, functools.partial(Region.reduce, op=op), factor)
        if near is not None:
            return near
        flat, spans = array.reshape(-1), []
        for start, part in chunks(flat):
            region = self._regions.in_staging(start, part, flat.size)
            region.give(part)
            execute = functools.partial(Region.reduce, op=op, mine=part)
            spans.append(self._carry_out(what, region, execute, factor))
            region.take(part)
        return over(spans)

    def _broadcast(self, what: What, array: Array, root: int) -> Work:
        def copy(region: Region, weights: list[float]) -> None:
            if self.rank != root:
                region.views[self.rank][...] = region.views[root]

        near = self._near(what, array, copy)
        if near is not None:
            return near
        flat, spans = array.reshape(-1), []
        for start, part in chunks(flat):
            region = self._regions.in_staging(start, part, flat.size)
            region.views[self.rank][...] = part
            spans.append(self._carry_out(what, region, copy))
            part[...] = region.views[self.rank]
        return over(spans)

    def _reduce_scatter(self, what: What, output: Array, source: Array, op: ReduceOp) -> Work:
        """All of the reduction, in the source, of which this rank keeps its part."""
        part = source.reshape(self.world_size, -1)[self.rank].reshape(output.shape)

        def keep() -> None:
            output[...] = part

        return DeliveringWork(self._reduce(what, source, op), keep)

    def _all_gather(self, what: What, output: Array, source: Array) -> Work:
        """Carry it out, through the staging area."""
        return self._take_in(what, output, source)

    def _meet(self, what: What) -> Work:
        return self._post(_WITHOUT_DATA[what[0]], self._nowhere, _nothing)

    def _give_up(self, reason: str) -> None:
        self._make_room()
        self.board.note(self.seq, reason)
        self._meet((GIVE_UP, reason))

    def _near(
        self, what: What, array: Array, execute: Execute, weight: float = 1.0, delivers: bool = True
    ) -> Work | None:
        """Post an operation on arrays that lie in a segment or fit into the slot; None for others.

        Args:
            delivers: Whether this rank gets its array back from the slot.
        """
        region = self._regions.in_segment(array)
        if region is not None:
            return self._post(region.header(what), region, execute, weight)
        if array.nbytes > INLINE_BYTES:
            return None
        self._make_room()
        region = self._regions.in_slot(self.seq, array)
        mine = region.views[self.rank]
        mine[...] = array.reshape(-1)

        def deliver() -> None:
            array.reshape(-1)[...] = mine

        return self._post(region.header(what), region, execute, weight, deliver if delivers else None)

    def _carry_out(self, what: What, region: Region, execute: Execute, weight: float = 1.0) -> Span | None:
        """Post an operation and wait for it."""
        call = self._post(region.header(what), region, execute, weight)
        call.wait()
        return call.span

    # --------------------------------------------------------------------------------------------------- progress

    def _make_room(self) -> None:
        """Finish, and deliver, the calls whose slot the next one will take."""
        if self.failure.error is not None or self.board.told_failure() is not None:
            self._hear()
        posted = self._posted
        while posted and (posted[0].over or posted[0].seq <= self.seq - SLOTS + 1):
            posted.popleft().wait()

    def _post(
        self,
        header: bytes,
        region: Region,
        execute: Execute,
        weight: float = 1.0,
        deliver: Callable[[], None] | None = None,
    ) -> _Call:
        self._make_room()
        call = _Call(self, header, region, execute, deliver)
        self._posted.append(call)
        self._queue.append(call)
        self.seq += 1
        self.thread = threading.get_ident()
        frame = sys._getframe(2)
        while (caller := frame.f_back) and frame.f_code.co_filename.startswith(self._places.inside):
            frame = caller
        code, at = frame.f_code, frame.f_lasti
        place = self._places.known.get((id(code), at))
        self.board.post(call.seq, header, weight, place[0] if place else self._places.note(code, at))
        self.advance()
        return call

    def advance(self) -> None:
        """Execute this rank's share of the calls that all ranks have posted; never waits."""
        while self._queue and self.board.all_posted(self._queue[0].seq):
            try:
                call = self._queue.popleft()
                if not self.board.all_agree(call.seq, call.header):
                    self._end(disagreement(self.board, call.seq))
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
        self._hear()
        started, looked, spins = 0.0, 0.0, 0
        while True:
            self.advance()
            if self.board.all_executed(seq):
                return
            spins += 1
            if spins < _SPINS:
                continue
            if self.mail.asked:  # whose sender may wait for this rank, which waits here
                self.mail.advance()
            self.help_relatives()
            now = time.monotonic()
            if not started:
                started = looked = now
            if now - looked > _LIVENESS_S:
                looked = now
                self._look_for_failure(seq)
            if now - started > self.timeout_s:
                self._end(lateness(self.board, seq, self.timeout_s))
            if now - started < _YIELD_S:
                os.sched_yield()
            else:
                time.sleep(min(_SLEEP_RATIO * (now - started), _LONGEST_SLEEP_S))

    # ---------------------------------------------------------------------------------------------------- failure

    def _look_for_failure(self, seq: int) -> None:
        gone = self.board.gone()  # first: a rank leaves after its last call, and after it told why it failed
        self._hear()
        error = gave_up(self.board, self._queue[0].seq) if self._queue else None
        error = error or absence(self.board, seq, gone)
        if error is not None:
            self._end(error)

    def _hear(self) -> None:
        """Raise what made this world fail, here or, as others tell, elsewhere."""
        self.listen()
        self.failure.raise_on(self.rank)

    def _end(self, error: DistributedError) -> NoReturn:
        self._fail(error)
        self.failure.raise_on(self.rank)
        raise error

    def _tell(self, error: DistributedError) -> None:
        self.board.tell_failure(error)

    def _leave(self) -> None:
        """Memory lasts as long as arrays on it do."""
        super()._leave()
        self.board.leave()
        self._watcher.stop()
        self._queue.clear()
        self._posted.clear()
        self._regions.forget()
        self.mail.close()


def _nothing(region: Region, weights: list[float]) -> None:
    """A rank's share of a call without data."""
