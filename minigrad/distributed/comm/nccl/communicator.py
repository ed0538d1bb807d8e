"""Ranks on GPUs, by NCCL: one process a GPU on one or many hosts, or all GPUs of one process driven by one thread.

NCCL waits for ever where ranks disagree, so what it does not check is checked beside it: devices before it starts;
in debug mode each call, else a running hash of all calls, which ranks tell each other a few times a second and where
all of them come anyway; and a watchdog ends NCCL's own waiting when a collective takes too long, or when another rank
has failed or left.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from minigrad.backend.device import Device, device_identity, device_of
from minigrad.backend.dtypes import Array, DtypeLike
from minigrad.backend.memory import address_of, aligned_zeros
from minigrad.backend.nccl import BYTE, dtype_code, load_nccl, problem_of
from minigrad.backend.stream import has_happened, streams_of
from minigrad.backend.thread import new_thread
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.calls import WAYPOINT_BYTES, Waypoint
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
from minigrad.distributed.comm.forks import never_end, tell_children
from minigrad.distributed.comm.front import Front, HostClock, What
from minigrad.distributed.comm.headers import GIVE_UP, Header, mismatch
from minigrad.distributed.comm.nccl.control import Control
from minigrad.distributed.comm.nccl.star import Star
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.errors import (
    CollectiveTimeoutError,
    DeviceError,
    DistributedError,
    RankFailedError,
    ReplicaMismatchError,
)

OPERATIONS = {ReduceOp.SUM: 0, ReduceOp.PROD: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.AVG: 4}
_SPINS, _NAP_S, _LONGEST_NAP_S = 200, 2e-5, 1e-3
_ASKED_EVERY = 100  # naps between two questions whether NCCL has failed
_PARTING_S = 0.5  # how long a rank that leaves waits for others to say that they have called the same
_PATIENCE_S = 2.0  # NCCL may hear of another rank's end before that rank's own words arrive


class _Entry:
    """A collective under way; it has an event once it has been handed to the stream."""

    __slots__ = ("header", "began_s", "event")

    def __init__(self, header: Header) -> None:
        self.header, self.began_s = header, time.monotonic()
        self.event: Any = None


class _NcclWork:
    """A collective on a stream. It keeps its arrays until somebody has waited."""

    __slots__ = ("_comm", "_entry", "_arrays")
    span = None  # a GPU's clock is another

    def __init__(self, comm: NcclCommunicator, entry: _Entry, arrays: tuple[Array, ...]) -> None:
        self._comm, self._entry, self._arrays = comm, entry, arrays

    def done(self) -> bool:
        """Whether the result is there."""
        return self._comm.is_done(self._entry)

    def wait(self, host: bool = False) -> None:
        """Order the caller's stream after it; with host=True block."""
        self._comm.complete(self._entry, host)
        self._arrays = ()


