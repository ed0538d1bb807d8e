"""How ranks that do not wait for each other find out that they have parted, and where they meet to look into it.

What a rank has called is in the hash of its `Trail`, and rank 0 compares: a difference fails all, and the rank that
differs says which call was the first. Marks of passes may differ and mean nothing, so a difference there lets ranks
meet: each says in which pass it is, and in the latest of these all stop and tell each other. It is the threads of the
ranks that settle this, so nobody has to be anywhere; a rank that comes to the end of the pass that it said waits there
until the pass in which they meet is known.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from minigrad.distributed.comm.base import Peer
from minigrad.distributed.comm.given_up import disagreement
from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.calls import Comparison, Point, Trail
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, DistributedError


class Talk(Protocol):
    """What `Control` is here."""

    rank: int
    world_size: int
    timeout_s: float
    peers: list[Peer]
    failure: DistributedError | None
    changed: threading.Condition

    def post(self, message: Message, to: int | None = None) -> None:
        """Let the thread send a message: to rank 0, or from there to one rank, or to all."""

    def state(self, point: Point) -> Message:
        """How far this rank is."""

    def check_given_up(self) -> None:
        """Fail where this rank has made a call that another one gave up."""

    def fail(self, error: DistributedError) -> None:
        """Fail all ranks."""

    @property
    def is_alone(self) -> bool:
        """Whether no other rank can be talked to any more."""

    def raise_failure(self) -> None:
        """Raise what made this world fail, if anything did."""


class Meetings:
    """One rank's side of it. `take` and `look` belong to the thread, the other methods to the caller.

    Args:
        talk: Sends what is said here.
    """

    def __init__(self, talk: Talk) -> None:
        self._talk, self._changed = talk, talk.changed
        self.trail = Trail()
        self._comparison = Comparison(self.trail, talk.world_size)
        self._passes = 0  # ends of passes so far
        self._from: list[int] = []  # passes from which on each wrapper meets once
        self._met: dict[str, int] = {}  # by wrapper, the last of those for which it has
        self._said = self._meeting = self._named = False  # a pass was said; ranks meet now; a difference was passed on
        self._passes_said: dict[int, int] = {}  # at rank 0, by rank
        self._asked = set[int]()  # points that this rank is to tell once it is there
        self._wanted = set[int]()  # at rank 0: those for which somebody waits
        self._same_until, self._apart = 0, ""
        self._takers: dict[Kind, Callable[[Message], None]] = {
            Kind.CALLS: self._take_calls,
            Kind.MEET: self._take_meet,
            Kind.PASS: self._take_pass,
            Kind.MEET_AT: self._take_meet_at,
            Kind.TELL: self._take_tell,
            Kind.SAME: self._take_same,
        }

    # ------------------------------------------------------------------------------------------------ for the caller

    def meets(self, who: str, news: bool) -> bool:
        """At the end of a pass: whether all ranks tell each other their marks here. Waits only while that is settled.

        Args:
            who: Whose pass it is, alike on all ranks.
            news: Whether something has come up on this rank that may not be alike.
        """
        talk = self._talk
        with self._changed:
            number = self._passes
            if news and not self._is_settled(number):
                self._ask_to_meet(number)
            if not self._changed.wait_for(self._knows_where, talk.timeout_s):
                limit = f"within {talk.timeout_s:g} s"
                talk.fail(CollectiveTimeoutError(f"the end of a pass: expected to hear {limit} where ranks meet"))
            talk.raise_failure()
            start = max((at for at in self._from if at <= number), default=-1)
            self._from = [at for at in self._from if at >= start]
            self._passes += 1
            self._meeting = start > self._met.get(who, -1)
            self._met[who] = max(start, self._met.get(who, -1))
        return self._meeting

    def _knows_where(self) -> bool:
        return not self._said or self._talk.is_alone or self._talk.failure is not None

    def met(self, count: int, told: Sequence[Point]) -> None:
        """All ranks have come to one call, and were at these points before it, which are this rank's."""
        with self._changed:
            self._meeting = False
            if all(point.marks == told[0].marks for point in told):
                self._same_until, self._apart = count, ""

    def name_difference(self, points: Sequence[Point]) -> None:
        """All ranks have come to a call, and were not alike before it: return when one has said where that began.

        Args:
            points: Before the call, of each rank.
        """
        talk = self._talk
        with self._changed:
            if talk.rank == 0:
                rank = next(r for r, point in enumerate(points) if point[:2] != points[0][:2])
                self._pass_on(rank, self._comparison.same[rank], self.trail.end().done)
            self._changed.wait_for(lambda: talk.failure is not None, talk.timeout_s)

    def await_same(self, limit_s: float) -> str | None:
        """Return when all ranks that are there are found to have called what this one has so far.

        Returns:
            How their marks differ, in words, once: empty where that was said here; None where they did not come so
            far in time.

        Raises:
            CollectiveMismatchError: they have called something else. Or what made this world fail.
        """
        talk, count = self._talk, self.trail.end().done

        def is_over() -> bool:
            return talk.failure is not None or self._same_until >= count or talk.is_alone

        with self._changed:
            if not is_over():
                talk.post(Message(Kind.TELL, talk.rank, count))
                if talk.rank == 0:
                    self._wanted.add(count)
            known = self._changed.wait_for(is_over, limit_s)
            talk.raise_failure()
            apart, self._apart = self._apart, ""
            return apart if known else None

    # ------------------------------------------------------------------------------------------------ for the thread

    def hear(self, rank: int, point: Point) -> None:
        """A rank has told where it is."""
        if self._talk.rank == 0:
            self._comparison.hear(rank, point)

    def take(self, message: Message) -> None:
        """A message of one of the kinds that belong here."""
        self._takers[message.kind](message)

    def look(self) -> None:
        """Say what can be said by now."""
        with self._changed:
            end = self.trail.end().done
            for count in sorted(at for at in self._asked if at <= end):
                self._asked.remove(count)
                self._talk.post(self._talk.state(self.trail.at(count) or self.trail.end()))
            if self._talk.rank == 0:
                self._compare(end)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits until this rank has come farther."""
        return bool(self._asked or self._wanted)

    def _compare(self, end: int) -> None:
        found = self._comparison
        found.look()
        if found.unlike is not None:
            self._pass_on(*found.unlike)
            return
        if found.apart >= 0 and not self._meeting and not self._is_settled(self._passes):
            self._ask_to_meet(self._passes)
        here = [r for r, peer in enumerate(self._talk.peers) if peer.left_after is None and r != 0]
        if self._passes_said and all(rank in self._passes_said for rank in here):
            number = max(self._passes_said.values())
            self._passes_said = {}
            self._settle(number)
        same = min((found.same[rank] for rank in here), default=end)
        for count in sorted(at for at in self._wanted if at <= min(same, end)):
            self._wanted.remove(count)
            apart = f"a difference between ranks 0 and {found.apart}" if found.apart >= 0 else ""
            self._talk.post(Message(Kind.SAME, 0, count, apart))
            self._note_same(count, apart)

    def _pass_on(self, rank: int, first: int, last: int) -> None:
        """Let a rank that has made other calls say which, beside those made here."""
        self._named, passed_on = True, self._named
        if passed_on:
            return
        self._talk.check_given_up()
        words, peer = self.trail.words(first + 1, last), self._talk.peers[rank]
        if peer.left_after is None:
            self._talk.post(Message(Kind.CALLS, rank, last, "", json.dumps(list(words.items())).encode()), to=rank)
        elif self._talk.failure is None:
            self._talk.fail(_unlike(words, f"on rank {rank}, which closed its communicator and {peer.doing}"))

    def _take_calls(self, message: Message) -> None:
        self._talk.check_given_up()
        if self._talk.failure is not None:
            return
        theirs = dict(json.loads(message.data))
        mine = self.trail.words(min(theirs, default=0), message.number)
        first = next((at for at in theirs if mine.get(at, theirs[at]) != theirs[at]), None)
        if first is not None:
            self._talk.fail(disagreement((0, theirs[first]), (self._talk.rank, mine[first])))
        else:
            self._talk.fail(_unlike(theirs, f"on rank {self._talk.rank}"))

    # -------------------------------------------------------------------------------------------- where ranks meet

    def _is_settled(self, number: int) -> bool:
        return any(at >= number for at in self._from)

    def _take_meet(self, message: Message) -> None:
        with self._changed:
            if self._talk.rank != 0:
                self._said = True
                self._talk.post(Message(Kind.PASS, self._talk.rank, self._passes))
            elif not self._is_settled(message.number):
                self._ask_to_meet(message.number)

    def _ask_to_meet(self, number: int) -> None:
        if self._talk.rank != 0:
            self._said = True
            self._talk.post(Message(Kind.MEET, self._talk.rank, number))
        elif not self._passes_said:
            self._call_meeting()

    def _call_meeting(self) -> None:
        self._said = True
        self._passes_said = {0: self._passes}
        self._talk.post(Message(Kind.MEET, 0, 0))

    def _take_pass(self, message: Message) -> None:
        if self._passes_said:
            self._passes_said[message.rank] = message.number

    def _settle(self, number: int) -> None:
        self._talk.post(Message(Kind.MEET_AT, 0, number))
        self._take_meet_at(Message(Kind.MEET_AT, 0, number))

    def _take_meet_at(self, message: Message) -> None:
        with self._changed:
            self._from.append(message.number)
            self._said = False
            self._changed.notify_all()

    # ---------------------------------------------------------------------------------------------------- checks

    def _take_tell(self, message: Message) -> None:
        with self._changed:
            if self._talk.rank != 0:
                self._asked.add(message.number)
            elif message.number not in self._wanted:
                self._wanted.add(message.number)
                self._talk.post(Message(Kind.TELL, 0, message.number))

    def _take_same(self, message: Message) -> None:
        self._note_same(message.number, message.text)

    def _note_same(self, count: int, apart: str) -> None:
        with self._changed:
            if count > self._same_until:
                self._same_until, self._apart = count, apart
            self._changed.notify_all()


def _unlike(words: dict[int, str], where: str) -> DistributedError:
    """The error where the call that differs can't be named."""
    mine = f"{next(iter(words.values()))} and later ones" if words else "some"
    return CollectiveMismatchError(
        f"expected all ranks to make one call, got {mine} on rank 0 and others {where}: debug=True names the first"
    )
