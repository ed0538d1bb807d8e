"""What a rank on GPUs knows of its world: how far each rank is, what made all of them fail, whether it is over here."""

from __future__ import annotations

import threading
from collections.abc import Callable

from minigrad.distributed.comm.failure import ERRORS
from minigrad.distributed.comm.forks import in_a_child, tell_children
from minigrad.distributed.comm.headers import GIVE_UP, Header, Peer, departed, mismatch, timed_out
from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.nccl.star import Star
from minigrad.errors import DistributedError, RankFailedError

_GRACE_S = 2.0


class World:
    """A world as one rank knows it. Methods that take a message are the thread's, which holds `changed` then.

    Args:
        star: Sends what the others are to know.
        timeout_s: How long a call waits for a rank.
        line: Gives the line of the user's code that this rank is in.
        on_failure: Called by the thread, once, when this or another rank has failed.

    Attributes:
        peers: What each rank last told, and how far this one is.
        failure: What made this world fail, None while nothing did; the first failure wins.
        is_closed: Whether this rank has closed its communicator; what fails later is no failure of its own.
        has_raised: Whether the failure was raised here.
        changed: Notified at each change of all this.
    """

    def __init__(
        self,
        star: Star,
        timeout_s: float,
        line: Callable[[], str],
        on_failure: Callable[[], None],
    ) -> None:
        self.rank, self.world_size, self.timeout_s, self.line = star.rank, star.world_size, timeout_s, line
        self.peers = [Peer() for _ in range(self.world_size)]
        self.failure: DistributedError | None = None
        self.is_closed = self.has_raised = self._is_handled = False
        self.changed = threading.Condition()
        self._star, self._on_failure = star, on_failure
        self._untold: Message | None = None
        self._given_up: dict[int, dict[int, str]] = {}  # by number of the call, the reason of each rank
        tell_children(self)

    def forked(self) -> None:
        """See `Inherited`: the other threads are not in this process, and one may have held the condition."""
        self.changed, self.failure = threading.Condition(), in_a_child()

    # ------------------------------------------------------------------------------------------- how calls may end

    @property
    def is_over(self) -> bool:
        """Whether every further call raises."""
        return self.failure is not None or self.is_closed

    def raise_failure(self) -> None:
        """Raise what made this world fail, or that it is closed here, if one is so."""
        if self.failure is not None:
            self.has_raised = True
            raise type(self.failure)(f"rank {self.rank}: {self.failure}")
        if self.is_closed:
            raise RankFailedError(f"rank {self.rank}: the communicator was closed")

    def fail(self, error: DistributedError) -> None:
        """Fail for good, unless it is over; the thread lets the others know."""
        with self.changed:
            if not self.is_over:
                self.failure, self._untold = error, self._told(error)
            self.changed.notify_all()
        self._star.wake()

    def take_failure(self, message: Message) -> None:
        """Another rank has told why it fails."""
        if not self.is_over:
            self.failure = ERRORS[message.text](message.data.decode())

    def lose(self, rank: int) -> None:
        """A connection has ended: its rank has left, or died."""
        peer = self.peers[rank]
        if peer.left_after is None:
            error = RankFailedError(f"rank {rank} is gone, its process has ended; it {peer.doing}")
            if not self._star.has_left:
                self.fail(error)
            elif self.rank == 0:  # nobody else hears of it
                self._star.broadcast(self._told(error))
        with self.changed:
            self.changed.notify_all()  # who waits may be alone now

    def close(self) -> None:
        """Make no more calls here; no other rank fails of it."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()

    def deal_with_failure(self) -> None:
        """Tell the failure, and end what waits for other ranks; the thread calls this in each turn after one."""
        if self._untold is not None and self._star.tell(self._untold):  # first: else NCCL may say it, in its words
            self._untold = None
        if not self._is_handled:
            try:
                self._on_failure()
            finally:
                self._is_handled = True
        with self.changed:
            self.changed.notify_all()

    def await_failure(self, limit_s: float) -> None:
        """Return when something has failed, or after so long; for any thread but the star's."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_over, limit_s)

    def flush(self) -> None:
        """Return when a failure has been dealt with and told, or after a moment."""
        with self.changed:
            self.changed.wait_for(lambda: self._is_handled and self._untold is None, _GRACE_S)

    def _told(self, error: DistributedError) -> Message:
        return Message(Kind.FAILED, self.rank, 0, type(error).__name__, str(error).encode())

    # --------------------------------------------------------------------------------------- ranks that are missing

    @property
    def is_alone(self) -> bool:
        """Whether no other rank can be talked to any more."""
        others = (peer for rank, peer in enumerate(self.peers) if rank != self.rank)
        return self._star.is_cut or all(peer.left_after is not None for peer in others)

    def absence(self, text: str, absent: list[int]) -> DistributedError:
        """The error for a call to which ranks did not come: they have left, or are late."""
        left = [r for r in absent if self.peers[r].left_after is not None]
        known = {r: ("closed its communicator and " if r in left else "") + self.peers[r].doing for r in absent}
        if left:
            return departed(text, self.world_size, known)
        lines = {**{r: peer.line for r, peer in enumerate(self.peers)}, self.rank: self.line()}
        return timed_out(text, self.world_size, self.timeout_s, known, lines)

    # ------------------------------------------------------------------------------------- calls that are given up

    def give_up(self, seq: int, reason: str) -> None:
        """This rank is about to give up a call: all fail at the next look where another rank makes one there."""
        message = Message(Kind.GAVE_UP, self.rank, seq, "", reason.encode())
        with self.changed:
            self.take_given_up(message)
        self._star.broadcast(message)

    def take_given_up(self, message: Message) -> None:
        """A rank has given up a call."""
        self._given_up.setdefault(message.number, {})[message.rank] = message.data.decode()

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
                self.fail(mismatch((rank, str(Header(seq, GIVE_UP, reason)))))
