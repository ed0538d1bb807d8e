"""What ranks on GPUs tell each other beside NCCL: host data, how far each is, failures. Bytes, never pickle.

The connections of a Rendezvous form a star: each rank sends to rank 0, which collects what ranks gather, and how far
they are, and sends all of it to each in one message: 2(W - 1) in all. Failures it passes on at once. The thread of a
rank hears messages as they come, so a failure reaches a rank that waits inside NCCL, and it looks after the work under
way a few times within a timeout.
"""

from __future__ import annotations

import atexit
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.base import LAST_CALLS, Header, Peer, doing, incomplete
from minigrad.distributed.comm.forks import close_whole, in_a_child, tell_children
from minigrad.distributed.comm.given_up import GIVE_UP, disagreement
from minigrad.distributed.comm.nccl.messages import (
    Kind,
    Message,
    bundle,
    end_writing,
    has_room,
    unbundled,
    unpacked,
    write,
)
from minigrad.distributed.comm.nccl.meetings import Meetings
from minigrad.distributed.comm.rendezvous import Rendezvous
from minigrad.distributed.comm.calls import POINT_BYTES, Point
from minigrad.distributed.comm.where import whereabouts
from minigrad.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistributedError,
    RankFailedError,
)

_GATHERED = struct.Struct("<Q")  # gatherings so far; in a state a point follows, and a line
_STATE_BYTES = _GATHERED.size + POINT_BYTES  # before that line
_AT_ONCE = (Kind.LEFT, Kind.FAILED, Kind.GAVE_UP)  # what rank 0 passes on as it comes
_KINDS: dict[str, type[DistributedError]] = {
    kind.__name__: kind
    for kind in (DistributedError, RankFailedError, CollectiveTimeoutError, CollectiveMismatchError)
}
_LOOKS = 8  # how often the thread looks after the work within a timeout, at least
_TICK_S = 0.25
_TOLD_EVERY = 256  # calls, after which the others are told how far a rank is, or sooner
_GRACE_S = 2.0
_TOLD_S = 0.5  # how much longer a rank waits in a gathering for what rank 0 says


