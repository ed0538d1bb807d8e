"""A stand-in for cupy.cuda.nccl on host memory, whose ranks are threads, or calls of one thread inside a group.

It takes the same integers (pointers, counts, codes of dtypes and operations, stream) under the same names, keeps the
rules of NCCL that bite, and raises where NCCL would hang. Reductions add up in the order of
`minigrad.distributed.collectives`; NCCL promises no order.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp

DTYPES = [
    *(np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32, np.float64),
    ml_dtypes.bfloat16,
]
OPERATIONS = [ReduceOp.SUM, ReduceOp.PROD, ReduceOp.MAX, ReduceOp.MIN, ReduceOp.AVG]
ERRORS = [
    "NCCL_SUCCESS",
    "NCCL_ERROR_UNHANDLED_CUDA_ERROR",
    "NCCL_ERROR_SYSTEM_ERROR",
    "NCCL_ERROR_INTERNAL_ERROR",
    "NCCL_ERROR_INVALID_ARGUMENT",
    "NCCL_ERROR_INVALID_USAGE",
    "NCCL_ERROR_REMOTE_ERROR",
]
CUDA_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR = 1, 4, 5, 6
ID_BYTES = 128


class NcclError(RuntimeError):
    """As CuPy's, including what it does with the codes 7 (in progress) and 8 (timeout): a KeyError."""

    def __init__(self, status: int, detail: str = "") -> None:
        if status >= len(ERRORS):
            raise KeyError(status)
        self.status = status
        super().__init__(f"{ERRORS[status]}: {detail}")


@dataclass
class Call:
    """One collective, or one message, as far as those that take part have come."""

    parts: dict[Any, tuple[Any, Callable[[list[Any]], None], Any]] = field(default_factory=dict)
    error: NcclError | None = None
    done: bool = False