class NcclCommunicator(Front):
    """The collectives of one GPU among those of several processes, or threads; see `Communicator`.

    All ranks construct it together. Collectives run on the caller's current stream; `wait()` orders the stream that
    is current then. NCCL adds up in an order of its own, alike on all ranks.

    Args:
        meeting: How the ranks reach each other; it is taken over and closed.
        device: This rank's GPU.
        timeout_s: How long a collective may take; $MINIGRAD_TIMEOUT_S or 300 s by default.
        debug: Compare each call over the ranks before it is made. That waits for all of them.
        share_devices: Let ranks share a GPU, which NCCL takes only under certain settings.
        nccl, streams: Stand-ins for cupy.cuda.nccl and cupy.cuda.

    Raises:
        DeviceError: two ranks have one GPU; on all ranks.
        MissingPackageError: there is no NCCL.
        CollectiveTimeoutError, RankFailedError: the others did not come.
    """

    __reduce_ex__ = stays_here

    def __init__(
        self,
        meeting: Rendezvous,
        device: Device,
        *,
        timeout_s: float | None = None,
        debug: bool = False,
        share_devices: bool = False,
        clock: Clock | None = None,
        nccl: Any = None,
        streams: Any = None,
    ) -> None:
        self.rank, self.world_size, self.device = meeting.rank, meeting.world_size, device
        self.clock: Clock = clock if clock is not None else HostClock()
        self.timeout_s = default_timeout_s(timeout_s)
        device.use()
        self._nccl = nccl if nccl is not None else load_nccl()
        self._streams = streams if streams is not None else streams_of(device)
        self._debug = debug
        self._seq = 0
        self._under_way: deque[_Entry] = deque()
        self._launching: _Entry | None = None  # NCCL may wait for other ranks there, too
        self._trouble_s = 0.0  # when NCCL first told of an error
        self._comm: Any = None
        self._ending = threading.Lock()
        self._closed = self._inherited = False
        self._control = Control(Star(meeting), self.timeout_s, self._watch, self._abort_nccl)
        self._world, self._progress, self._trail = self._control.world, self._control.progress, self._control.trail
        try:
            self._start(share_devices)
        except BaseException as error:
            self._closed = True
            self._world.fail(RankFailedError(f"rank {self.rank} did not start: {error}"))
            self._world.flush()
            self._control.leave()
            self._end_nccl(abort=True)
            raise
        atexit.register(self.close)
        tell_children(self)

    # -------------------------------------------------------------------------------------------------- the start

    def _start(self, share_devices: bool) -> None:
        self._check_devices(share_devices)
        unique = self._nccl.get_unique_id() if self.rank == 0 else b""
        unique = self._control.gatherings.gather("nccl: its unique id", bytes(unique))[0][1]
        problems: list[BaseException] = []
        thread = new_thread(self._make, unique, problems, name="nccl-init")
        thread.start()
        deadline = time.monotonic() + self.timeout_s
        while thread.is_alive() and time.monotonic() < deadline and self._world.failure is None:
            thread.join(_LONGEST_NAP_S)
        self._world.raise_failure()
        if problems:
            raise DistributedError(f"rank {self.rank}: nccl: expected NCCL to start, got {problems[0]}")
        if self._comm is None:
            raise CollectiveTimeoutError(
                f"rank {self.rank}: nccl: expected {self.world_size} ranks to start within {self.timeout_s:g} s, "
                "got none: see what NCCL says with NCCL_DEBUG=INFO"
            )
        self._control.gatherings.gather("nccl: its start")  # nobody goes on before all have started

    def _make(self, unique: bytes, problems: list[BaseException]) -> None:
        """In a thread, since NCCL waits for the other ranks for ever."""
        try:
            comm = self._nccl.NcclCommunicator(self.world_size, unique, self.rank)
            with self._ending:
                if self._closed:
                    comm.abort()
                else:
                    self._comm = comm
        except BaseException as error:
            problems.append(error)

    def _check_devices(self, share_devices: bool) -> None:
        """Each rank has a GPU of its own; NCCL's own check says less, and later."""
        mine = device_identity(self.device).encode()
        identities = [data for _, data in self._control.gatherings.gather("nccl: its device", mine)]
        for rank, identity in enumerate(identities):
            first = identities.index(identity)
            if identity and first != rank and not share_devices:
                raise DeviceError(
                    f"rank {self.rank}: nccl: expected a GPU of its own for each rank, got {identity.decode()} on "
                    f"ranks {first} and {rank}: start one rank for each GPU, or use thread ranks"
                )

    # --------------------------------------------------------------------------------------------------- interface

    def empty(self, count: int, dtype: DtypeLike) -> Array:
        """A 1-D array of zeros on the device."""
        with self.device.current() as xp:
            return aligned_zeros(count, check_empty(self.rank, count, dtype), xp)

    def all_reduce(self, array: Array, op: ReduceOp = ReduceOp.SUM, layout: str = "") -> _NcclWork:
        """Overwrite array by its reduction over the ranks."""
        self._check("all_reduce", array)
        check_reduction("all_reduce", self.rank, array, op)
        code, here, count = dtype_code("all_reduce", array.dtype), address_of(array), int(array.size)
        return self._launch(
            "all_reduce",
            f"{op.name} {layout}".strip(),
            (array,),
            lambda comm, stream: comm.allReduce(here, here, count, code, OPERATIONS[op], stream),
        )

    def broadcast(self, array: Array, root: int = 0) -> _NcclWork:
        """Overwrite array by the root's."""
        self._check("broadcast", array)
        check_root("broadcast", self.rank, root, self.world_size)
        here, nbytes, root = address_of(array), int(array.nbytes), int(root)
        return self._launch(
            "broadcast",
            f"root {root}",
            (array,),
            lambda comm, stream: comm.broadcast(here, here, nbytes, BYTE, root, stream),
        )

    def reduce_scatter(self, output: Array, source: Array, op: ReduceOp = ReduceOp.SUM) -> _NcclWork:
        """Overwrite output by this rank's part of the reduction of source."""
        self._check("reduce_scatter", output, source)
        check_reduction("reduce_scatter", self.rank, source, op)
        check_parts("reduce_scatter", self.rank, source, output, self.world_size)
        code, count = dtype_code("reduce_scatter", source.dtype), int(output.size)
        there, here = address_of(output), address_of(source)
        return self._launch(
            "reduce_scatter",
            op.name,
            (source, output),
            lambda comm, stream: comm.reduceScatter(here, there, count, code, OPERATIONS[op], stream),
        )

    def all_gather(self, output: Array, source: Array) -> _NcclWork:
        """Overwrite output by the sources of all ranks."""
        self._check("all_gather", output, source)
        check_parts("all_gather", self.rank, output, source, self.world_size)
        there, here, nbytes = address_of(output), address_of(source), int(source.nbytes)
        return self._launch(
            "all_gather",
            "",
            (source, output),
            lambda comm, stream: comm.allGather(here, there, nbytes, BYTE, stream),
        )

    def all_gather_object(self, value: Any) -> list[Any]:
        """The values of all ranks, in order of rank."""
        data = encode_object("all_gather_object", self.rank, value)
        return [decode_object(part) for part in self._agree(self._next(("all_gather_object", "")), data)]

    def barrier(self) -> None:
        """Return when all ranks have called it; it does not wait for their GPUs."""
        self._agree(self._next(("barrier", "")))

    def check_headers(self, layout: str = "") -> None:
        """Compare what all ranks have called so far, and a layout; all of them call this, and wait for each other.

        Raises:
            CollectiveMismatchError: they differ; on all ranks.
        """
        self._world.raise_failure()
        text = f"layout {layout or 'none'}"
        self._trail.add(text)
        self._agree(text)

    def end_pass(self, layout: str, mark: float | None, news: bool) -> list[float]:
        """Note the end of a pass, to compare it later; ranks wait for each other only where they have to meet.

        Args:
            layout: An id that all ranks have to agree on.
            mark: A number that may differ; None where all ranks know those of all.
            news: Whether something has come up on this rank that may not be alike: ranks then meet at once.

        Returns:
            The marks of all ranks where these met, else nothing.
        """
        self._world.raise_failure()
        text = f"the end of a pass of {layout}"
        if mark is None or self.world_size == 1:
            self._trail.add(text)
            return []
        meets = self._control.meetings.meets(layout, news)
        self._trail.add(text, mark, met=meets or self._debug)
        return [float(part) for part in self._agree(text, repr(mark).encode())] if meets or self._debug else []

    def check_same(self, who: str) -> None:
        """Return when all other ranks are found to have called what this one has so far; they need not call this.

        A rank that has closed its communicator, or was told of what is wrong, is let go: it can save what it has.

        Raises:
            CollectiveMismatchError: they have called something else; on all ranks.
            ReplicaMismatchError: what is beside the model differs, and no pass has looked into it yet.
            CollectiveTimeoutError: a rank did not come so far in time. Or what made this world fail.
        """
        if not self._inherited and not self._closed and not self._world.has_raised:
            self._check_same(who, self.timeout_s)

    def _check_same(self, who: str, limit_s: float) -> None:
        apart = self._control.partings.await_same(limit_s)
        if apart is None and limit_s >= self.timeout_s:
            posted = self._world.peers[self.rank].posted
            late = [rank for rank, peer in enumerate(self._world.peers) if peer.posted < posted]
            self._world.fail(self._world.absence(who, late))
            self._world.raise_failure()
        if apart:
            raise ReplicaMismatchError(
                f"rank {self.rank}: {who}: expected all ranks to be alike beside the model too, got {apart}: "
                "the next pass names it, or finds them alike; another call takes this rank as it is"
            )

    def forked(self) -> None:
        """See `Inherited`: CUDA does not work here, so NCCL's object is left as it is, for ever."""
        never_end(self._comm)
        self._comm, self._inherited = None, True
        atexit.unregister(self.close)

    def _check_process(self) -> None:
        if self._inherited:
            self._world.raise_failure()

    def give_up(self, reason: str) -> None:
        """Fail all ranks, unless all of them make this call; see comm.given_up. NCCL hears nothing of it."""
        try:
            self._world.raise_failure()
            self._world.give_up(self._seq, reason)
            self._next((GIVE_UP, ""))
        except DistributedError:
            pass  # it has failed already, which every later call says

    def abort(self, reason: str) -> None:
        """Fail all ranks, with this reason."""
        self._check_process()
        self._world.fail(RankFailedError(f"rank {self.rank} aborted: {reason}"))
        self._world.has_raised = True  # who aborts knows why
        self._world.flush()

    def close(self) -> None:
        """Leave the world and destroy what NCCL holds; other ranks are not waited for."""
        self._check_process()
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        whole = False
        try:
            if not self._world.has_raised:
                self._check_same("close", min(self.timeout_s / 2, _PARTING_S))
            whole = self._is_idle()
        except (CollectiveTimeoutError, RankFailedError):
            pass  # others have told, or been told, in their calls
        finally:
            self._control.leave()
            self._end_nccl(abort=not whole)
            self._world.close()

    # -------------------------------------------------------------------------------------------------------- calls

    def _check(self, who: str, *arrays: Array) -> None:
        for array in arrays:
            check_array(who, self.rank, array)
            if device_of(array) != self.device:
                raise DeviceError(
                    f"rank {self.rank}: {who}: expected an array on {self.device}, got one on {device_of(array)}"
                )

    def _next(self, what: What, array: Array | None = None) -> Header:
        self._world.raise_failure()
        size = (array.dtype.name, int(array.size)) if array is not None else ("", -1)
        header = Header(self._seq, *what, *size)
        self._seq += 1
        self._progress.note(header)
        return header

    def _agree(self, header: Header | str, data: bytes = b"") -> list[bytes]:
        """Return when all ranks have come here, with the same header and the same calls before: the data of each."""
        partings, trail = self._control.partings, self._trail
        count = trail.end().done
        before = trail.at(count - 1) or trail.end()
        gathered = self._control.gatherings.gather(str(header), before.packed() + data)
        points = [Waypoint.unpacked(part[:WAYPOINT_BYTES]) for _, part in gathered]
        first_rank = {text: rank for rank, (text, _) in reversed(list(enumerate(gathered)))}
        if len(first_rank) > 1 or any(point.calls != before.calls for point in points):
            self._world.check_given_up(all_came=True)
            if any(point[:2] != before[:2] for point in points):
                partings.name(points)
            calls = sorted((rank, text) for text, rank in first_rank.items())
            self._world.fail(mismatch(*calls, advice=": debug=True names the first that differs"))
            self._world.raise_failure()
        partings.met(count, points)
        return [part[WAYPOINT_BYTES:] for _, part in gathered]

    def _launch(
        self, kind: str, detail: str, arrays: tuple[Array, ...], launch: Callable[[Any, int], None]
    ) -> _NcclWork:
        header = self._next((kind, detail), arrays[0])
        if self._debug:
            self._agree(header)
        entry = self._launching = _Entry(header)
        try:
            with self.device.current():
                stream = self._streams.get_current_stream()
                comm = self._comm
                problem = problem_of(self._nccl, lambda: launch(comm, stream.ptr)) if arrays[0].size and comm else ""
                entry.event = self._streams.Event(disable_timing=True)
                entry.event.record(stream)
            self._under_way.append(entry)
        except BaseException as error:  # an interrupt, say: nobody knows whether the collective is under way
            self._world.fail(RankFailedError(f"rank {self.rank}: {header}: its launch raised {error!r}"))
            raise
        finally:
            self._launching = None
        if problem:
            self._launching = entry  # its event may have happened, and the watchdog still finds who is gone
            self._world.await_failure(_PATIENCE_S)
            self._world.fail(DistributedError(f"{header}: expected NCCL to take it, got {problem}"))
        self._world.raise_failure()
        return _NcclWork(self, entry, arrays)

    def is_done(self, entry: _Entry) -> bool:
        """Whether the device has passed a collective."""
        self._world.raise_failure()
        with self.device.current():
            return has_happened(entry.event, self._streams)

    def complete(self, entry: _Entry, host: bool) -> None:
        """Order the caller's stream after a collective; with host=True return when its result is there.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        self._world.raise_failure()
        with self.device.current():
            self._streams.get_current_stream().wait_event(entry.event)
        misses = 0
        while host and not self.is_done(entry):
            misses += 1
            if misses > _SPINS:
                time.sleep(min(_LONGEST_NAP_S, _NAP_S * (misses - _SPINS)))
            if misses % _ASKED_EVERY == 0:
                self._ask_nccl(entry)
        self._world.raise_failure()  # an aborted collective also counts as passed

    # ------------------------------------------------------------------------------------- the watchdog, and the end

    def _watch(self) -> None:
        """Look after the oldest collective under way; the control thread calls this a few times within a timeout."""
        with self.device.current():
            while self._under_way and has_happened(self._under_way[0].event, self._streams):
                self._under_way.popleft()
        entry = self._under_way[0] if self._under_way else self._launching
        if entry is None:
            return
        peers = self._world.peers
        self._ask_nccl(entry)
        seq = entry.header.seq
        absent = [r for r in range(self.world_size) if r != self.rank and peers[r].posted <= seq]
        gone = any(peers[r].left_after is not None for r in absent)
        if gone or time.monotonic() - entry.began_s > self.timeout_s:
            self._world.fail(self._world.absence(str(entry.header), absent))

    def _ask_nccl(self, entry: _Entry) -> None:
        with self._ending:  # the control thread may be about to abort it, and what it is then is freed
            problem = problem_of(self._nccl, self._comm.check_async_error) if self._comm is not None else ""
        if not problem:
            return
        now_s = time.monotonic()
        self._trouble_s = self._trouble_s or now_s
        if now_s - self._trouble_s > _PATIENCE_S:
            self._world.fail(DistributedError(f"{entry.header}: expected NCCL to go on, got {problem}"))

    def _abort_nccl(self) -> None:
        """End NCCL's waiting: in the control thread, while another may wait in NCCL."""
        self._end_nccl(abort=True)

    def _end_nccl(self, abort: bool) -> None:
        """End NCCL's object, once; it is dead then, and the garbage collector finds nothing to end."""
        with self._ending:
            comm, self._comm = self._comm, None
            if comm is not None:
                with self.device.current():
                    comm.abort() if abort else comm.destroy()

    def _is_idle(self) -> bool:
        """Wait for what is under way; False where it does not end well."""
        try:
            for entry in list(self._under_way):
                self.complete(entry, host=True)
        except DistributedError:
            return False
        return True
