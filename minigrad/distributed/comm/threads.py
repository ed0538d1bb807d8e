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
from minigrad.backend.dtypes import Array, DtypeLike, is_half
from minigrad.backend.fused.grad_scale import scale_
from minigrad.backend.memory import aligned_zeros
from minigrad.backend.stream import streams_of
from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.base import (
    LAST_CALLS,
    Clock,
    Header,
    HostClock,
    check_array,
    check_empty,
    check_parts,
    check_reduction,
    check_root,
    check_world,
    decode_object,
    default_timeout_s,
    doing,
    encode_object,
    incomplete,
    stays_here,
)
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.given_up import GIVE_UP, disagreement
from minigrad.distributed.comm.where import user_line, whereabouts
from minigrad.errors import (
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
)

Combine = Callable[[list[Any]], Any]


class _Call:
    """One collective, as far as the ranks have come."""

    def __init__(self, rank: int, header: Header, world_size: int) -> None:
        self.first_rank, self.header = rank, header
        self.payloads: list[Any] = [None] * world_size
        self.present: set[int] = set()
        self.result: Any = None
        self.done = False
        self.span = (0.0, 0.0)  # see `span_of`


class ThreadWorld:
    """What the communicators of one world of threads share.

    Args:
        world_size: Number of ranks, >= 1.
        timeout_s: How long a collective waits for a rank; $MINIGRAD_TIMEOUT_S or 300 s by default.

    Attributes:
        inherited: Whether this process is a child of the one that made it, by a fork.

    Example:
        >>> world = ThreadWorld(2)
        >>> [comm.rank for comm in world.communicators()]
        [0, 1]
    """

    def __init__(self, world_size: int, *, timeout_s: float | None = None) -> None:
        check_world("ThreadWorld", 0, world_size)
        self.world_size = int(world_size)
        self.timeout_s = default_timeout_s(timeout_s)
        self._changed = threading.Condition()
        self._calls: dict[int, _Call] = {}
        self._failure: DistributedError | None = None
        self._last = [deque[Header](maxlen=LAST_CALLS) for _ in range(self.world_size)]  # the latest first
        self._left: dict[int, str] = {}
        self._threads: dict[int, int] = {}  # of the ranks
        self.inherited = False
        tell_children(self)

    def communicators(self, devices: list[Device] | None = None) -> list[ThreadCommunicator]:
        """One communicator a rank; devices are CPUs by default."""
        return [
            ThreadCommunicator(self, rank, devices[rank] if devices else CPU) for rank in range(self.world_size)
        ]

    def forked(self) -> None:
        """See `Inherited`: the threads of the other ranks are not in this process."""
        self._changed = threading.Condition()  # one of them may have held the old one
        self._failure = in_a_child()
        self.inherited = True

    def enter(self, rank: int) -> None:
        """A rank runs in the thread that calls this; else that of its first call counts."""
        self._threads[rank] = threading.get_ident()

    def check_process(self, rank: int) -> None:
        """Refuse a child of a fork, also where no call is made.

        Raises:
            DistributedError: this process is one.
        """
        if self.inherited:
            self._raise_failure(rank)

    # ------------------------------------------------------------------------------------------------- calls

    def post(self, rank: int, header: Header, payload: Any, combine: Combine, now_s: Callable[[], float]) -> _Call:
        """Add a rank's part to a collective; the last rank combines all parts, for everybody.

        Args:
            now_s: This rank's clock.
        """
        with self._changed:
            self._raise_failure(rank)
            if rank in self._left:
                raise RankFailedError(f"rank {rank}: {header}: expected a rank that takes part, it {self._left[rank]}")
            call = self._calls.setdefault(header.seq, _Call(rank, header, self.world_size))
            if header != call.header and not header.kind == call.header.kind == GIVE_UP:
                self._fail(disagreement((call.first_rank, str(call.header)), (rank, str(header))))
                self._raise_failure(rank)
            call.payloads[rank] = payload
            call.present.add(rank)
            self._last[rank].appendleft(header)
            self._threads.setdefault(rank, threading.get_ident())
            complete = len(call.present) == self.world_size
            if not complete and self._left:
                self._fail_for_departed(call)
                self._raise_failure(rank)
        if complete:
            self._finish(call, combine, now_s)
        return call

    def _finish(self, call: _Call, combine: Combine, now_s: Callable[[], float]) -> None:
        started_s = now_s()
        try:
            call.result = combine(call.payloads)
        except BaseException as error:
            self.fail(DistributedError(f"{call.header}: expected a reduction that works, got {error!r}"))
            raise
        with self._changed:
            call.span = started_s, now_s()
            call.done = True
            call.payloads = []
            del self._calls[call.header.seq]
            self._changed.notify_all()

    def wait(self, rank: int, call: _Call) -> Any:
        """Block until a collective is done, and return its result.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        with self._changed:
            came = self._changed.wait_for(lambda: call.done or self._failure is not None, self.timeout_s)
            if call.done:
                return call.result
            if not came:
                self._fail(self._timeout(call))
            self._raise_failure(rank)

    def _timeout(self, call: _Call) -> CollectiveTimeoutError:
        absent = {r: doing(last) for r, last in enumerate(self._last) if r not in call.present}
        limit = f" within {self.timeout_s:g} s"
        lines = {r: user_line(self._threads.get(r, 0)) for r in range(self.world_size)}
        told = incomplete(call.header, self.world_size, absent, limit) + whereabouts(lines, absent)
        return CollectiveTimeoutError(told)

    # ----------------------------------------------------------------------------------------------- failure

    def fail(self, error: DistributedError) -> None:
        """Make every pending and later call of every rank raise this error; the first failure wins."""
        with self._changed:
            self._fail(error)

    def leave(self, rank: int, why: str) -> None:
        """A rank makes no more calls: those that wait for it, or will, raise at once."""
        with self._changed:
            self._left.setdefault(rank, why)
            for call in list(self._calls.values()):
                if rank not in call.present:
                    self._fail_for_departed(call)

    def _fail_for_departed(self, call: _Call) -> None:
        absent = [r for r in range(self.world_size) if r not in call.present]
        if any(r in self._left for r in absent):
            known = {r: f"{self._left.get(r, 'did not come yet')} and {doing(self._last[r])}" for r in absent}
            self._fail(RankFailedError(incomplete(call.header, self.world_size, known)))

    def _fail(self, error: DistributedError) -> None:
        self._failure = self._failure or error
        self._changed.notify_all()

    def _raise_failure(self, rank: int) -> None:
        if self._failure is not None:
            raise type(self._failure)(f"rank {rank}: {self._failure}") from self._failure.__cause__


class _ThreadWork:
    """A posted collective."""

    __slots__ = ("_world", "_rank", "_call")

    def __init__(self, world: ThreadWorld, rank: int, call: _Call) -> None:
        self._world, self._rank, self._call = world, rank, call

    @property
    def span(self) -> tuple[float, float] | None:
        """See `span_of`."""
        return self._call.span if self._call.done else None

    def done(self) -> bool:
        """Whether all ranks have come and the result is there."""
        return self._call.done

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        self._world.wait(self._rank, self._call)


class ThreadCommunicator:
    """The collectives of one rank of a ThreadWorld; see `Communicator`."""

    __reduce_ex__ = stays_here

    def __init__(self, world: ThreadWorld, rank: int, device: Device = CPU, *, clock: Clock | None = None) -> None:
        check_world("ThreadCommunicator", rank, world.world_size)
        self.rank, self.world_size, self.device = rank, world.world_size, device
        self.clock: Clock = clock if clock is not None else HostClock()
        self.timeout_s = world.timeout_s
        self.world = world
        self._seq = 0

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros on the device."""
        with self.device.current() as xp:
            return aligned_zeros(count, check_empty(self.rank, count, dtype), xp)

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> _ThreadWork:
        """Overwrite array by its reduction over the ranks."""
        check_array("all_reduce", self.rank, array)
        check_reduction("all_reduce", self.rank, array, op)
        return self._all_reduce(array, None, op, layout)

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> _ThreadWork:
        """Overwrite array by the sum over the ranks of array · weight; 16-bit floats are weighted when summed.

        Other ranks may call `all_reduce` instead, where their elements are weighted already.
        """
        check_array("weighted_all_reduce", self.rank, array)
        if weight is not None and not is_half(array.dtype):
            with self.device.current():
                scale_(array, weight)  # by the thread of each rank
            weight = None
        return self._all_reduce(array, weight, ReduceOp.SUM, layout)

    def _all_reduce(self, array: Array, weight: Array | None, op: ReduceOp, layout: str) -> _ThreadWork:
        def combine(parts: list[Any]) -> None:
            arrays, weights = zip(*parts)
            if any(weight is not None for weight in weights):
                collectives.weighted_all_reduce(arrays, weights)
            else:
                collectives.all_reduce(arrays, op)

        return self._array_call("all_reduce", f"{op.name} {layout}".strip(), array, (array, weight), combine)

    def broadcast(self, array: Array, root: int = 0) -> _ThreadWork:
        """Overwrite array by the root's."""
        check_array("broadcast", self.rank, array)
        check_root("broadcast", self.rank, root, self.world_size)
        return self._array_call(
            "broadcast", f"root {root}", array, array, lambda all_: collectives.broadcast(all_, root)
        )

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> _ThreadWork:
        """Overwrite output by this rank's part of the reduction of source."""
        for array in (output, source):
            check_array("reduce_scatter", self.rank, array)
        check_reduction("reduce_scatter", self.rank, source, op)
        check_parts("reduce_scatter", self.rank, source, output, self.world_size)
        return self._array_call(
            "reduce_scatter",
            op.name,
            source,
            (output, source),
            lambda pairs: collectives.reduce_scatter([p[0] for p in pairs], [p[1] for p in pairs], op),
        )

    def all_gather(self, output: Array, source: Array) -> _ThreadWork:
        """Overwrite output by the sources of all ranks."""
        for array in (output, source):
            check_array("all_gather", self.rank, array)
        check_parts("all_gather", self.rank, output, source, self.world_size)
        return self._array_call(
            "all_gather",
            "",
            source,
            (output, source),
            lambda pairs: collectives.all_gather([p[0] for p in pairs], [p[1] for p in pairs]),
        )

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        data = encode_object("all_gather_object", self.rank, value)
        call = self._post(Header(self._seq, "all_gather_object"), data, list)
        return [decode_object(part) for part in self.world.wait(self.rank, call)]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.world.wait(self.rank, self._post(Header(self._seq, "barrier"), None, lambda parts: None))

    def give_up(self, reason: str) -> None:
        """Fail all ranks, unless all of them make this call; see comm.given_up."""
        self._post(Header(self._seq, GIVE_UP, reason), None, lambda parts: None)

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason."""
        self.world.check_process(self.rank)
        self.world.fail(RankFailedError(f"rank {self.rank} aborted: {reason}"))

    def close(self) -> None:
        """Leave the world: ranks that still wait for this one raise."""
        self.world.check_process(self.rank)
        self.world.leave(self.rank, "closed its communicator")

    def _array_call(self, kind: str, detail: str, array: Array, payload: Any, combine: Combine) -> _ThreadWork:
        header = Header(self._seq, kind, detail, array.dtype.name, int(array.size))
        self._settle()

        def settled(parts: list[Any]) -> Any:
            result = combine(parts)
            self._settle()
            return result

        return _ThreadWork(self.world, self.rank, self._post(header, payload, settled))

    def _settle(self) -> None:
        """On a GPU wait for the caller's stream: the threads of other ranks have streams of their own."""
        with self.device.current():
            streams_of(self.device).get_current_stream().synchronize()

    def _post(self, header: Header, payload: Any, combine: Combine) -> _Call:
        self._seq += 1
        return self.world.post(self.rank, header, payload, combine, self.clock.now_s)
