"""Frames over sockets between the launcher and its ranks: one thread reads and writes them, so that nobody waits."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.forks import tell_children
from minigrad.distributed.living.lifeline import ParcelKind

_HEAD = struct.Struct("<iiBQ")
_CHUNK_BYTES = 1 << 16
_NAP_S = 1e-3


class Frame(NamedTuple):
    """A parcel on its way.

    Attributes:
        session: Which of the lifelines that a process has one after the other.
        address: Who it goes to, on the way to the launcher; from it, who it is of.
        kind, data: See `Lifeline.hear`.
    """

    session: int
    address: int
    kind: ParcelKind
    data: bytes

    def packed(self) -> bytes:
        """It as bytes."""
        return _HEAD.pack(self.session, self.address, self.kind, len(self.data)) + self.data


def frames_in(buffer: bytearray) -> Iterator[Frame]:
    """The whole frames at the start of what came, which are taken off it."""
    while len(buffer) >= _HEAD.size:
        session, address, kind, length = _HEAD.unpack_from(buffer)
        stop = _HEAD.size + length
        if len(buffer) < stop:
            return
        data = bytes(buffer[_HEAD.size : stop])
        del buffer[:stop]
        yield Frame(session, address, ParcelKind(kind), data)


class _Pipe:
    """One socket, with what has come of a frame and what has still to go."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket, self.come, self.to_go = end, bytearray(), deque[memoryview]()


class Pipes:
    """Sockets to others, by their number, and the thread that serves them.

    Args:
        ends: The sockets, which are its own from now on.
        hear: Called by the thread, with the number of who sent it, for each frame.
        lose: Called by the thread when the other end of a socket was closed.
    """

    def __init__(
        self,
        ends: Mapping[int, socket.socket],
        hear: Callable[[int, Frame], None],
        lose: Callable[[int], None],
    ) -> None:
        self._pipes = {number: _Pipe(end) for number, end in ends.items()}
        self._hear, self._lose = hear, lose
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._tasks: deque[Callable[[], None]] = deque()
        self._is_open = True
        self._thread = new_thread(self._serve, name="pipes")
        tell_children(self)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def forked(self) -> None:
        """See `Inherited`: a child closes its copies, which the other ends do not notice."""
        self._is_open = False
        for pipe in self._pipes.values():
            pipe.socket.close()
        self._woken.close()
        self._waker.close()

    # ----------------------------------------------------------------------------------------------- for any thread

    def send(self, to: int, frame: Frame) -> None:
        """Bring a frame on its way; never waits. It is dropped where the other end was closed."""
        self.call(lambda: self._queue(to, frame.packed()))

    def call(self, task: Callable[[], None]) -> None:
        """Let the thread do something, after all that it was given before."""
        if self._is_open:
            self._tasks.append(task)
            with contextlib.suppress(OSError):  # it is awake
                self._waker.send(b"w")

    def flush(self, limit_s: float) -> bool:
        """Return when all is on its way, or after so long; whether it is."""
        deadline = time.monotonic() + limit_s
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(_NAP_S)
        return not self._is_busy()

    def _is_busy(self) -> bool:
        return bool(self._tasks) or any(pipe.to_go for pipe in list(self._pipes.values()))

    def close(self) -> None:
        """End the thread, and close all sockets; idempotent."""
        if self._is_open:
            self.call(self._stop)
            self._thread.join()

    # -------------------------------------------------------------------------------------------------- for its thread

    def read(self, number: int) -> None:
        """Hear all that has come by now from one."""
        pipe = self._pipes.get(number)
        while pipe is not None:
            try:
                part = pipe.socket.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except OSError:
                part = b""
            if not part:
                self._pipes.pop(number).socket.close()
                self._lose(number)
                return
            pipe.come += part
            for frame in frames_in(pipe.come):
                self._hear(number, frame)

    def _queue(self, to: int, data: bytes) -> None:
        if to in self._pipes:
            self._pipes[to].to_go.append(memoryview(data))

    def _write(self, number: int) -> None:
        pipe = self._pipes.get(number)
        while pipe is not None and pipe.to_go:
            try:
                gone = pipe.socket.send(pipe.to_go[0])
            except BlockingIOError:
                return
            except OSError:  # its end is closed, which reading tells
                pipe.to_go.clear()
                return
            if gone == len(pipe.to_go[0]):
                pipe.to_go.popleft()
            else:
                pipe.to_go[0] = pipe.to_go[0][gone:]

    def _stop(self) -> None:
        self._is_open = False

    def _serve(self) -> None:
        try:
            while self._is_open:
                for number, events in self._ready():
                    if number is None:
                        self._do_tasks()
                        continue
                    if events & selectors.EVENT_READ:
                        self.read(number)
                    if events & selectors.EVENT_WRITE:
                        self._write(number)
        finally:
            self.forked()

    def _ready(self) -> list[tuple[int | None, int]]:
        with selectors.PollSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            for number, pipe in self._pipes.items():
                writes = selectors.EVENT_WRITE if pipe.to_go else 0
                selector.register(pipe.socket, selectors.EVENT_READ | writes, number)
            return [(key.data, events) for key, events in selector.select()]

    def _do_tasks(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(_CHUNK_BYTES)
        while self._tasks:
            self._tasks.popleft()()
        for number in list(self._pipes):
            self._write(number)
