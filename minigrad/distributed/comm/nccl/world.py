"""What a rank on GPUs knows of its world: how far each rank is, and what made all of them fail."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from minigrad.distributed.comm.failure import ERRORS, Failure
from minigrad.distributed.comm.headers import GIVE_UP, Header, Peer, departed, mismatch, timed_out
from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.nccl.star import Star
from minigrad.distributed.comm.where import user_line
from minigrad.errors import DistributedError, RankFailedError

_GRACE_S = 2.0


class World:
    """A world as one rank knows it. Methods that take a message are the thread's, which holds `failure.changed` then.

    Args:
        star: The connections.
        failure: What made this world fail; its `changed` is notified at each change of what is known.
        timeout_s: How long a call waits for a rank.
        on_failure: Called by the thread, once, when this or another rank has failed.

    Attributes:
        peers: What each rank last told, and how far this one is.
        line: Gives the line of the user's code that this rank is in, which made this.
    """

    def __init__(self, star: Star, failure: Failure, timeout_s: float, on_failure: Callable[[], None]) -> None:
        self.rank, self.world_size, self.failure, self.timeout_s = star.rank, star.world_size, failure, timeout_s
        self.peers = [Peer() for _ in range(self.world_size)]
        self.line = functools.partial(user_line, threading.get_ident())
        self.star, self._on_failure, self._is_handled = star, on_failure, False
        self._untold: Message | None = None
        self._given_up: dict[int, dict[int, str]] = {}  # by number of the call, the reason of each rank

    # ------------------------------------------------------------------------------------------- how calls may end

    @property
    def has_failed(self) -> bool:
        """Whether this world has failed; that this rank has closed its communicator is no failure."""
        return self.failure.error is not None and not self.failure.is_closed

    def fail(self, error: DistributedError) -> None:
        """Fail for good, unless it is over; the thread lets the others know."""
        with self.failure.changed:
            if self.failure.set(error):
                self._untold = self._told(error)
        self.star.wake()

    def take_failure(self, message: Message) -> None:
        """Another rank has told why it fails."""
        self.failure.set(ERRORS[message.text](message.data.decode()))

    def lose(self, rank: int) -> None:
        """A connection has ended: its rank has left, or died."""
        peer = self.peers[rank]
        if peer.left_after is None:
            error = RankFailedError(f"rank {rank} is gone, its process has ended; it {peer.doing}")
            if not self.star.has_left:
                self.fail(error)
            elif self.rank == 0:  # nobody else hears of it
                self.star.broadcast(self._told(error))
        with self.failure.changed:
            self.failure.changed.notify_all()  # who waits may be alone now

    def deal_with_failure(self) -> None:
        """Tell the failure, and end what waits for other ranks; the thread calls this in each turn after one."""
        if self._untold is not None and self.star.tell(self._untold):  # first: else NCCL may say it, in its words
            self._untold = None
        if not self._is_handled:
            try:
                self._on_failure()
            finally:
                self._is_handled = True
        with self.failure.changed:
            self.failure.changed.notify_all()

    def await_failure(self, limit_s: float) -> None:
        """Return when something has failed, or after so long; for any thread but the star's."""
        with self.failure.changed:
            self.failure.changed.wait_for(lambda: self.failure.error is not None, limit_s)

    def flush(self) -> None:
        """Return when a failure has been dealt with and told, or after a moment."""
        with self.failure.changed:
            self.failure.changed.wait_for(lambda: self._is_handled and self._untold is None, _GRACE_S)

    def _told(self, error: DistributedError) -> Message:
        return Message(Kind.FAILED, self.rank, 0, type(error).__name__, str(error).encode())

    # --------------------------------------------------------------------------------------- ranks that are missing

    @property
    def is_alone(self) -> bool:
        """Whether no other rank can be talked to any more."""
        others = (peer for rank, peer in enumerate(self.peers) if rank != self.rank)
        return self.star.is_cut or all(peer.left_after is not None for peer in others)

    def absence(self, text: str, absent: list[int]) -> DistributedError:
        """The error for a call to which ranks did not come: they have left, or are late."""
        known = {rank: self.peers[rank].known for rank in absent}
        if any(self.peers[rank].left_after is not None for rank in absent):
            return departed(text, self.world_size, known)
        lines = {**{r: peer.line for r, peer in enumerate(self.peers)}, self.rank: self.line()}
        return timed_out(text, self.world_size, self.timeout_s, known, lines)

    # ------------------------------------------------------------------------------------- calls that are given up

    def give_up(self, seq: int, reason: str) -> None:
        """This rank is about to give up a call: all fail at the next look where another rank makes one there."""
        message = Message(Kind.GAVE_UP, self.rank, seq, "", reason.encode())
        with self.failure.changed:
            self.take_given_up(message)
        self.star.broadcast(message)

    def take_given_up(self, message: Message) -> None:
        """A rank has given up a call."""
        self._given_up.setdefault(message.number, {})[message.rank] = message.data.decode()

    def check_given_up(self, all_came: bool = False) -> None:
        """Fail where this rank has made a call that another one gave up; forget those that all gave up.

        Args:
            all_came: Whether what all ranks have given up so far is known here.
        """
        posted = self.peers[self.rank].posted
        with self.failure.changed:
            given_up = [(seq, reasons) for seq, reasons in self._given_up.items() if seq < posted]
            for seq, reasons in given_up:
                if len(reasons) == self.world_size:
                    del self._given_up[seq]
        for seq, reasons in given_up:
            if self.rank not in reasons or all_came and len(reasons) < self.world_size:
                rank, reason = next(iter(reasons.items()))
                self.fail(mismatch((rank, str(Header(seq, GIVE_UP, reason)))))
