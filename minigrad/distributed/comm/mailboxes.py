"""Messages between the threads of one world: whoever comes second, sender or taker, copies the elements."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from minigrad.backend.device import device_of, to_device
from minigrad.backend.dtypes import Array
from minigrad.backend.stream import streams_of
from minigrad.distributed.comm.failure import Failure
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
from minigrad.distributed.comm.turns import hand_over, wait_in
from minigrad.distributed.comm.where import user_line
from minigrad.errors import DistributedError

_Key = tuple[int, int, int]


class Mailboxes:
    """What the ranks of a world have sent and nobody has taken yet, and what they ask for and nobody has sent.

    Args:
        failure: What made this world fail.
        timeout_s: How long a rank is waited for.
        left: The ranks that make no more calls, and why.
        doing: What a rank was last seen doing, in words.
        threads: Those of the ranks.
    """

    def __init__(
        self,
        failure: Failure,
        timeout_s: float,
        left: Mapping[int, str],
        doing: Callable[[int], str],
        threads: Mapping[int, int],
    ) -> None:
        self._failure, self._timeout_s = failure, timeout_s
        self._left, self._doing, self._threads = left, doing, threads
        self._sent: dict[_Key, deque[Post]] = {}
        self._asked: dict[_Key, deque[Post]] = {}

    def add(self, post: Post) -> None:
        """Bring one end of a message; where the other is there, copy the elements."""
        failure, envelope = self._failure, post.envelope
        mine, theirs = (self._sent, self._asked) if envelope.sends else (self._asked, self._sent)
        with failure.changed:
            failure.raise_on(envelope.rank)
            waiting = theirs.get(envelope.key)
            if not waiting or envelope.other in self._left:
                mine.setdefault(envelope.key, deque()).append(post)
                return
            other = waiting.popleft()
            if not waiting:
                del theirs[envelope.key]
            if not envelope.fits(other.envelope):
                failure.set(unlike(envelope, other.envelope))
                failure.raise_on(envelope.rank)
            post.met = other.met = True
        try:
            source, target = (post, other) if envelope.sends else (other, post)
            _copy(source.array, target.array)
        except BaseException as error:
            failure.set(DistributedError(f"{envelope}: expected elements that can be copied, got {error!r}"))
            raise
        with failure.changed:
            post.over = other.over = True
            failure.changed.notify_all()

    def is_over(self, post: Post) -> bool:
        """Whether a message was taken; raises where it never will be."""
        hand_over()
        if not post.over:
            with self._failure.changed:
                self._look(post)
        return post.over

    def wait(self, post: Post) -> None:
        """Block until a message was taken.

        Raises:
            CollectiveTimeoutError, CollectiveMismatchError, RankFailedError: see `Work.wait`.
        """
        failure = self._failure
        with failure.changed:
            came = wait_in(failure.changed, lambda: self._is_settled(post), self._timeout_s)
            if not came:
                lines = {rank: user_line(thread) for rank, thread in self._threads.items()}
                failure.set(unanswered(post.envelope, self._timeout_s, *self._known(post.envelope), lines))
            self._look(post)

    def _is_settled(self, post: Post) -> bool:
        return post.over or self._failure.error is not None or post.envelope.other in self._left and not post.met

    def _look(self, post: Post) -> None:
        envelope, failure = post.envelope, self._failure
        if post.over:
            return
        if failure.error is None and envelope.other in self._left and not post.met:
            known, tags = self._known(envelope)
            failure.set(unanswerable(envelope, f"{self._left[envelope.other]} and {known}", tags))
        failure.raise_on(envelope.rank)

    def _known(self, envelope: Envelope) -> tuple[str, list[int]]:
        """What the other rank was last seen doing, and with which tags it waits for this one."""
        theirs = self._asked if envelope.sends else self._sent
        return self._doing(envelope.other), [tag for *ends, tag in theirs if ends == [envelope.src, envelope.dst]]


class ThreadMessages(PointToPoint):
    """The messages of a `ThreadCommunicator`."""

    mail: Mailboxes

    def _message(self, envelope: Envelope, array: Array) -> Work:
        post, mail = Post(envelope, array), self.mail
        hand_over()
        self._settle()
        mail.add(post)
        return MessageWork(mail, post)

    def _settle(self) -> None:
        """See `ThreadCommunicator`."""
        raise NotImplementedError


def _copy(source: Array, target: Array) -> None:
    """Whatever devices the two are on; on a device it is over when that of the target has done it."""
    device = device_of(target)
    moved = to_device(source, device)
    with device.current():
        target[...] = moved.reshape(target.shape)
        streams_of(device).get_current_stream().synchronize()
