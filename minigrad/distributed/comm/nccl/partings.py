"""How ranks that do not wait for each other find out that they have parted.

What a rank has called is in the hash of its `Trail`, and rank 0 compares: a difference fails all, and the rank that
differs says which call was the first. Marks of passes may differ and mean nothing, so a difference there lets ranks
meet. A rank that is about to keep what it has asks all others to say how far they are once they are as far as it is,
and hears of rank 0 that they are alike.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from minigrad.distributed.comm.headers import mismatch
from minigrad.distributed.comm.nccl.meetings import Meetings
from minigrad.distributed.comm.nccl.messages import Kind, Message
from minigrad.distributed.comm.nccl.progress import Progress
from minigrad.distributed.comm.nccl.trail import Comparison, Waypoint
from minigrad.distributed.comm.nccl.world import World
from minigrad.errors import CollectiveMismatchError, DistributedError


class Partings:
    """One rank's side of it. Methods that take a message are the thread's, which holds `Failure.changed` then.

    Args:
        world: What is known, and its connections.
        progress: How far this rank is.
        meetings: Where marks that differ are looked into.
    """

    def __init__(self, world: World, progress: Progress, meetings: Meetings) -> None:
        self._world, self._star, self._meetings = world, world.star, meetings
        self._trail, self._awaited, self._state = progress.trail, progress.awaited, progress.state
        self._comparison = Comparison(self._trail, world.world_size)
        self._is_named = False  # a difference was passed on
        self._same_until, self._apart = 0, ""

    # ------------------------------------------------------------------------------------------------ for the caller

    def met(self, count: int, told: Sequence[Waypoint]) -> None:
        """All ranks have come to one call, and were at these points before it, which are this rank's."""
        with self._world.failure.changed:
            self._meetings.is_on = False
            if all(point.marks == told[0].marks for point in told):
                self._same_until, self._apart = count, ""

    def name(self, points: Sequence[Waypoint]) -> None:
        """All ranks have come to a call, and were not alike before it: return when one has said where that began.

        Args:
            points: Before the call, of each rank.
        """
        world = self._world
        with world.failure.changed:
            if world.rank == 0:
                rank = next(r for r, point in enumerate(points) if point[:2] != points[0][:2])
                self._pass_on(rank, self._comparison.same[rank], self._trail.end().done)
            world.failure.changed.wait_for(lambda: world.failure.error is not None, world.timeout_s)

    def await_same(self, limit_s: float) -> str | None:
        """Return when all ranks that are there are found to have called what this one has so far.

        Returns:
            How their marks differ, in words, once: empty where that was said here; None where they did not come so
            far in time.

        Raises:
            CollectiveMismatchError: they have called something else. Or what made this world fail.
        """
        world, count = self._world, self._trail.end().done

        def is_known() -> bool:
            return world.failure.error is not None or self._same_until >= count or world.is_alone

        with world.failure.changed:
            if not is_known():
                self._star.post(Message(Kind.TELL, world.rank, count))
                if world.rank == 0:
                    self._awaited.add(count)
            known = world.failure.changed.wait_for(is_known, limit_s)
            world.failure.raise_on(world.rank)
            apart, self._apart = self._apart, ""
            return apart if known else None

    # ------------------------------------------------------------------------------------------------ for the thread

    def hear(self, rank: int, point: Waypoint) -> None:
        """A rank has told where it is."""
        if self._world.rank == 0:
            self._comparison.hear(rank, point)

    def look(self) -> None:
        """Say what can be said by now."""
        with self._world.failure.changed:
            if self._world.rank == 0:
                self._compare()
                return
            end = self._trail.end()
            for count in sorted(at for at in self._awaited if at <= end.done):
                self._awaited.remove(count)
                self._star.post(self._state(self._trail.at(count) or end))

    def _compare(self) -> None:
        found, end = self._comparison, self._trail.end().done
        found.look()
        if found.unlike is not None:
            self._pass_on(*found.unlike)
            return
        if found.apart >= 0:
            self._meetings.call()
        here = [r for r, peer in enumerate(self._world.peers) if peer.left_after is None and r != 0]
        self._meetings.look(here)
        same = min((found.same[rank] for rank in here), default=end)
        for count in sorted(at for at in self._awaited if at <= min(same, end)):
            self._awaited.remove(count)
            apart = f"a difference between ranks 0 and {found.apart}" if found.apart >= 0 else ""
            message = Message(Kind.SAME, 0, count, apart)
            self._star.post(message)
            self.take_same(message)

    def take_tell(self, message: Message) -> None:
        """Somebody waits until this rank is so far; rank 0 asks all others too."""
        if self._world.rank == 0 and message.number not in self._awaited:
            self._star.post(Message(Kind.TELL, 0, message.number))
        self._awaited.add(message.number)

    def take_same(self, message: Message) -> None:
        """Rank 0 says that all are alike so far, but for such marks."""
        if message.number > self._same_until:
            self._same_until, self._apart = message.number, message.text
        self._world.failure.changed.notify_all()

    # ----------------------------------------------------------------------------------------- the first that differs

    def _pass_on(self, rank: int, first: int, last: int) -> None:
        """Let a rank that has made other calls say which, beside those made here."""
        self._is_named, passed_on = True, self._is_named
        if passed_on:
            return
        self._world.check_given_up()
        words, peer = self._trail.words(first + 1, last), self._world.peers[rank]
        if peer.left_after is None:
            self._star.post(Message(Kind.CALLS, rank, last, "", json.dumps(list(words.items())).encode()), to=rank)
        else:
            self._world.fail(_unlike(words, f"on rank {rank}, which {peer.known}"))

    def take_calls(self, message: Message) -> None:
        """Rank 0 has made these calls, and this rank others: say which was the first."""
        self._world.check_given_up()
        theirs = dict(json.loads(message.data))
        mine = self._trail.words(min(theirs, default=0), message.number)
        first = next((at for at in theirs if mine.get(at, theirs[at]) != theirs[at]), None)
        if first is not None:
            self._world.fail(mismatch((0, theirs[first]), (self._world.rank, mine[first])))
        else:
            self._world.fail(_unlike(theirs, f"on rank {self._world.rank}"))


def _unlike(words: dict[int, str], where: str) -> DistributedError:
    """The error where the call that differs can't be named."""
    mine = f"{next(iter(words.values()))} and later ones" if words else "some"
    return CollectiveMismatchError(
        f"expected all ranks to make one call, got {mine} on rank 0 and others {where}: debug=True names the first"
    )