class Control:
    """One rank's side of the talk.

    Args:
        meeting: The rendezvous, whose connections it takes over.
        timeout_s: How long `gather` waits for a rank.
        line: Gives the line of the user's code that this rank is in.
        watch: Called by the thread at each look, while nothing has failed.
        on_failure: Called by the thread, once, when this or another rank has failed.

    Attributes:
        peers: What each other rank last told.
        failure: What made this world fail, None while nothing did.
        changed: Notified at each change of the two.
        has_raised: Whether that was raised here.
        meetings: What compares the calls of ranks that do not wait for each other.
    """

    def __init__(
        self,
        meeting: Rendezvous,
        timeout_s: float,
        line: Callable[[], str],
        watch: Callable[[], None],
        on_failure: Callable[[], None],
    ) -> None:
        self.rank, self.world_size, self.timeout_s = meeting.rank, meeting.world_size, timeout_s
        self.peers = [Peer() for _ in range(self.world_size)]
        self.failure: DistributedError | None = None
        self.changed = threading.Condition()
        self._line, self._watch, self._on_failure = line, watch, on_failure
        self._links: dict[int, Connection] = meeting.take_over()
        self._sending = threading.Lock()  # one for all links: every rank gets rank 0's messages in one order
        self._last = deque[Header](maxlen=LAST_CALLS)
        self.meetings = Meetings(self)
        self._items: dict[int, dict[int, Message]] = {}
        self._came: dict[int, list[Message]] = {}  # at rank 0, what will be the items of all once they have come
        self._gathered = 0
        self._given_up: dict[int, dict[int, str]] = {}  # by number of the call, the reason of each rank
        self._outbox = deque[tuple[int | None, bytes]]()  # for the thread to send, and to whom
        self._untold: bytes | None = None
        self._told = 0, 0, ""  # points, gatherings and line that rank 0, or at rank 0 the others, know of
        self._fresh = set[int]()  # at rank 0: whose state the others have not been told
        self._handled = self._left = self._is_woken = self.has_raised = False
        self._states: dict[int, Message] = {}  # at rank 0: of the others
        self._tick_s, self._tell_at_s = min(_TICK_S, self.timeout_s / _LOOKS), 0.0
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
        mine = Message(Kind.ITEM, self.rank, number, text, data)
        if self.rank == 0:
            self._collect(mine)
        else:
            self._broadcast(mine.packed())
        with self.changed:
            self.changed.wait_for(lambda: self._is_settled(number, items), self.timeout_s)
            if len(items) < self.world_size and self.rank != 0:  # rank 0 may be about to say who is missing
                self.changed.wait_for(lambda: self._is_settled(number, items), _TOLD_S)
            self._items.pop(number)
        if len(items) < self.world_size:
            self.fail(self.absence(text, self._missing(number, items)))
            self.raise_failure()
        return [(items[rank].text, items[rank].data) for rank in range(self.world_size)]

    def _missing(self, number: int, items: dict[int, Message]) -> list[int]:
        there = (r == self.rank or r in items or peer.gathered > number for r, peer in enumerate(self.peers))
        return [rank for rank, came in enumerate(there) if not came]

    def _is_settled(self, number: int, items: dict[int, Message]) -> bool:
        gone = any(self.peers[rank].left_after is not None for rank in self._missing(number, items))
        return gone or self.failure is not None or len(items) == self.world_size

    def _collect(self, item: Message) -> None:
        """At rank 0: another rank, or this one, has come to a gathering. The last one to come lets all know."""
        with self.changed:
            self.peers[item.rank].gathered = item.number + 1
            self._fresh.add(item.rank)
            came = self._came.setdefault(item.number, [])
            came.append(item)
        if item is came[-1] and len(came) == self.world_size:
            self._broadcast(bundle(came))  # first: who has what it waits for may end the process
            del self._came[item.number]
        with self.changed:
            self._items.setdefault(item.number, {})[item.rank] = item
            self.changed.notify_all()

    def absence(self, text: str, absent: list[int]) -> DistributedError:
        """The error for a call to which ranks did not come: they have left, or are late."""
        left = [r for r in absent if self.peers[r].left_after is not None]
        known = {r: ("closed its communicator and " if r in left else "") + self.peers[r].doing for r in absent}
        if left:
            return RankFailedError(incomplete(text, self.world_size, known))
        limit = f" within {self.timeout_s:g} s"
        if not absent:
            return CollectiveTimeoutError(f"{text}: expected the data{limit}, got none, although all ranks have come")
        lines = {**{r: peer.line for r, peer in enumerate(self.peers)}, self.rank: self._line()}
        return CollectiveTimeoutError(incomplete(text, self.world_size, known, limit) + whereabouts(lines, known))

    def note(self, header: Header) -> None:
        """This rank has made another call; the others hear of it in the next tick."""
        self._last.appendleft(header)
        self.peers[self.rank].posted = header.seq + 1
        self.meetings.trail.add(header)
        if header.seq % _TOLD_EVERY == 0:
            self._tell_at_s = 0.0
            self._wake()
        elif self.meetings.is_awaited:
            self._wake()

    def give_up(self, seq: int, reason: str) -> None:
        """This rank is about to give up a call: all fail at the next look where another rank makes one there."""
        with self.changed:
            self._given_up.setdefault(seq, {})[self.rank] = reason
        self._broadcast(Message(Kind.GAVE_UP, self.rank, seq, "", reason.encode()).packed())

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
                    self._untold = self._failed(error)
            self.changed.notify_all()
        self._wake()

    def _failed(self, error: DistributedError) -> bytes:
        return Message(Kind.FAILED, self.rank, 0, type(error).__name__, str(error).encode()).packed()

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
            self.has_raised = True
            raise type(self.failure)(f"rank {self.rank}: {self.failure}")

    def leave(self) -> None:
        """Make no more calls; the others hear of it. The thread ends when the other ranks have left as well."""
        if self.failure is not None:
            self.flush()  # this rank alone may know of it, and can't tell any more
        self._broadcast(self.state(self.meetings.trail.end())._replace(kind=Kind.LEFT).packed())
        atexit.register(self._linger)
        self._left = True
        if self.rank != 0:
            with self._sending:
                for link in self._links.values():
                    end_writing(link)
        self._wake()

    def _linger(self) -> None:
        """A process that ends at once could take back what it has sent, and rank 0 passes on what others send."""
        self._thread.join(_GRACE_S)

    def _wake(self) -> None:
        if self._is_woken:
            return
        self._is_woken = True
        try:
            self._waker.send_bytes(b"")
        except OSError:
            pass  # the thread has ended

    # ------------------------------------------------------------------------------------------------ for meetings

    def post(self, message: Message, to: int | None = None) -> None:
        """Let the thread send a message: to rank 0, or from there to one rank, or to all."""
        self._outbox.append((to, message.packed()))
        self._wake()

    def state(self, point: Point, line: str = "") -> Message:
        """How far this rank is, as a message, and where, if it has stayed there."""
        mine = self.peers[self.rank]
        data = _GATHERED.pack(self._gathered) + point.packed() + line.encode()
        return Message(Kind.STATE, self.rank, mine.posted, doing(list(self._last)), data)

    @property
    def is_alone(self) -> bool:
        """Whether no other rank can be talked to any more."""
        return not self._links or all(peer.left_after is not None for peer in self._others())

    def _others(self) -> list[Peer]:
        return [peer for rank, peer in enumerate(self.peers) if rank != self.rank]

    # ------------------------------------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        try:
            while self._links or not self._left:
                self._hear(self._tick_s)
                if self.failure is None or self._left:  # the others may wait for what is found here
                    self._look()
                if self.failure is not None:
                    self._deal_with_failure()
                self._send_posted()
        finally:
            close_whole(self._waker)
            close_whole(self._woken)
            atexit.unregister(self._linger)

    def _look(self) -> None:
        if not self._left:
            try:
                self._watch()
            except Exception as error:
                self.fail(DistributedError(f"rank {self.rank}: watchdog: {error!r}"))
            self.check_given_up()
        self.meetings.look()
        now_s = time.monotonic()
        if now_s >= self._tell_at_s:
            self._tell_at_s = now_s + self._tick_s
            self._tell_states()

    def _tell_states(self) -> None:
        """Let the others know how far this rank is, and at rank 0 how far those are that have told so."""
        point = self.meetings.trail.end()
        stays = self._told[:2] == (point.done, self._gathered)
        now = (point.done, self._gathered, self._line() if stays else "")
        mine = [] if self._left or self._told == now else [self.state(point, now[2])]
        if self.rank != 0:
            if mine and self._tell(mine[0].packed()):
                self._told = now
            return
        with self.changed:
            states, self._fresh = [self._states[r] for r in sorted(self._fresh) if r in self._states], set()
        if mine or states:
            self._told = now
            self._broadcast(bundle([*mine, *states]))

    def _deal_with_failure(self) -> None:
        if self._untold is not None and self._tell(self._untold):  # first: else NCCL may tell the others, in its words
            self._untold = None
        if not self._handled:
            try:
                self._on_failure()
            finally:
                self._handled = True
        with self.changed:
            self.changed.notify_all()

    def _hear(self, timeout_s: float) -> None:
        sources = {link: rank for rank, link in self._links.items()}
        for ready in wait([*sources, self._woken], timeout_s):
            assert isinstance(ready, Connection)
            if ready is self._woken:
                self._is_woken = False
                ready.recv_bytes()
                continue
            try:
                message = ready.recv_bytes()
            except (EOFError, OSError):
                self._lose(sources[ready])
                continue
            self._take(unpacked(message), sources[ready])

    def _take(self, message: Message, source: int) -> None:
        kind, rank, number, text, data = message
        if kind == Kind.BUNDLE:
            for each in unbundled(data):
                self._take(each, source)
            return
        if self.rank == 0 and kind in _AT_ONCE:
            self._broadcast(message.packed(), source)  # first: who has what it waits for may end the process
        if self.rank == 0 and kind == Kind.ITEM:
            self._collect(message)
            return
        with self.changed:
            if kind == Kind.ITEM:
                self._items.setdefault(number, {})[rank] = message
            elif kind == Kind.GAVE_UP:
                self._given_up.setdefault(number, {})[rank] = data.decode()
            elif kind == Kind.FAILED:
                self.failure = self.failure or _KINDS[text](data.decode())
            elif kind in (Kind.STATE, Kind.LEFT):
                self._take_state(message)
            else:
                self.meetings.take(message)
            self.changed.notify_all()

    def _take_state(self, message: Message) -> None:
        peer = self.peers[message.rank]
        (gathered,) = _GATHERED.unpack_from(message.data)
        peer.posted, peer.gathered = max(peer.posted, message.number), max(peer.gathered, gathered)
        peer.doing = message.text
        if message.kind == Kind.LEFT:
            peer.left_after = message.number
        point, line = message.data[_GATHERED.size : _STATE_BYTES], message.data[_STATE_BYTES:]
        peer.line = line.decode()
        self.meetings.hear(message.rank, Point.unpacked(point))
        self._states[message.rank] = message
        self._fresh.add(message.rank)

    def _lose(self, rank: int) -> None:
        """A connection has ended: its rank has left, or died."""
        with self._sending:
            close_whole(self._links.pop(rank))
        peer = self.peers[rank]
        if peer.left_after is None:
            error = RankFailedError(f"rank {rank} is gone, its process has ended; it {peer.doing}")
            if not self._left:
                self.fail(error)
            elif self.rank == 0:  # nobody else hears of it
                self._broadcast(self._failed(error))
        with self.changed:
            self.changed.notify_all()  # who waits may be alone now

    # --------------------------------------------------------------------------------------------------- sending

    def _send_posted(self) -> None:
        while self._outbox:
            to, message = self._outbox[0]
            if to is not None:
                with self._sending:
                    if to in self._links:
                        write(self._links[to], message)
            elif not self._tell(message):
                return
            self._outbox.popleft()

    def _broadcast(self, message: bytes, source: int | None = None) -> None:
        """Send to every connection but the source's; waits for room, which the threads of the others make."""
        with self._sending:
            for rank, link in self._links.items():
                if rank != source:
                    write(link, message)

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
        if not has_room(link) or not self._sending.acquire(blocking=False):
            return False
        try:
            write(link, message)
        finally:
            self._sending.release()
        return True
