"""The collectives that a rank's GPU has not passed yet: how they are launched, waited for and looked after.

A stream has no time limit, and NCCL waits there for ever where another rank does not come. So the control thread
looks a few times within the timeout at the oldest collective under way, and what it fails of ends NCCL's waiting.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakMethod

from minigrad.backend.capturing import Capture, current_capture, refuse_in_capture
from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.backend.nccl import problem_of
from minigrad.backend.stream import has_happened, streams_of
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.headers import Header
from minigrad.distributed.comm.nccl.handle import Handle
from minigrad.distributed.comm.nccl.world import World
from minigrad.errors import DistributedError, RankFailedError

OPERATIONS = {ReduceOp.SUM: 0, ReduceOp.PROD: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.AVG: 4}  # NCCL's codes
_SPINS, _NAP_S, _LONGEST_NAP_S = 200, 2e-5, 1e-3
_ASKED_EVERY = 100  # naps between two questions whether NCCL has failed
_PATIENCE_S = 2.0  # NCCL may hear of another rank's end before that rank's own words arrive


Message = tuple[str, tuple[int, ...]]  # "send" or "recv", and its arguments but for the stream


class _Entry:
    """A collective under way; it has an event once it has been handed to the stream."""

    __slots__ = ("header", "began_s", "event")

    def __init__(self, header: Header) -> None:
        self.header, self.began_s = header, time.monotonic()
        self.event: Any = None


class NcclWork:
    """A collective on a stream. It keeps its arrays until somebody has waited."""

    __slots__ = ("_launches", "_entry", "_arrays")
    span = None  # a GPU has a clock of its own

    def __init__(self, launches: Launches, entry: _Entry, arrays: tuple[Array, ...]) -> None:
        self._launches, self._entry, self._arrays = launches, entry, arrays

    def done(self) -> bool:
        """Whether the result is there."""
        return self._launches.is_done(self._entry)

    def wait(self, host: bool = False) -> None:
        """Order the caller's stream after it; with host=True block."""
        self._launches.complete(self._entry, host)
        self._arrays = ()


