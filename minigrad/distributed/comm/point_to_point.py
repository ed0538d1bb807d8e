"""Messages from one rank to another: what is checked and named of them; a transport moves their bytes.

The n-th message from one rank to another with one tag goes to the n-th call that asks for such a one: other ranks, and
the order of other calls, do not matter. A sender waits for nobody: its work is done once the other rank has taken the
message. What goes wrong with a message fails the world, as with a collective.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple, Protocol

from minigrad.arguments import as_integer
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.calls import Kept, user_place
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.turns import patience
from minigrad.distributed.comm.where import whereabouts
from minigrad.errors import ArgumentError, CollectiveMismatchError, CollectiveTimeoutError, RankFailedError

TAGS = 2**31
_SENDS, _TAKES = "send", "recv"


class Envelope(NamedTuple):
    """What one of the two ranks says of a message.

    Attributes:
        kind: "send" of the rank that sends it, "recv" of the one that takes it.
        src, dst, tag: From whom it is, to whom, and which of the messages between the two.
        dtype: Name of the dtype.
        size: Elements.
        group: The name of the group of ranks whose numbers these are; empty for all.
    """

    kind: str
    src: int
    dst: int
    tag: int
    dtype: str
    size: int
    group: str = ""

    @property
    def key(self) -> tuple[int, int, int]:
        """What messages have in common that are taken in the order in which they were sent."""
        return self.src, self.dst, self.tag

    @property
    def sends(self) -> bool:
        """Whether it is of the rank that sends."""
        return self.kind == _SENDS

    @property
    def rank(self) -> int:
        """Whose words these are."""
        return self.src if self.sends else self.dst

    @property
    def other(self) -> int:
        """The rank at the other end."""
        return self.dst if self.sends else self.src

    def fits(self, theirs: Envelope) -> bool:
        """Whether the other end says the same of the array."""
        return (self.dtype, self.size) == (theirs.dtype, theirs.size)

    def __str__(self) -> str:
        other, group = f"{'to' if self.sends else 'from'} {self.other}", f" in {self.group}" if self.group else ""
        return f"{self.kind}({other}, tag {self.tag}) of {self.size} {self.dtype}{group}"


class PointToPoint(Communicator):
    """The messages of a `Front`: a transport implements `_message`."""

    calls: deque[Kept]
    group: str = ""

    def send(self, array: Array, dst: int, tag: int = 0) -> Work:
        """Let rank dst have the elements of array."""
        array = self._check("send", array, written=False)
        return self._start_message(self._envelope(_SENDS, "dst", dst, tag, array), array)

    def recv(self, array: Array, src: int, tag: int = 0) -> Work:
        """Overwrite array by what rank src sends."""
        array = self._check("recv", array)
        return self._start_message(self._envelope(_TAKES, "src", src, tag, array), array)

    def _message(self, envelope: Envelope, array: Array) -> Work:
        """Start to send an array, or to overwrite it by a message, as the envelope says; never waits."""
        raise NotImplementedError

    def _start_message(self, envelope: Envelope, array: Array) -> Work:
        self.calls.appendleft((envelope, *user_place()))
        return self._message(envelope, array)

    def _envelope(self, kind: str, name: str, other: int, tag: int, array: Array) -> Envelope:
        who = f"rank {self.rank}: {kind}"
        other, tag = as_integer(who, name, other, 0, self.world_size), as_integer(who, "tag", tag, 0, TAGS)
        if other == self.rank:
            alone = ", and there is none" if self.world_size == 1 else ": copy the array"
            raise ArgumentError(f"{who}: expected {name} to be another rank than {other}{alone}, got itself")
        src, dst = (self.rank, other) if kind == _SENDS else (other, self.rank)
        return Envelope(kind, src, dst, tag, array.dtype.name, int(array.size), self.group)

    def _check(self, who: str, array: Array = ..., /, *, written: bool = True) -> Array:
        """See `Front`."""
        raise NotImplementedError


# ------------------------------------------------------------------------------------- messages that do not go over


def unlike(one: Envelope, other: Envelope) -> CollectiveMismatchError:
    """The error of two ends that do not say the same of one message."""
    sent, asked = (one, other) if one.sends else (other, one)
    return CollectiveMismatchError(
        f"expected one dtype and size at both ends of a message, got {sent} on rank {sent.src} and {asked} on rank "
        f"{asked.dst}"
    )


def unanswered(
    envelope: Envelope, timeout_s: float, known: str, tags: Collection[int], lines: Mapping[int, str]
) -> CollectiveTimeoutError:
    """The error of a message whose other end was waited for too long.

    Args:
        known: What the other rank was last seen doing.
        tags: Of messages that it has sent to this rank and nobody has taken; or, where this rank sends, of those that
            it asks this rank for.
        lines: Where in the user's code each rank is; empty where it did not say.
    """
    told = f"{_expected(envelope)} {patience(timeout_s)}, got {_other_tags(envelope, tags)}: rank {envelope.other}"
    return CollectiveTimeoutError(f"{told} {known}{whereabouts(lines, [envelope.other])}")


def unanswerable(envelope: Envelope, known: str, tags: Collection[int] = ()) -> RankFailedError:
    """The error of a message whose other end can't come any more; for the arguments see `unanswered`."""
    got = _other_tags(envelope, tags)
    return RankFailedError(f"{_expected(envelope)}, got {got}: rank {envelope.other} {known}")


def _expected(envelope: Envelope) -> str:
    return f"{envelope}: expected rank {envelope.other} to {'take' if envelope.sends else 'send'} it"


def _other_tags(envelope: Envelope, tags: Collection[int]) -> str:
    listed = " and ".join(map(str, sorted(set(tags) - {envelope.tag})))  # one that comes just now is too late
    if not listed:
        return "nothing"
    return f"a recv of tag {listed} instead" if envelope.sends else f"what it sent with tag {listed} instead"


class Post:
    """One end of a message, with this rank's array.

    Args:
        envelope: What this rank says of it.
        array: What is sent, or overwritten.

    Attributes:
        met: Whether the other end is known, so that the elements are on their way.
        over: Whether they are there.
    """

    __slots__ = ("envelope", "array", "met", "over")

    def __init__(self, envelope: Envelope, array: Any) -> None:
        self.envelope, self.array = envelope, array
        self.met = self.over = False


class Mail(Protocol):
    """What moves the messages of one rank."""

    def is_over(self, post: Post) -> bool:
        """Whether a message was taken, without waiting; raises where it never will be."""

    def wait(self, post: Post) -> None:
        """Block until the message was taken; raise what it failed of."""


class MessageWork:
    """The work of one end of a message under way.

    Args:
        owner: What lives as long as this work does: a communicator that its mail knows but does not hold.
    """

    __slots__ = ("_mail", "_post", "_owner")
    span = None

    def __init__(self, mail: Mail, post: Post, owner: object = None) -> None:
        self._mail, self._post, self._owner = mail, post, owner

    def done(self) -> bool:
        """Whether the message was taken."""
        return self._mail.is_over(self._post)

    def wait(self, host: bool = False) -> None:
        """Block until the message was taken."""
        if not self._post.over:
            self._mail.wait(self._post)
