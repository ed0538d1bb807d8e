"""The thread of an MPI rank that carries its calls out, one after the other, so that they go on while it computes.

MPI's own nonblocking collectives move only while somebody asks for them. A call has two steps. First the ranks
*agree*: they tell each other what they are about to do, and wait politely until all have come; there a mismatch, a
missing rank or a failed one becomes an error, before anything can hang inside MPI. Then the data travels.
"""

from __future__ import annotations

import os
import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Optional, TypeVar

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.calls import Kept, Made, in_words
from minigrad.distributed.comm.dumps import keep_offer
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.headers import LAST_CALLS, Header, doing, given_up, mismatch, timed_out
from minigrad.distributed.comm.mpi.offers import Offers
from minigrad.distributed.comm.mpi.sightings import Watch
from minigrad.distributed.comm.mpi.talk import Talk
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.comm.where import ask
from minigrad.errors import DistributedError, RankFailedError

_NEWS_S = 0.05  # how often a rank tells how far it is
_SPINS, _NAP_S, _LONGEST_NAP_S = 50, 2e-5, 1e-3
_GRACE_S, _PARTING_S = 2.0, 0.2


class MpiWork:
    """A posted collective.

    Attributes:
        header: What it is.
        execute: Moves the data; blocks until all ranks do.
        clock: This rank's.
        finished: Whether the result is there.
        span: See `Work.span`.
    """

    __slots__ = ("_carrier", "header", "execute", "clock", "finished", "span")

    def __init__(self, carrier: Carrier, header: Header, execute: Callable[[], object], clock: Clock) -> None:
        self._carrier, self.header, self.execute, self.clock = carrier, header, execute, clock
        self.finished = False
        self.span: tuple[float, float] | None = None

    def done(self) -> bool:
        """Whether the result is there; raises what `wait` would where it never will be."""
        if not self.finished:
            self._carrier.raise_failure()
        return self.finished

    def wait(self, host: bool = False) -> None:
        """Block until the result is there."""
        self._carrier.complete(self)


T = TypeVar("T")


