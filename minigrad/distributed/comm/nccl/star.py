"""The connections of a rank on GPUs, and the thread that hears and sends what they carry."""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.forks import close_whole, tell_children
from minigrad.distributed.comm.nccl.messages import Message, end_writing, has_room, unbundled, unpacked, write
from minigrad.distributed.comm.rendezvous import Rendezvous

_LINGER_S = 2.0


class Star:
    """One rank's connections: those of rank 0 to all others, or that to rank 0.

    Args:
        meeting: The rendezvous, whose connections it takes over.

    Attributes:
        rank, world_size: This rank, and how many there are.
        has_left: Whether it has sent its last message.
    """

    def __init__(self, meeting: Rendezvous) -> None:
        self.rank, self.world_size = meeting.rank, meeting.world_size
        self.has_left = self._is_woken = False
        self._links: dict[int, Connection] = meeting.take_over()
        self._sending = threading.Lock()  # one for all links: every rank gets rank 0's messages in one order
        self._outbox = deque[tuple[int | None, Message]]()  # for the thread to send, and to whom
        self._woken, self._waker = Pipe(duplex=False)
        tell_children(self)

    def start(
        self, tick_s: float, hear: Callable[[Message, int], None], lose: Callable[[int], None], turn: Callable[[], None]
    ) -> None:
        """Start the thread, which ends when this rank and the others at its connections have left.

        Args:
            tick_s: How long it waits for messages in one turn, at most.
            hear: Called with each message, and the rank that sent it.
            lose: Called with the rank whose connection has ended.
            turn: Called once in each turn.
        """
        self._tick_s, self._hear, self._lose, self._turn = tick_s, hear, lose, turn
        self._thread = new_thread(self._serve, name=f"control-{self.rank}")
        self._thread.start()

    def forked(self) -> None:
        """See `Inherited`: without the copies of the links here, the others see at once when the parent ends."""
        self._sending = threading.Lock()
        for link in (*self._links.values(), self._woken, self._waker):
            link.close()
        self._links.clear()
        atexit.unregister(self._linger)

    def address(self) -> str:
        """Where this rank is, as far as rank 0's machine sees it; empty for rank 0."""
        return "" if self.rank == 0 else _ends(self._links[0])[0]

    def address_of(self, rank: int) -> str:
        """Where the rank at the other end of a connection is."""
        return _ends(self._links[rank])[1]

    @property
    def is_cut(self) -> bool:
        """Whether all connections have ended."""
        return not self._links

    # --------------------------------------------------------------------------------------------------- sending

    def broadcast(self, message: Message, source: int | None = None) -> None:
        """Send to every connection but the source's; waits for room, which the threads of the others make."""
        packed = message.packed()
        with self._sending:
            for rank, link in self._links.items():
                if rank != source:
                    write(link, packed)

    def tell(self, message: Message) -> bool:
        """Send a small message where that needs no waiting; whether it was sent. For the thread.

        The thread of a rank other than 0 must not wait for room: rank 0 may wait for it to read.
        """
        if self.rank == 0:
            self.broadcast(message)
            return True
        link = self._links.get(0)
        if link is None:
            return True
        if not has_room(link) or not self._sending.acquire(blocking=False):
            return False
        try:
            write(link, message.packed())
        finally:
            self._sending.release()
        return True

    def post(self, message: Message, to: int | None = None) -> None:
        """Let the thread send a message: to rank 0, or from there to one rank, or to all."""
        self._outbox.append((to, message))
        self.wake()

    def wake(self) -> None:
        """Let the thread take its next turn at once."""
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._waker.send_bytes(b"")
        except OSError:
            pass  # the thread has ended

    def leave(self, last: Message) -> None:
        """Send nothing more after this message but what the others need of this rank's thread."""
        self.broadcast(last)
        atexit.register(self._linger)
        self.has_left = True
        if self.rank != 0:
            with self._sending:
                for link in self._links.values():
                    end_writing(link)
        self.wake()

    def _linger(self) -> None:
        """A process that ends at once could take back what it has sent, and rank 0 passes on what others send."""
        self._thread.join(_LINGER_S)

    # ------------------------------------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        try:
            while self._links or not self.has_left:
                self._hear_all()
                self._turn()
                self._send_posted()
        finally:
            close_whole(self._waker)
            close_whole(self._woken)
            atexit.unregister(self._linger)

    def _hear_all(self) -> None:
        sources = {link: rank for rank, link in self._links.items()}
        for ready in wait([*sources, self._woken], self._tick_s):
            assert isinstance(ready, Connection)
            if ready is self._woken:
                self._is_woken = False
                ready.recv_bytes()
                continue
            rank = sources[ready]
            try:
                data = ready.recv_bytes()
            except (EOFError, OSError):
                with self._sending:
                    close_whole(self._links.pop(rank))
                self._lose(rank)
                continue
            for message in unbundled(unpacked(data)):
                self._hear(message, rank)

    def _send_posted(self) -> None:
        while self._outbox:
            to, message = self._outbox[0]
            if to is not None:
                with self._sending:
                    if to in self._links:
                        write(self._links[to], message.packed())
            elif not self.tell(message):
                return
            self._outbox.popleft()


def _ends(link: Connection) -> tuple[str, str]:
    """The addresses of the two ends of a connection, this one's first."""
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        return same.getsockname()[0], same.getpeername()[0]
