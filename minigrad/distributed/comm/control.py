"""What ranks on GPUs tell each other beside NCCL: host data, how far each is, failures. Bytes, never pickle.

The connections of a Rendezvous form a star: each rank sends to rank 0, whose thread passes everything on to the
others. The thread of a rank hears messages as they come, so a failure reaches a rank that waits inside NCCL, and it
looks after the work under way a few times within a timeout.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.base import LAST_CALLS, Header, Peer, doing, incomplete
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.given_up import GIVE_UP, disagreement
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
)

_ITEM, _STATE, _LEFT, _FAILED, _GAVE_UP = range(5)
_HEAD = struct.Struct("<BIQI")  # kind, rank, number of an item or of calls, bytes of the text that follows
_KINDS: dict[str, type[DistributedError]] = {
    kind.__name__: kind
    for kind in (DistributedError, RankFailedError, CollectiveTimeoutError, CollectiveMismatchError)
}
_LOOKS = 8  # how often the thread looks after the work within a timeout, at least
_TICK_S = 0.25
_GRACE_S = 2.0


class Control:
    """One rank's side of the talk.

    Args:
        meeting: The rendezvous, whose connections it takes over.
        timeout_s: How long `gather` waits for a rank.
        watch: Called by the thread at each look, while nothing has failed.
        on_failure: Called by the thread, once, when this or another rank has failed.

    Attributes:
        peers: What each other rank last told.
        failure: What made this world fail, None while nothing did.
        changed: Notified at each change of the two.
    """

    def __init__(
        self, meeting: Rendezvous, timeout_s: float, watch: Callable[[], None], on_failure: Callable[[], None]
    ) -> None:
        self.rank, self.world_size, self.timeout_s = meeting.rank, meeting.world_size, timeout_s
        self.peers = [Peer() for _ in range(self.world_size)]
        self.failure: DistributedError | None = None
        self.changed = threading.Condition()
        self._watch, self._on_failure = watch, on_failure
        self._links: dict[int, Connection] = meeting.take_over()
        self._sending = threading.Lock()  # one for all links: every rank gets rank 0's messages in one order
        self._last = deque[Header](maxlen=LAST_CALLS)
        self._items: dict[int, dict[int, tuple[str, bytes]]] = {}
        self._gathered = 0
        self._given_up: dict[int, dict[int, str]] = {}  # by number of the call, the reason of each rank
        self._untold: bytes | None = None
        self._told_posted = 0
        self._handled = self._left = False
        self._woken, self._waker = Pipe(duplex=False)
        self._thread = new_thread(self._serve, name=f"control-{self.rank}")
        self._thread.start()
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: without the copies of the links here, the others see at once when the parent ends."""
        self.changed, self._sending, self.failure = threading.Condition(), threading.Lock(), in_a_child()
        for link in (*self._links.values(), self._woken, self._waker):
            link.close()
        self._links.clear()
        atexit.unregister(self._linger)

    # ------------------------------------------------------------------------------------------ for the caller

    def gather(self, text: str, data: bytes = b"") -> list[tuple[str, bytes]]:
        """What all ranks brought to this call, in order of rank; blocks.

        Args:
            text: What this rank is doing.

        Raises:
            CollectiveTimeoutError: a rank did not come. RankFailedError: it left. Or what made this world fail.
        """
        self.raise_failure()
        with self.changed:
            number, self._gathered = self._gathered, self._gathered + 1
            items = self._items.setdefault(number, {})
            items[self.rank] = (text, data)
        self._broadcast(_message(_ITEM, self.rank, number, text, data))
        with self.changed:
            self.changed.wait_for(lambda: self._is_settled(items), self.timeout_s)
            self._items.pop(number)
        if len(items) < self.world_size:
            self.fail(self.absence(text, [r for r in range(self.world_size) if r not in items]))
            self.raise_failure()
        return [items[rank] for rank in range(self.world_size)]

    def _is_settled(self, items: dict[int, tuple[str, bytes]]) -> bool:
        gone = any(peer.left_after is not None and r not in items for r, peer in enumerate(self.peers))
        return gone or self.failure is not None or len(items) == self.world_size

    def absence(self, text: str, absent: list[int]) -> DistributedError:
        """The error for a call to which ranks did not come: they have left, or are late."""
        left = [r for r in absent if self.peers[r].left_after is not None]
        known = {r: ("closed its communicator and " if r in left else "") + self.peers[r].doing for r in absent}
        if left:
            return RankFailedError(incomplete(text, self.world_size, known))
        limit = f" within {self.timeout_s:g} s"
        if not absent:
            return CollectiveTimeoutError(f"{text}: expected the data{limit}, got none, although all ranks have come")
        return CollectiveTimeoutError(incomplete(text, self.world_size, known, limit))

    def note(self, header: Header) -> None:
        """This rank has made another call; the others hear of it at the next look."""
        self._last.appendleft(header)
        self.peers[self.rank].posted = header.seq + 1

    def give_up(self, seq: int, reason: str) -> None:
        """This rank is about to give up a call: all fail at the next look where another rank makes one there."""
        with self.changed:
            self._given_up.setdefault(seq, {})[self.rank] = reason
        self._broadcast(_message(_GAVE_UP, self.rank, seq, "", reason.encode()))

    def check_given_up(self, all_came: bool = False) -> None:
        """Fail where this rank has made a call that another one gave up; forget those that all gave up.

        Args:
            all_came: Whether what all ranks have given up so far is known here.
        """
        posted = self.peers[self.rank].posted
        with self.changed:
            given_up = [(seq, reasons) for seq, reasons in self._given_up.items() if seq < posted]
            for seq, reasons in given_up:
                if len(reasons) == self.world_size:
                    del self._given_up[seq]
        for seq, reasons in given_up:
            if self.rank not in reasons or all_came and len(reasons) < self.world_size:
                rank, reason = next(iter(reasons.items()))
                self.fail(disagreement((rank, str(Header(seq, GIVE_UP, reason)))))

    def fail(self, error: DistributedError, tell: bool = True) -> None:
        """Fail for good, the first failure wins; the thread lets the others know."""
        with self.changed:
            if self.failure is None:
                self.failure = error
                if tell:
                    self._untold = _message(_FAILED, self.rank, 0, type(error).__name__, str(error).encode())
            self.changed.notify_all()
        self._wake()

    def await_failure(self, limit_s: float) -> None:
        """Return when something has failed, or after so long; for any thread but this one's."""
        with self.changed:
            self.changed.wait_for(lambda: self.failure is not None, limit_s)

    def flush(self) -> None:
        """Return when a failure has been dealt with and told, or after a moment."""
        with self.changed:
            self.changed.wait_for(lambda: self._handled and self._untold is None, _GRACE_S)

    def raise_failure(self) -> None:
        """Raise what made this world fail, if anything did."""
        if self.failure is not None:
            raise type(self.failure)(f"rank {self.rank}: {self.failure}")

    def leave(self) -> None:
        """Make no more calls; the others hear of it. The thread ends when the other ranks have left as well."""
        mine = self.peers[self.rank]
        self._broadcast(_message(_LEFT, self.rank, mine.posted, doing(self._last)))
        atexit.register(self._linger)
        self._left = True
        if self.rank != 0:
            with self._sending:
                for link in self._links.values():
                    _end_writing(link)
        self._wake()

    def _linger(self) -> None:
        """A process that ends at once could take back what it has sent, and rank 0 passes on what others send."""
        self._thread.join(_GRACE_S)

    def _wake(self) -> None:
        try:
            self._waker.send_bytes(b"")
        except OSError:
            pass  # the thread has ended

    # ------------------------------------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        tick_s = min(_TICK_S, self.timeout_s / _LOOKS)
        try:
            while self._links or not self._left:
                self._hear(tick_s)
                if self.failure is None and not self._left:
                    self._look()
                if self.failure is not None:
                    self._deal_with_failure()
        finally:
            self._waker.close()
            self._woken.close()
            atexit.unregister(self._linger)

    def _look(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.fail(DistributedError(f"rank {self.rank}: watchdog: {error!r}"))
        self.check_given_up()
        posted = self.peers[self.rank].posted
        if posted != self._told_posted:
            if self._tell(_message(_STATE, self.rank, posted, doing(list(self._last)))):
                self._told_posted = posted

    def _deal_with_failure(self) -> None:
        if not self._handled:
            try:
                self._on_failure()
            finally:
                self._handled = True
        if self._untold is not None and self._tell(self._untold):
            self._untold = None
        with self.changed:
            self.changed.notify_all()

    def _hear(self, timeout_s: float) -> None:
        sources = {link: rank for rank, link in self._links.items()}
        for ready in wait([*sources, self._woken], timeout_s):
            assert isinstance(ready, Connection)
            if ready is self._woken:
                ready.recv_bytes()
                continue
            try:
                message = ready.recv_bytes()
            except (EOFError, OSError):
                self._lose(sources[ready])
                continue
            if self.rank == 0:
                self._broadcast(message, sources[ready])  # first: who has what it waits for may end the process
            self._take(message)

    def _take(self, message: bytes) -> None:
        kind, rank, number, size = _HEAD.unpack_from(message)
        text, data = message[_HEAD.size : _HEAD.size + size].decode(), message[_HEAD.size + size :]
        with self.changed:
            peer = self.peers[rank]
            if kind == _ITEM:
                self._items.setdefault(number, {})[rank] = (text, data)
            elif kind == _GAVE_UP:
                self._given_up.setdefault(number, {})[rank] = data.decode()
            elif kind == _FAILED:
                self.failure = self.failure or _KINDS[text](data.decode())
            else:
                peer.posted, peer.doing = max(peer.posted, number), text
                if kind == _LEFT:
                    peer.left_after = number
            self.changed.notify_all()

    def _lose(self, rank: int) -> None:
        """A connection has ended: its rank has left, or died."""
        with self._sending:
            self._links.pop(rank).close()
        peer = self.peers[rank]
        if peer.left_after is None and not self._left:
            self.fail(RankFailedError(f"rank {rank} is gone, its process has ended; it {peer.doing}"))

    # --------------------------------------------------------------------------------------------------- sending

    def _broadcast(self, message: bytes, source: int | None = None) -> None:
        """Send to every connection but the source's; waits for room, which the threads of the others make."""
        with self._sending:
            for rank, link in self._links.items():
                if rank != source:
                    _write(link, message)

    def _tell(self, message: bytes) -> bool:
        """Send a small message where that needs no waiting; whether it was sent.

        The thread of a rank other than 0 must not wait for room: rank 0 may wait for it to read.
        """
        if self.rank == 0:
            self._broadcast(message)
            return True
        link = self._links.get(0)
        if link is None:
            return True
        if not _has_room(link) or not self._sending.acquire(blocking=False):
            return False
        try:
            _write(link, message)
        finally:
            self._sending.release()
        return True


def _write(link: Connection, message: bytes) -> None:
    try:
        link.send_bytes(message)
    except OSError:
        pass  # the thread sees its end, and says what it means


def _message(kind: int, rank: int, number: int, text: str, data: bytes = b"") -> bytes:
    encoded = text.encode()
    return _HEAD.pack(kind, rank, number, len(encoded)) + encoded + data


def _has_room(link: Connection) -> bool:
    poll = select.poll()
    poll.register(link.fileno(), select.POLLOUT)
    return bool(poll.poll(0))


def _end_writing(link: Connection) -> None:
    """Let the other side read to the end; closing would throw away what it has not read yet."""
    try:
        with socket.socket(fileno=os.dup(link.fileno())) as same:
            same.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # it has ended already