class Carrier:
    """One rank's thread, and what waits for it.

    Args:
        talk: How ranks agree, and hear of each other.
        failure: What made this world fail.
        calls: The last ones of this rank, the latest first.
        timeout_s: How long a call waits for a rank.
        mpi: The module mpi4py.MPI.
        comm: A communicator of minigrad's own, which is given back where all ranks do.
        watch: What this rank tells of itself where something has failed.

    Attributes:
        carried_out: How many calls.
        thread: It.
        mail: The messages of this rank under way, with which it deals too.
        post: post(work) lets it carry out a collective.
    """

    def __init__(
        self, talk: Talk, failure: Failure, calls: deque[Kept], timeout_s: float, mpi: Any, comm: Any, watch: Watch
    ) -> None:
        self._talk, self._failure, self._calls, self._timeout_s, self._comm = talk, failure, calls, timeout_s, comm
        self._untold: DistributedError | None = None
        self._asks = self._is_over = self._is_whole = False
        self.carried_out, self._agreeing_on, self._told_at_s = 0, "", 0.0
        self._watch, self._has_shown, self._found_here = watch, False, False
        talk.sight = watch.of_this_rank
        failure.look = lambda error: watch.report(error, talk.peers, self._found_here)
        self._queue = queue.SimpleQueue[Optional[MpiWork]]()
        self.post = self._queue.put
        self.mail = Offers(mpi, comm, talk, failure, timeout_s, wake=self._wake, fail=self._fail, lines=self._lines)
        self.thread = new_thread(self._serve, name=f"mpi-rank-{talk.rank}")
        self.thread.start()

    # ------------------------------------------------------------------------------------------------ for the caller

    def complete(self, work: MpiWork) -> None:
        """Block until a call is over.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        failure = self._failure
        with failure.changed:
            came = failure.changed.wait_for(lambda: work.finished or failure.error is not None, self._timeout_s)
        if work.finished:
            return
        if not came:
            self._fail(self._timeout(work.header))
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what made this world fail, if anything did."""
        self._failure.raise_on(self._talk.rank)

    def tell(self, error: DistributedError) -> None:
        """Let the other ranks know why this one fails."""
        self._untold = error
        self.post(None)

    def flush(self, limit_s: float) -> None:
        """Return when a failure is told, or after so long."""
        with self._failure.changed:
            self._failure.changed.wait_for(lambda: self._untold is None, limit_s)

    def stop(self, whole: bool) -> None:
        """Make no more calls.

        Args:
            whole: Whether nothing has failed, so that MPI's communicator may be given back.
        """
        self._is_whole, self._is_over = whole, True
        self.post(None)
        self.thread.join(_GRACE_S)

    @property
    def doing(self) -> str:
        """What this rank was last seen doing, in words."""
        return doing(call for call, _, _ in list(self._calls))

    def _timeout(self, header: Header) -> DistributedError:
        peers, mine = self._talk.peers, self._talk.rank
        absent = {r: peer.doing for r, peer in enumerate(peers) if r != mine and peer.posted <= header.seq}
        return timed_out(header, len(peers), self._timeout_s, absent, self._lines())

    def _lines(self) -> dict[int, str]:
        """Where in the user's code each rank is, as far as they say."""
        peers, mine = self._talk.peers, self._talk.rank
        self._asks = True
        ask(lambda: all(peer.line for r, peer in enumerate(peers) if r != mine))
        return {r: peer.line for r, peer in enumerate(peers)} | {mine: self._talk.line()}

    def _wake(self) -> None:
        self.post(None)

    def _fail(self, error: DistributedError) -> None:
        if self._failure.set(error):
            self._found_here = True
            self.tell(error)

    # ------------------------------------------------------------------------------------------------ for the thread

    def _serve(self) -> None:
        try:
            while not self._is_over:
                self._serve_next()
            self._told_at_s = 0.0  # what this rank did last is told with its leaving
            self._attend()
            self._talk.tell_left(self.carried_out)
            self.mail.close()
            if self._is_whole and self._talk.all_left(_PARTING_S):
                self._comm.Free()
        except Exception as error:
            self._failure.set(DistributedError(f"mpi: {self.doing}: {error!r}"))

    def _serve_next(self) -> None:
        work = next_of(self._queue, self.mail.nap_s)
        self._attend()
        if work is None or self._failure.error is not None:
            return
        try:
            self._carry_out(work)
        except DistributedError as error:
            self._fail(error)
        except Exception as error:
            self._fail(DistributedError(f"{work.header}: expected a reduction that works, got {error!r}"))
        self._attend()

    def _carry_out(self, work: MpiWork) -> None:
        self._agreeing_on = str(work.header)
        seen = self._talk.agree(self._agreeing_on, self._pause)
        if len(seen) > 1 and not all(map(given_up, seen)):
            raise mismatch(*sorted((rank, text) for text, rank in seen.items()))
        started_s = work.clock.now_s()
        work.execute()
        work.span = started_s, work.clock.now_s()
        with self._failure.changed:
            self.carried_out += 1
            work.finished = True
            self._failure.changed.notify_all()

    def _attend(self) -> None:
        """Hear the news of the other ranks, and tell them this rank's; never waits."""
        self._talk.listen()
        self.mail.advance()
        if self._untold is not None:
            self._talk.tell_failure(self._untold)
            with self._failure.changed:
                self._untold = None
                self._failure.changed.notify_all()
        if self._failure.error is not None and not self._failure.is_closed and not self._has_shown:
            self._has_shown = True
            self._talk.tell_sighting(self._talk.sighting or self._watch.of_this_rank())
        if self._asks:
            self._asks = False
            self._talk.ask_lines()
        now_s = time.monotonic()
        if now_s - self._told_at_s > _NEWS_S:
            self._told_at_s = now_s
            keep_offer()
            if self._calls:
                known = self._talk.peers[self._talk.rank].posted
                posted = next((call.seq + 1 for call, _, _ in list(self._calls) if isinstance(call, Header)), known)
                self._talk.tell_state(posted, self.doing, self._last_made)

    def _last_made(self) -> list[Made]:
        return list(reversed(in_words(list(self._calls)[:LAST_CALLS])))

    def _pause(self, misses: int) -> None:
        """Wait a little for a rank that has not come; gives up where this rank has failed, or that rank has left."""
        if misses < _SPINS:
            os.sched_yield()
            return
        time.sleep(min(_LONGEST_NAP_S, _NAP_S * (misses - _SPINS + 1)))
        self._attend()
        if self._failure.error is not None:
            raise self._failure.error
        peers, call = self._talk.peers, self.carried_out
        gone = [r for r, peer in enumerate(peers) if peer.left_after is not None and peer.left_after <= call]
        if gone:
            listed = ", ".join(f"rank {r} {peers[r].known}" for r in gone)
            raise RankFailedError(f"{self._agreeing_on}: expected all {len(peers)} ranks, but {listed}")


def next_of(posted: queue.SimpleQueue[T | None], timeout_s: float) -> T | None:
    """What was posted first; None where nothing comes in this time. For one thread that takes.

    The look without a timeout is not for speed. An item that was there when it was taken leaves the lock of a
    SimpleQueue open; up to Python 3.12 a get that passes it, finds nothing, and has no time left, waits for ever.
    """
    try:
        return posted.get_nowait()
    except queue.Empty:
        pass
    try:
        return posted.get(timeout=timeout_s)
    except queue.Empty:
        return None
