"""What is seen of MPI ranks: what each tells of itself when it hears of a failure, and else what is known of it."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from minigrad.distributed.comm.calls import in_words
from minigrad.distributed.comm.dumps import Offer, boot_id, lines_of, offer, stacks_of
from minigrad.distributed.comm.groups import Groups
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.headers import Peer, numbered
from minigrad.distributed.comm.sightings import Sighting
from minigrad.distributed.comm.where import ask, stack_of, users
from minigrad.errors import DistributedError


class Watch:
    """What this rank tells of itself, and knows of the others.

    Args:
        comm: The MpiCommunicator.
        inner: MPI's own, of minigrad.
        thread: That of the rank.
    """

    def __init__(self, comm: Any, inner: Any, thread: int) -> None:
        self._comm, self.thread = weakref.ref(comm), thread
        mine = np.array([*offer(), thread, boot_id()], np.int64)
        self._offers = np.empty((comm.world_size, mine.size), np.int64)
        inner.Allgather(mine, self._offers)

    def of_this_rank(self) -> Sighting:
        """What this rank is doing."""
        comm = self._comm()
        if comm is None:
            return Sighting(0)
        stack = stack_of(self.thread)
        return Sighting(comm.rank, tuple(comm.made()), "", "", users(stack), stack, _elsewhere(comm))

    def report(self, error: DistributedError, peers: list[Peer], found_here: bool) -> HangReport | None:
        """The report of an error, once the others have told of themselves, or after a moment.

        Args:
            peers: What is known of each rank.
            found_here: Whether it is this rank that was tired of waiting: it has those write their stacks that do not
                tell.
        """
        comm = self._comm()
        if comm is None:
            return None
        me: int = comm.rank
        ask(lambda: all(peer.sighting or peer.left_after is not None for r, peer in enumerate(peers) if r != me))
        here = boot_id()
        seen = [self.of_this_rank() if r == me else self._of(r, peer, here, found_here) for r, peer in enumerate(peers)]
        return HangReport(tuple(seen), str(error))

    def _of(self, rank: int, peer: Peer, here: int, asks: bool) -> Sighting:
        gone = "closed its communicator" if peer.left_after is not None else ""
        if isinstance(peer.sighting, Sighting):
            return Sighting(**{**vars(peer.sighting), "gone": gone})
        *offered, thread, boot = self._offers[rank].tolist()
        if gone:
            return Sighting(rank, peer.made, gone)
        if boot != here:
            return Sighting(rank, peer.made, unseen="is on another host, and did not say in time where it is")
        stack = lines_of(stacks_of(Offer(*offered)), thread) if asks else ()
        unseen = "" if stack else "did not say in time where it is"
        return Sighting(rank, peer.made, "", "", users(stack), stack, "", unseen)


def _elsewhere(comm: Any) -> str:
    """A call of another communicator of this rank's that is made, and not over."""
    top: Any = comm
    while top.parent is not None:
        top = top.parent
    below: list[Any] = [top]
    for each in below:
        below += each.groups
    for other in below:
        if other is not comm and isinstance(other, Groups):
            for made in reversed(in_words(list(other.calls))):  # type: ignore[attr-defined]
                if made.seq >= other._carrier.carried_out:  # type: ignore[attr-defined]
                    return f"{numbered(made.seq, made.group)}: {made.what} at {made.line}"
    return ""
