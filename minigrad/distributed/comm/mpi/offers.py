"""Messages between MPI ranks: a sender offers one, and its elements travel once the other rank has accepted it.

So ends that are not alike are found before anything moves, and nothing that MPI does waits for a rank that does not
come. Offers and answers are news as any other, and the communication threads of the two ranks deal with them, while
the ranks themselves compute or wait in a collective.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.mpi.talk import Talk
from minigrad.distributed.comm.point_to_point import (
    Envelope,
    MessageWork,
    PointToPoint,
    Post,
    unanswerable,
    unanswered,
    unlike,
)
from minigrad.distributed.comm.protocol import Work
from minigrad.errors import DistributedError

_ELEMENTS = 4  # the tag of what was accepted; 1 to 3 are those of collectives and of the talk
_IDLE_S, _SHORTEST_S, _LONGEST_S = 0.05, 2e-5, 1e-3  # how long the thread sleeps between two looks
_LATE_S = 0.5  # how long elements may be on their way when the rank that sent them has left


class Offers:
    """The messages of one rank under way.

    Args:
        mpi: The module mpi4py.MPI.
        comm: A communicator of minigrad's own.
        talk: How ranks tell each other.
        failure: What made this world fail.
        timeout_s: How long a rank is waited for.
        wake: Lets the communication thread take a look.
        fail: Makes this world fail, which the others are told.
        lines: Asks where in the user's code each rank is.
    """

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        talk: Talk,
        failure: Failure,
        timeout_s: float,
        *,
        wake: Callable[[], None],
        fail: Callable[[DistributedError], None],
        lines: Callable[[], Mapping[int, str]],
    ) -> None:
        self._mpi, self._comm, self._talk, self._failure, self._timeout_s = mpi, comm, talk, failure, timeout_s
        self._wake, self._fail, self._lines = wake, fail, lines
        self._new = deque[Post]()
        self._numbers = [0] * talk.world_size  # of offers to each rank
        self._offered: dict[tuple[int, int], Post] = {}  # by rank and number
        self._here: dict[tuple[int, int, int], deque[tuple[int, Envelope]]] = {}  # offers of others, by key
        self._asked: dict[tuple[int, int, int], deque[Post]] = {}
        self._moving: list[tuple[Any, Post]] = []
        self._nap_s = _SHORTEST_S
        talk.take_mail = self._hear

    # ------------------------------------------------------------------------------------------------ for the caller

    def add(self, post: Post) -> None:
        """Let the thread offer a message, or ask for one."""
        self._failure.raise_on(self._talk.rank)
        self._new.append(post)
        self._wake()

    def is_over(self, post: Post) -> bool:
        """Whether a message was taken; raises where it never will be."""
        if not post.over:
            self._failure.raise_on(self._talk.rank)
            if self._is_lost(post):
                self._end(self._unanswerable(post.envelope))
        return post.over

    def wait(self, post: Post) -> None:
        """Block until a message was taken.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        failure, envelope = self._failure, post.envelope
        with failure.changed:
            came = failure.changed.wait_for(lambda: self._is_settled(post), self._timeout_s)
        if not came and not post.over:
            known, tags = self._talk.peers[envelope.other].doing, self._tags(envelope)
            self._fail(unanswered(envelope, self._timeout_s, known, tags, self._lines()))
        self.is_over(post)

    def _is_settled(self, post: Post) -> bool:
        return post.over or self._failure.error is not None or self._is_lost(post)

    def _is_lost(self, post: Post) -> bool:
        return not post.met and self._talk.peers[post.envelope.other].left_after is not None

    def _unanswerable(self, envelope: Envelope) -> DistributedError:
        return unanswerable(envelope, self._talk.peers[envelope.other].known, self._tags(envelope))

    def _tags(self, envelope: Envelope) -> list[int]:
        return [] if envelope.sends else [tag for src, _, tag in list(self._here) if src == envelope.src]

    def _end(self, error: DistributedError) -> NoReturn:
        self._fail(error)
        self._failure.raise_on(self._talk.rank)
        raise error

    # ------------------------------------------------------------------------------------------------ for the thread

    def advance(self) -> None:
        """Offer, ask for and finish what can be by now; never waits."""
        if self._failure.error is not None:
            return
        busy = bool(self._new)
        while self._new:
            self._begin(self._new.popleft())
        arrived = [(request, post) for request, post in self._moving if request.Test()]
        if arrived:
            self._moving = [pair for pair in self._moving if pair not in arrived]
            with self._failure.changed:
                for _, post in arrived:
                    post.over = True
                self._failure.changed.notify_all()
        elif any(peer.left_after is not None for peer in self._talk.peers):
            self._look_for_lost()
        self._nap_s = _SHORTEST_S if busy or arrived else min(2 * self._nap_s, _LONGEST_S)

    @property
    def nap_s(self) -> float:
        """How long the thread may sleep until it looks again."""
        return self._nap_s if self._moving or self._offered or self._asked else _IDLE_S

    def _begin(self, post: Post) -> None:
        envelope = post.envelope
        if not envelope.sends:
            self._asked.setdefault(envelope.key, deque()).append(post)
            self._accept(envelope.key)
            return
        number = self._numbers[envelope.dst]
        self._numbers[envelope.dst] += 1
        self._offered[envelope.dst, number] = post
        self._talk.tell_mail(envelope.dst, [number, envelope.tag, envelope.dtype, envelope.size])

    def _hear(self, source: int, news: list[Any]) -> None:
        """An offer; or, where it is a number alone, that one of this rank's is accepted."""
        number = news[0]
        self._nap_s = _SHORTEST_S
        if len(news) == 1:
            post = self._offered.pop((source, number))
            post.met = True
            self._moving.append((self._comm.Isend(self._bytes(post.array), source, _ELEMENTS), post))
            return
        envelope = Envelope("send", source, self._talk.rank, *news[1:])
        self._here.setdefault(envelope.key, deque()).append((number, envelope))
        self._accept(envelope.key)

    def _accept(self, key: tuple[int, int, int]) -> None:
        """Accept what is offered and was asked for, in this order."""
        here, asked = self._here.get(key), self._asked.get(key)
        while here and asked and self._talk.peers[key[0]].left_after is None:
            (number, envelope), post = here.popleft(), asked.popleft()
            if not post.envelope.fits(envelope):
                self._fail(unlike(post.envelope, envelope))
                return
            post.met = True
            self._moving.append((self._comm.Irecv(self._bytes(post.array), key[0], _ELEMENTS), post))
            self._talk.tell_mail(key[0], [number])
        if not here:
            self._here.pop(key, None)
        if not asked:
            self._asked.pop(key, None)

    def _look_for_lost(self) -> None:
        """A rank has left: those that wait for it look for themselves, and what was on its way may not come."""
        deadline = time.monotonic() + _LATE_S
        for request, post in self._moving:
            if self._talk.peers[post.envelope.other].left_after is not None:
                while not request.Test():
                    if time.monotonic() > deadline:
                        self._fail(self._unanswerable(post.envelope))
                        return
                    time.sleep(_LONGEST_S)
        with self._failure.changed:
            self._failure.changed.notify_all()

    def close(self) -> None:
        """Ask for nothing any more."""
        for request, post in self._moving:
            if not post.envelope.sends:
                request.Cancel()
                request.Wait()

    def _bytes(self, array: Array) -> list[Any]:
        return [array.reshape(-1).view(np.uint8), self._mpi.BYTE]


class MpiMessages(PointToPoint):
    """The messages of an `MpiCommunicator`."""

    mail: Offers

    def _message(self, envelope: Envelope, array: Array) -> Work:
        post = Post(envelope, array)
        self.mail.add(post)
        return MessageWork(self.mail, post)