class Launches:
    """One rank's collectives under way.

    Args:
        world: What fails, and fails others.
        device: This rank's GPU.
        nccl: The module cupy.cuda.nccl, or a stand-in.
        streams: That for cupy.cuda, or None.
        handle: Holds NCCL's object.

    Attributes:
        last: The last collective that was called, here or by a captured step that is launched again.
    """

    last: Header

    def __init__(self, world: World, device: Device, nccl: Any, streams: Any, handle: Handle) -> None:
        self._world, self._failure, self._handle = world, world.failure, handle
        self._device, self._nccl = device, nccl
        self._streams = streams if streams is not None else streams_of(device)
        self._entries = deque[_Entry]()
        self._launching: _Entry | None = None  # NCCL may wait for other ranks there, too
        self._trouble_s = 0.0  # when NCCL first told of an error
        self._graphs: list[WeakMethod[Callable[[], None]]] = []  # end the captured steps that have such collectives

    # ----------------------------------------------------------------------------------------------- for the caller

    def launch(
        self,
        header: Header,
        arrays: tuple[Array, ...],
        method: str,
        arguments: tuple[int, ...],
        group: Sequence[Message] = (),
    ) -> NcclWork:
        """Hand a collective to the caller's stream.

        Args:
            arrays: Those that it reads or writes, the one that the header tells of first.
            method: Of NCCL's object.
            arguments: Its arguments, but for the stream.
            group: In place of these, what is sent and received at one time.
        """
        world = self._world
        entry, problem = _Entry(header), ""
        self._launching = entry
        try:
            with self._device.current():
                stream, comm = self._streams.get_current_stream(), self._handle.comm
                if arrays[0].size and comm is not None:
                    if group:
                        problem = problem_of(self._nccl, lambda: self._exchange(comm, group, stream.ptr))
                    else:
                        problem = problem_of(self._nccl, lambda: getattr(comm, method)(*arguments, stream.ptr))
                entry.event = self._streams.Event(disable_timing=True)
                entry.event.record(stream)
            if current_capture() is None:
                self._entries.append(entry)
        except BaseException as error:  # an interrupt, say: nobody knows whether the collective is under way
            world.fail(RankFailedError(f"rank {world.rank}: {header}: its launch raised {error!r}"))
            raise
        finally:
            self._launching = None
        if problem:
            self._launching = entry  # its event may have happened, and the watchdog still finds who is gone
            world.await_failure(_PATIENCE_S)
            world.fail(DistributedError(f"{header}: expected NCCL to take it, got {problem}"))
        if self._failure.error is not None:
            self._failure.raise_on(world.rank)
        return NcclWork(self, entry, arrays)

    def _exchange(self, comm: Any, group: Sequence[Message], stream: int) -> None:
        """Send and receive at one time: outside of a group the first would wait for the other rank for ever."""
        self._nccl.groupStart()
        try:
            for method, arguments in group:
                getattr(comm, method)(*arguments, stream)
        finally:
            self._nccl.groupEnd()

    def each_replay(self, announce: Callable[[], None]) -> None:
        """Where a step is captured, announce the collective that comes next whenever that is launched again.

        From each launch on its collectives are looked after as one entry; and its graph ends before NCCL does.
        """
        capture = current_capture()
        if capture is not None:
            capture.counts.append(announce)
            capture.part(("nccl", id(self)), lambda: self._follow(capture))

    def _follow(self, capture: Capture) -> None:
        capture.users.append(lambda end: self._graphs.append(WeakMethod(end, self._graphs.remove)))
        capture.launched.append(self._under_way)

    def refuse_in_capture(self, who: str) -> None:
        """Refuse a call in which ranks meet on the host."""
        refuse_in_capture(who, "a call in which ranks meet on the host", "make it outside of the captured step")

    def _under_way(self) -> None:
        entry = _Entry(self.last)
        with self._device.current():
            entry.event = self._streams.Event(disable_timing=True)
            entry.event.record(self._streams.get_current_stream())
        self._entries.append(entry)

    def drop_graphs(self) -> None:
        """Give the graphs back that hold collectives: NCCL waits for that at its end."""
        while self._graphs:
            end = self._graphs.pop()()
            if end is not None:
                end()

    def is_done(self, entry: _Entry) -> bool:
        """Whether the device has passed a collective."""
        self._failure.raise_on(self._world.rank)
        with self._device.current():
            return has_happened(entry.event, self._streams)

    def complete(self, entry: _Entry, host: bool) -> None:
        """Order the caller's stream after a collective; with host=True return when its result is there.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        if self._failure.error is not None:
            self._failure.raise_on(self._world.rank)
        with self._device.current():
            self._streams.get_current_stream().wait_event(entry.event)
        misses = 0
        while host and not self.is_done(entry):
            misses += 1
            if misses > _SPINS:
                time.sleep(min(_LONGEST_NAP_S, _NAP_S * (misses - _SPINS)))
            if misses % _ASKED_EVERY == 0:
                self._ask_nccl(entry)
        if self._failure.error is not None:  # an aborted collective also counts as passed
            self._failure.raise_on(self._world.rank)

    def finish(self) -> bool:
        """Wait for what is under way; False where it does not end well."""
        try:
            for entry in list(self._entries):
                self.complete(entry, host=True)
        except DistributedError:
            return False
        return True

    # ---------------------------------------------------------------------------------------------------- the watchdog

    def watch(self) -> None:
        """Look after the oldest collective under way: the control thread does a few times within a timeout."""
        with self._device.current():
            while self._entries and has_happened(self._entries[0].event, self._streams):
                self._entries.popleft()
        entry = self._entries[0] if self._entries else self._launching
        if entry is None:
            return
        self._ask_nccl(entry)
        world = self._world
        absent = [r for r, peer in enumerate(world.peers) if r != world.rank and peer.posted <= entry.header.seq]
        gone = any(world.peers[r].left_after is not None for r in absent)
        if gone or time.monotonic() - entry.began_s > world.timeout_s:
            world.fail(world.absence(str(entry.header), absent))

    def _ask_nccl(self, entry: _Entry) -> None:
        problem = self._handle.problem()
        if not problem:
            return
        now_s = time.monotonic()
        self._trouble_s = self._trouble_s or now_s
        if now_s - self._trouble_s > _PATIENCE_S:
            self._world.fail(DistributedError(f"{entry.header}: expected NCCL to go on, got {problem}"))
