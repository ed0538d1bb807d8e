"""What MPI ranks tell each other beside the data: the call that each is about to make, how far it is, and failures.

Small messages, JSON in bytes, to and from each rank's communication thread. Nothing in here waits for a rank without
asking the caller, again and again, whether to go on.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.failure import ERRORS, Failure
from minigrad.distributed.comm.headers import Peer
from minigrad.distributed.comm.mpi.start import TOKEN_BYTES
from minigrad.distributed.comm.sightings import Sighting
from minigrad.distributed.comm.where import user_line
from minigrad.errors import DistributedError

_AGREE, _NEWS = 2, 3  # tags; that of data is 1
_POLL_S = 1e-3
_MOST_TOLD = 16


class Talk:
    """One rank's side of the talk.

    Args:
        mpi: The module mpi4py.MPI.
        comm: A communicator of minigrad's own.
        token: Shared by its ranks and nobody else, so that no message of an earlier world is taken for one of this.
        failure: What made this world fail, of which other ranks tell.

    Attributes:
        peers: What each rank last told, this one's own entry included.
        line: Gives the line of the user's code that this rank is in, which made this.
        take_mail: Called with a rank, and what that tells of messages.
        sight: Gives what this rank is doing.
        sighting: What it did when it heard of a failure; None while it has heard of none.
    """

    def __init__(self, mpi: Any, comm: Any, token: bytes, failure: Failure) -> None:
        self._mpi, self._comm, self._token, self._failure = mpi, comm, token, failure
        self.rank, self.world_size = int(comm.Get_rank()), int(comm.Get_size())
        self.peers = [Peer() for _ in range(self.world_size)]
        self._sending: list[tuple[Any, bytes]] = []
        self._status = mpi.Status()
        self.line = functools.partial(user_line, threading.get_ident())
        self.take_mail: Callable[[int, list[Any]], None] = lambda rank, news: None
        self.sight: Callable[[], Sighting] = lambda: Sighting(self.rank)
        self.sighting: Sighting | None = None

    # --------------------------------------------------------------------------------------------------- agreeing

    def agree(self, text: str, pause: Callable[[int], None]) -> dict[str, int]:
        """Return when all ranks have come here: each text that was brought, and the lowest rank that brought it.

        It takes log2(world_size) messages from each rank: each round doubles the ranks that a rank has heard of.

        Args:
            text: What this rank is about to do.
            pause: pause(n) when there was nothing to receive n times in a row; it may raise to give up.
        """
        seen = {text: self.rank}
        distance = 1
        while distance < self.world_size:
            self._send(_AGREE, seen, (self.rank + distance) % self.world_size)
            source, misses = (self.rank - distance) % self.world_size, 0
            while (theirs := self._receive(_AGREE, source)) is None:
                pause(misses)
                misses += 1
            for other, rank in theirs.items():
                seen[other] = min(rank, seen.get(other, rank))
            distance *= 2
        return seen

    # -------------------------------------------------------------------------------------------------------- news

    def tell_state(self, posted: int, doing: str, made: Callable[[], list[Made]]) -> None:
        """Let the others know how far this rank is; nothing is sent where nothing has changed."""
        mine = self.peers[self.rank]
        if (posted, doing) != (mine.posted, mine.doing):
            mine.posted, mine.doing = posted, doing
            self._tell({"posted": posted, "doing": doing, "made": made()})

    def tell_sighting(self, sighting: Sighting) -> None:
        """Let the others know what this rank was doing when it heard of a failure; of many, only the first."""
        for rank in range(min(self.world_size, _MOST_TOLD)):
            if rank != self.rank:
                self._send(_NEWS, {"sighting": sighting.plain()}, rank)

    def tell_failure(self, error: DistributedError) -> None:
        """Let the others know why this rank fails."""
        self._tell({"failed": type(error).__name__, "why": str(error)})

    def tell_left(self, after: int) -> None:
        """Let the others know that this rank takes part in no call beyond so many, and wait until that is sent."""
        self._tell({"left": after})
        self._mpi.Request.Waitall([request for request, _ in self._sending])
        self._sending.clear()

    def all_left(self, timeout_s: float) -> bool:
        """Whether all others have left, soon: no message of theirs can then arrive any more."""
        deadline = time.monotonic() + timeout_s
        while any(peer.left_after is None for rank, peer in enumerate(self.peers) if rank != self.rank):
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_S)
            self.listen()
        return True

    def ask_lines(self) -> None:
        """Let the others tell where they are; `peers` then says what has come."""
        self._tell({"ask": self.rank})

    def tell_mail(self, rank: int, news: list[Any]) -> None:
        """Let one rank know something of messages; its `take_mail` hears it."""
        self._send(_NEWS, {"mail": news}, rank)

    def _tell(self, news: dict[str, Any]) -> None:
        for rank in range(self.world_size):
            if rank != self.rank:
                self._send(_NEWS, news, rank)

    def listen(self) -> None:
        """Take in what has arrived; never waits."""
        while (news := self._receive(_NEWS, self._mpi.ANY_SOURCE)) is not None:
            source = self._status.Get_source()
            peer = self.peers[source]
            if "ask" in news:
                self._send(_NEWS, {"line": self.line()}, source)
            elif "line" in news:
                peer.line = news["line"]
            elif "posted" in news:
                peer.posted, peer.doing = news["posted"], news["doing"]
                peer.made = tuple(Made(*made) for made in news["made"])
            elif "sighting" in news:
                peer.sighting = Sighting.of_plain(news["sighting"])
            elif "mail" in news:
                self.take_mail(source, news["mail"])
            elif "left" in news:
                peer.left_after = news["left"]
            else:
                if self._failure.error is None:
                    self.sighting = self.sight()  # first: the rank goes on once it hears of it
                self._failure.set(ERRORS[news["failed"]](news["why"]))

    # ---------------------------------------------------------------------------------------------------- messages

    def _send(self, tag: int, message: dict[str, Any], rank: int) -> None:
        data = self._token + json.dumps(message).encode()
        self._sending = [pair for pair in self._sending if not pair[0].Test()]
        self._sending.append((self._comm.Isend([data, self._mpi.BYTE], rank, tag), data))

    def _receive(self, tag: int, source: int) -> dict[str, Any] | None:
        """The next message of this world, if one has arrived."""
        while self._comm.Iprobe(source, tag, self._status):
            data = bytearray(self._status.Get_count(self._mpi.BYTE))
            self._comm.Recv([data, self._mpi.BYTE], self._status.Get_source(), tag, self._status)
            if data[:TOKEN_BYTES] == self._token:
                message: dict[str, Any] = json.loads(data[TOKEN_BYTES:])
                return message
        return None
