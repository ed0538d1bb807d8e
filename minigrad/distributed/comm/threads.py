"""Ranks that are threads of this process: for teaching, tests and simulation.

Each rank posts its part of a collective and goes on; the last to post does the work for all; waiting blocks until
that is done. Each call is numbered, and ranks that make different calls with one number all get an error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.backend.dtypes import Array, is_half
from minigrad.backend.fused.grad_scale import scale_
from minigrad.backend.stream import streams_of
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.checks import check_world, default_timeout_s
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.front import Front, What
from minigrad.distributed.comm.headers import GIVE_UP, Header, departed, doing, mismatch, timed_out
from minigrad.distributed.comm.mailboxes import Mailboxes, ThreadMessages
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.comm.rooted_threads import RootedThreads
from minigrad.distributed.comm.thread_groups import ThreadGroups, leave_groups
from minigrad.distributed.comm.thread_sightings import lines_of, look_at
from minigrad.errors import CollectiveTimeoutError, DistributedError, RankFailedError

Combine = Callable[[list[Any]], Any]


class _Call:
    """One collective, as far as the ranks have come."""

    def __init__(self, rank: int, header: Header, world_size: int) -> None:
        self.first_rank, self.header = rank, header
        self.payloads: list[Any] = [None] * world_size
        self.present: set[int] = set()
        self.result: Any = None
        self.done = False
        self.span = (0.0, 0.0)  # see `Work.span`


class ThreadWorld:
    """What the communicators of one world of threads share.

    Args:
        world_size: Number of ranks, >= 1.
        timeout_s: How long a rank is waited for, from `wait()` on; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Attributes:
        failure: What made this world fail: `set` keeps the first error and wakes all who wait, and `raise_on(rank)`
            raises it anew, of the same class.
        last: The last calls of each rank, the latest first.

    Example:
        >>> world = ThreadWorld(2)
        >>> [comm.rank for comm in world.communicators()]
        [0, 1]
    """

    def __init__(self, world_size: int, *, timeout_s: float | None = None) -> None:
        check_world("ThreadWorld", 0, world_size)
        self.world_size = int(world_size)
        self.timeout_s = default_timeout_s(timeout_s)
        self.failure = Failure()
        self._calls: dict[int, _Call] = {}
        self.last = [deque[Any]() for _ in range(self.world_size)]
        self._left: dict[int, str] = {}
        self.groups: list[tuple[tuple[int, ...], ThreadWorld]] = []  # of which ranks
        self.parent: Any = None  # where it is that of a group: of which ranks, and of which world, weakly
        self._threads: dict[int, int] = {}  # of the ranks
        look_at(self)
        self.mail = Mailboxes(self.failure, self.timeout_s, self._left, self._doing, self._threads)

    def communicators(self, devices: list[Device] | None = None) -> list[ThreadCommunicator]:
        """One communicator a rank; devices are CPUs by default."""
        return [
            ThreadCommunicator(self, rank, devices[rank] if devices else CPU) for rank in range(self.world_size)
        ]

    def enter(self, rank: int) -> None:
        """A rank runs in the thread that calls this; else that of its first call counts."""
        self._threads[rank] = threading.get_ident()

    def exit(self, rank: int) -> None:
        """The thread of a rank comes to its end."""
        self.leave(rank, "has returned")

    def post(self, rank: int, header: Header, payload: Any, combine: Combine, now_s: Callable[[], float]) -> _Call:
        """Add a rank's part to a collective; the last rank combines all parts, for everybody.

        Args:
            now_s: This rank's clock.
        """
        failure = self.failure
        with failure.changed:
            if failure.error is not None:
                failure.raise_on(rank)
            if rank in self._left:
                raise RankFailedError(f"rank {rank}: {header}: expected a rank that takes part, it {self._left[rank]}")
            call = self._calls.setdefault(header.seq, _Call(rank, header, self.world_size))
            if header != call.header and not header.kind == call.header.kind == GIVE_UP:
                failure.set(mismatch((call.first_rank, str(call.header)), (rank, str(header))))
                failure.raise_on(rank)
            call.payloads[rank] = payload
            call.present.add(rank)
            self._threads.setdefault(rank, threading.get_ident())
            complete = len(call.present) == self.world_size
            if not complete and self._left:
                self._fail_for_departed(call)
                failure.raise_on(rank)
        if complete:
            self._finish(call, combine, now_s)
        return call

    def _finish(self, call: _Call, combine: Combine, now_s: Callable[[], float]) -> None:
        started_s = now_s()
        try:
            call.result = combine(call.payloads)
        except BaseException as error:
            self.failure.set(DistributedError(f"{call.header}: expected a reduction that works, got {error!r}"))
            raise
        with self.failure.changed:
            call.span = started_s, now_s()
            call.done = True
            call.payloads = []
            del self._calls[call.header.seq]
            self.failure.changed.notify_all()

    def wait(self, rank: int, call: _Call) -> Any:
        """Block until a collective is done, and return its result.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        failure = self.failure
        if call.done:
            return call.result
        with failure.changed:
            came = failure.changed.wait_for(lambda: call.done or failure.error is not None, self.timeout_s)
            if call.done:
                return call.result
            if not came:
                failure.set(self._timeout(call))
            failure.raise_on(rank)

    def is_done(self, call: _Call) -> bool:
        """Whether all ranks have come to a collective and its result is there."""
        return call.done

    def _timeout(self, call: _Call) -> CollectiveTimeoutError:
        absent = {r: self._doing(r) for r in range(self.world_size) if r not in call.present}
        return timed_out(call.header, self.world_size, self.timeout_s, absent, lines_of(self))

    def _doing(self, rank: int) -> str:
        return doing(call for call, _, _ in list(self.last[rank]))

    def leave(self, rank: int, why: str) -> None:
        """A rank makes no more calls: those that wait for it, or will, raise at once."""
        with self.failure.changed:
            self._left.setdefault(rank, why)
            self.failure.changed.notify_all()
            leave_groups(self.groups, rank, why)
            for call in list(self._calls.values()):
                if rank not in call.present:
                    self._fail_for_departed(call)

    def _fail_for_departed(self, call: _Call) -> None:
        absent = [r for r in range(self.world_size) if r not in call.present]
        if any(r in self._left for r in absent):
            known = {r: f"{self._left.get(r, 'did not come yet')} and {self._doing(r)}" for r in absent}
            self.failure.set(departed(call.header, self.world_size, known))


