"""Calls that a rank gives up, since what was to make them has failed: a backward, say.

To give up is a call too, in place of the one that others may make. Where all ranks give up they agree, as in any
call, and go on. Else they do not, and that fails all of them, with the reason of the one that gave up.
"""

from __future__ import annotations

import re

from minigrad.distributed.comm.base import Communicator
from minigrad.errors import CollectiveMismatchError, DistributedError, RankFailedError

GIVE_UP = "give_up"  # the kind of that call; its detail is the reason
_GIVEN_UP = re.compile(rf"call \d+: {GIVE_UP}\(")


def give_up(comm: Communicator, reason: str) -> None:
    """Say that this rank does not make the call that comes next, and why; never waits, and raises nothing.

    Where all ranks give up at the same place they go on as if nothing had been. Else all fail, as by `abort`: those
    that make another call there at once, and this one at a later call. A communicator that can't do so aborts.
    """
    try:
        getattr(comm, "give_up", comm.abort)(reason)
    except DistributedError:
        pass  # it has failed already, which every later call says


def disagreement(*calls: tuple[int, str], advice: str = "") -> DistributedError:
    """The error of ranks that do not make one call.

    Args:
        calls: Of each its number, and the call in words.
        advice: What to do about it, where none gave up.
    """
    for rank, text in calls:
        if given_up(text):
            return RankFailedError(f"rank {rank} aborted: {_GIVEN_UP.split(text, 1)[-1].removesuffix(')')}")
    listed = " and ".join(f"{text} on rank {rank}" for rank, text in calls)
    return CollectiveMismatchError(f"expected all ranks to make one call, got {listed}{advice}")


def given_up(text: str) -> bool:
    """Whether a call in words, `str(Header)`, says that a rank gave up."""
    return _GIVEN_UP.match(text) is not None