class World:
    """What the communicators of one unique id share: their calls, matched by number.

    Messages are matched by their number among those from one rank to another.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size, self.timeout_s = size, timeout_s
        self.changed = threading.Condition()
        self.calls: dict[Any, Call] = {}
        self.aborted = False

    def post(
        self, who: Any, number: Any, what: Any, mine: Any, finish: Callable[[list[Any]], None], parties: Sequence[Any]
    ) -> Call:
        """Add the part of one of the parties; the last one hands the parts of all, in their order, to each `finish`."""
        with self.changed:
            call = self.calls.setdefault(number, Call())
            call.parts[who] = (what, finish, mine)
            if len(call.parts) == len(parties):
                self._complete(call, [call.parts[party] for party in parties])
                call.parts = {}
                del self.calls[number]
                self.changed.notify_all()
            return call

    def _complete(self, call: Call, ordered: list[Any]) -> None:
        call.done = True
        if any(what != ordered[0][0] for what, _, _ in ordered):
            listed = [what for what, _, _ in ordered]
            call.error = NcclError(INVALID_ARGUMENT, f"ranks do not match, NCCL would hang or mix up data: {listed}")
            return
        values = [mine for _, _, mine in ordered]
        try:
            for _, finish, _ in ordered:
                finish(values)
        except NcclError as error:
            call.error = error

    def wait(self, who: Any, call: Call) -> None:
        """Return when all ranks have come; raise where NCCL would wait for ever."""
        with self.changed:
            came = self.changed.wait_for(lambda: call.done or self.aborted, self.timeout_s)
        if call.error is not None:
            raise call.error
        if not call.done:
            (what, _, _), present = call.parts[who], sorted(call.parts)
            why = "aborted" if came else "NCCL would hang"
            raise NcclError(REMOTE_ERROR, f"{why}: rank {who} waits in {what} where only ranks {present} have come")


class FakeNccl:
    """The module. Each instance is a world of its own, so tests do not meet.

    Args:
        current_device: Names the device that is current for the calling thread; None where devices do not matter.
        submit: submit(stream pointer, work) puts work on a stream; it runs at once by default.
        timeout_s: How long a call waits for other ranks before it says that NCCL would hang.
        version: What get_version() tells.

    Attributes:
        open: Communicators that were neither destroyed nor aborted.
        collected: Communicators that the garbage collector met before that, where NCCL may hang.
    """

    available = True
    NcclError = NcclError
    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)

    def __init__(
        self,
        current_device: Callable[[], Any] = lambda: None,
        submit: Callable[[int, Callable[[], None]], None] = lambda stream, work: work(),
        timeout_s: float = 20.0,
        version: int = 22809,
    ) -> None:
        self.current_device, self.submit, self.timeout_s, self._version = current_device, submit, timeout_s, version
        self.open: set[int] = set()
        self.collected: list[int] = []
        self._worlds: dict[bytes, World] = {}
        self._starters: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._thread = threading.local()
        fake = self

        class NcclCommunicator(Communicator):
            """A communicator of this fake."""

            def __init__(self, ndev: int, commId: bytes, rank: int, config: Any = None) -> None:
                fake._starters.append(threading.current_thread())
                super().__init__(fake, ndev, commId, rank)
                self.wait_for_all()

            @staticmethod
            def initAll(devices: int | list[int]) -> list[Communicator]:
                """One communicator a device, all in this thread."""
                if isinstance(devices, tuple):
                    raise TypeError("initAll: expected a list")
                return fake.init_all(list(range(devices)) if isinstance(devices, int) else devices)

        self.NcclCommunicator = NcclCommunicator

    def check_all_given_back(self) -> None:
        """Require that nothing is open, nor was when the garbage collector met it.

        NCCL's start can't be interrupted: a rank whose start has failed returns while a thread of its own is still in
        there, and gives back what comes of it afterwards. It is waited for.
        """
        for thread in self._starters:
            if thread is not threading.current_thread():
                thread.join(self.timeout_s)
        assert not self.open and not self.collected

    def get_version(self) -> int:
        """The version of the library."""
        return self._version

    get_build_version = get_version

    def get_unique_id(self) -> bytes:
        """A new id for one world."""
        return next(self._ids).to_bytes(ID_BYTES, "little")

    def init_all(self, devices: list[int]) -> list[Communicator]:
        """See NcclCommunicator.initAll."""
        if len(set(devices)) != len(devices):
            raise NcclError(INVALID_USAGE, f"Duplicate GPU detected: {devices}")
        unique = self.get_unique_id()
        made = [Communicator(self, len(devices), unique, rank, device) for rank, device in enumerate(devices)]
        for communicator in made:
            communicator.wait_for_all()
        return made

    def world(self, unique: bytes, size: int) -> World:
        """What the ranks of one id share."""
        with self._lock:
            return self._worlds.setdefault(unique, World(size, self.timeout_s))

    # ------------------------------------------------------------------------------------------------ groups

    def groupStart(self) -> None:
        """Calls from here on are posted together at groupEnd, so that one thread can be several ranks."""
        self._thread.depth = getattr(self._thread, "depth", 0) + 1
        if self._thread.depth == 1:
            self._thread.calls = []

    def groupEnd(self) -> None:
        """Post all calls of the group, then wait for all."""
        if getattr(self._thread, "depth", 0) == 0:
            raise NcclError(INVALID_USAGE, "groupEnd without groupStart")
        self._thread.depth -= 1
        if self._thread.depth == 0:
            waits: list[Callable[[], None]] = []
            for stream, post in self._thread.calls:
                self.submit(stream, functools.partial(_posted, post, waits))
            for wait in waits:
                wait()

    def in_group(self) -> bool:
        """Whether this thread has begun a group."""
        return getattr(self._thread, "depth", 0) > 0

    def enqueue(self, stream: int, post: Callable[[], Callable[[], None]]) -> None:
        """Put a call on a stream now, or at the end of the group."""
        if self.in_group():
            self._thread.calls.append((stream, post))
        else:
            self.submit(stream, lambda: post()())


class Communicator:
    """One rank. A subclass of it is the fake's NcclCommunicator."""

    def __init__(self, fake: FakeNccl, size: int, unique: bytes, rank: int, device: Any = None) -> None:
        if len(unique) != ID_BYTES:
            raise ValueError(f"commId length {len(unique)} != {ID_BYTES}.")
        self._fake, self._world, self._rank = fake, fake.world(bytes(unique), size), rank
        if self._world.size != size or not 0 <= rank < size:
            raise NcclError(INVALID_ARGUMENT, f"rank {rank} of {size} in a world of {self._world.size}")
        self._device = device if device is not None else fake.current_device()
        self._number, self._over = 0, False
        self._messages = Counter[tuple[str, int, int]]()  # so far: sent or taken, from whom, to whom
        self.async_status = 0
        self._init = self._post(("init", size), self._device, self._refuse_duplicates)
        fake.open.add(id(self))

    def wait_for_all(self) -> None:
        """The second half of the constructor."""
        try:
            self._world.wait(self._rank, self._init)
        except NcclError:
            self._leave()
            raise

    def _refuse_duplicates(self, devices: list[Any]) -> None:
        named = [device for device in devices if device is not None]
        if len(set(named)) != len(named):
            raise NcclError(INVALID_USAGE, f"Duplicate GPU detected: {devices}")

    def __del__(self) -> None:
        if not getattr(self, "_over", True):
            self._fake.collected.append(self._rank)

    # --------------------------------------------------------------------------------------------- its state

    def rank_id(self) -> int:
        """Its rank."""
        return self._rank

    def size(self) -> int:
        """The number of ranks."""
        return self._world.size

    def device_id(self) -> Any:
        """Its device."""
        return self._device

    def check_async_error(self) -> None:
        """Raise what went wrong meanwhile; `async_status` is a code that a test sets."""
        self._check_open()
        if self.async_status:
            raise NcclError(self.async_status, "asynchronous")

    def abort(self) -> None:
        """End the calls of all ranks that wait."""
        self._leave()
        with self._world.changed:
            self._world.aborted = True
            self._world.changed.notify_all()

    def destroy(self) -> None:
        """Give it back; NCCL may hang where other ranks still wait for this one."""
        self._leave()

    def _leave(self) -> None:
        self._over = True
        self._fake.open.discard(id(self))

    def _check_open(self) -> None:
        if self._over:
            raise NcclError(INVALID_ARGUMENT, "the communicator was destroyed or aborted")

    # ------------------------------------------------------------------------------------------- collectives

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        """Every rank gets the reduction of all."""

        def finish(parts: list[Any]) -> None:
            _array(recvbuf, count, datatype)[...] = _reduced(parts, op)

        self._collective(("allReduce", count, datatype, op), sendbuf, count, datatype, stream, finish)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        """Every rank gets the root's."""

        def finish(parts: list[Any]) -> None:
            _array(recvbuff, count, datatype)[...] = parts[root]

        self._collective(("broadcast", count, datatype, root), sendbuff, count, datatype, stream, finish)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        """Rank r gets part r of the reduction."""

        def finish(parts: list[Any]) -> None:
            whole = _reduced(parts, op)
            _array(recvbuf, recvcount, datatype)[...] = whole[self._rank * recvcount : (self._rank + 1) * recvcount]

        count = recvcount * self._world.size
        self._collective(("reduceScatter", recvcount, datatype, op), sendbuf, count, datatype, stream, finish)

    def allGather(self, sendbuf: int, recvbuf: int, sendcount: int, datatype: int, stream: int) -> None:
        """Every rank gets the parts of all."""

        def finish(parts: list[Any]) -> None:
            _array(recvbuf, sendcount * self._world.size, datatype)[...] = np.concatenate(parts)

        self._collective(("allGather", sendcount, datatype), sendbuf, sendcount, datatype, stream, finish)

    def reduce(
        self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int
    ) -> None:
        """The root gets the reduction of all; no other rank's recvbuf is touched."""

        def finish(parts: list[Any]) -> None:
            if self._rank == root:
                _array(recvbuf, count, datatype)[...] = _reduced(parts, op)

        self._collective(("reduce", count, datatype, op, root), sendbuf, count, datatype, stream, finish)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Give a peer its next message from this rank; on its stream that waits until the peer takes it."""
        self._message("send", self._rank, peer, sendbuf, count, datatype, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        """Take the next message of a peer for this rank."""
        self._message("recv", peer, self._rank, recvbuf, count, datatype, stream)

    def _message(self, who: str, src: int, dst: int, buffer: int, count: int, datatype: int, stream: int) -> None:
        self._check_ready()
        if not (0 <= src < self._world.size and 0 <= dst < self._world.size):
            raise NcclError(INVALID_ARGUMENT, f"{who}: a message from {src} to {dst} in a world of {self._world.size}")
        if src == dst and not self._fake.in_group():
            raise NcclError(INVALID_USAGE, f"{who}: rank {src} sends to itself outside of a group")
        number = self._messages[who, src, dst]
        self._messages[who, src, dst] += 1
        parties = [f"{src} sending", f"{dst} taking"]
        party = parties[who == "recv"]

        def finish(parts: list[Any]) -> None:
            if who == "recv":
                _array(buffer, count, datatype)[...] = parts[0]

        def post() -> Callable[[], None]:
            mine = _array(buffer, count, datatype).copy() if who == "send" else None
            what = f"message {number} from {src} to {dst}", count, datatype
            call = self._world.post(party, (src, dst, number), what, mine, finish, parties)
            return lambda: self._world.wait(party, call)

        self._fake.enqueue(stream, post)

    def _collective(
        self, what: Any, sendbuf: int, count: int, datatype: int, stream: int, finish: Callable[[list[Any]], None]
    ) -> None:
        self._check_ready()

        def post() -> Callable[[], None]:
            call = self._post(what, _array(sendbuf, count, datatype).copy(), finish)
            return lambda: self._world.wait(self._rank, call)

        self._fake.enqueue(stream, post)

    def _check_ready(self) -> None:
        self._check_open()
        if self._device is not None and self._fake.current_device() != self._device:
            raise NcclError(CUDA_ERROR, f"expected device {self._device} to be current for its stream")

    def _post(self, what: Any, mine: Any, finish: Callable[[list[Any]], None]) -> Call:
        self._number += 1
        return self._world.post(self._rank, self._number, what, mine, finish, range(self._world.size))


def _posted(post: Callable[[], Callable[[], None]], waits: list[Callable[[], None]]) -> None:
    waits.append(post())


def _array(pointer: int, count: int, datatype: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype(DTYPES[datatype])
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(pointer) if count else b""
    return np.frombuffer(memory, dtype)


def _reduced(parts: list[Any], op: int) -> Any:
    return collectives.reduced([part.copy() for part in parts], OPERATIONS[op])