class _ThreadWork:
    """A posted collective."""

    __slots__ = ("_world", "_rank", "_call")

    def __init__(self, world: ThreadWorld, rank: int, call: _Call) -> None:
        self._world, self._rank, self._call = world, rank, call

    @property
    def span(self) -> tuple[float, float] | None:
        """See `Work.span`."""
        return self._call.span if self._call.done else None

    def done(self) -> bool:
        """Whether all ranks have come and the result is there."""
        return self._world.is_done(self._call)

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        self._world.wait(self._rank, self._call)


class ThreadCommunicator(ThreadMessages, RootedThreads, ThreadGroups, Front):
    """The collectives of one rank of a ThreadWorld; see `Communicator`."""

    adds_weighted = True  # 16-bit floats in float32, by who adds; others are weighted by each rank before it posts

    def __init__(self, world: ThreadWorld, rank: int, device: Device = CPU, *, clock: Clock | None = None) -> None:
        super().__init__(
            rank, world.world_size, device=device, timeout_s=world.timeout_s, clock=clock, failure=world.failure
        )
        self.world, self.mail = world, world.mail
        world.last[rank] = self.calls

    def _reduce(self, what: What, array: Array, op: ReduceOp, weight: Array | None = None) -> _ThreadWork:
        if weight is not None and not is_half(array.dtype):
            with self.device.current():
                scale_(array, weight)
            weight = None

        def combine(parts: list[Any]) -> None:
            arrays, weights = zip(*parts)
            if any(weight is not None for weight in weights):
                collectives.weighted_all_reduce(arrays, weights)
            else:
                collectives.all_reduce(arrays, op)

        return self._start(what, array, (array, weight), combine)

    def _broadcast(self, what: What, array: Array, root: int) -> _ThreadWork:
        return self._start(what, array, array, lambda arrays: collectives.broadcast(arrays, root))

    def _reduce_scatter(self, what: What, output: Array, source: Array, op: ReduceOp) -> _ThreadWork:
        def combine(pairs: list[Any]) -> None:
            outputs, sources = zip(*pairs)
            collectives.reduce_scatter(outputs, sources, op)

        return self._start(what, source, (output, source), combine)

    def _all_gather(self, what: What, output: Array, source: Array) -> _ThreadWork:
        return self._start(what, source, (output, source), lambda pairs: collectives.all_gather(*zip(*pairs)))

    def _gather_bytes(self, what: What, data: bytes) -> list[bytes]:
        parts: list[bytes] = self.world.wait(self.rank, self._post(what, None, data, list))
        return parts

    def _meet(self, what: What) -> _ThreadWork:
        return _ThreadWork(self.world, self.rank, self._post(what, None, None, _nothing))

    def _leave(self) -> None:
        self.world.leave(self.rank, "closed its communicator")

    def _start(self, what: What, array: Array, payload: Any, combine: Combine) -> _ThreadWork:
        """Post a call on arrays; on a GPU the streams of other ranks' threads are others, and so are waited for."""
        self._settle()

        def settled(parts: list[Any]) -> Any:
            result = combine(parts)
            self._settle()
            return result

        return _ThreadWork(self.world, self.rank, self._post(what, array, payload, settled))

    def _settle(self) -> None:
        with self.device.current():
            streams_of(self.device).get_current_stream().synchronize()

    def _post(self, what: What, array: Array | None, payload: Any, combine: Combine) -> _Call:
        return self.world.post(self.rank, self._next(what, array), payload, combine, self.clock.now_s)


def _nothing(parts: list[Any]) -> None:
    """What a call without data comes to."""
