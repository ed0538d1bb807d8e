"""What ranks say of their calls, and how the errors word it of those that do not make one call together.

To give up is a call too, in place of the one that others may make. Where all ranks give up they agree, as in any
call, and go on. Else they do not, and that fails all of them, with the reason of the one that gave up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minigrad.distributed.comm.calls import Made
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.turns import patience
from minigrad.distributed.comm.where import whereabouts
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, DistributedError, RankFailedError

LAST_CALLS = 3  # of a rank, that are named when it is missing
GIVE_UP = "give_up"  # the kind of that call; its detail is the reason
_GIVEN_UP = re.compile(rf"call \d+(?: of group \[[^]]*\])?: {GIVE_UP}\(")


class Header(NamedTuple):
    """What one rank says that it calls; ranks compare them, so that a mismatch is an error and no hang or garbage.

    Attributes:
        seq: Number of the call on this communicator, from 0.
        kind: Name of the collective.
        detail: Reduction, root, or layout id, where there is one.
        dtype: Name of the dtype, empty for host data.
        size: Elements; -1 where ranks may differ.
        place: Where the array lies, if that has to be the same on all ranks.
        group: The name of the group of ranks that call it; empty for all.
    """

    seq: int
    kind: str
    detail: str = ""
    dtype: str = ""
    size: int = -1
    place: str = ""
    group: str = ""

    @property
    def what(self) -> str:
        """All but the number, in words."""
        size = f" of {self.size} {self.dtype}" if self.size >= 0 else ""
        place = f" in {self.place}" if self.place else ""
        return f"{self.kind}{'(' + self.detail + ')' if self.detail else ''}{size}{place}"

    def __str__(self) -> str:
        return f"{numbered(self.seq, self.group)}: {self.what}"


def numbered(seq: int, group: str) -> str:
    """Which call of which group it is, in words."""
    return f"call {seq} of {group}" if group else f"call {seq}"


@dataclass
class Peer:
    """What a rank last told of itself.

    Attributes:
        posted: Calls that it had made.
        doing: The last of them, in words.
        left_after: Calls that it took part in before it left; None while it is there.
        line: Where in the user's code it was when it was asked.
        gathered: How often it has brought something to a gathering.
        made: The last of its calls, the earliest first.
        sighting: What it told of itself when it heard of a failure, a `Sighting`; None while it has not.
    """

    posted: int = 0
    doing: str = "has made no call yet"
    left_after: int | None = None
    line: str = ""
    gathered: int = 0
    made: tuple[Made, ...] = ()
    sighting: object = None

    @property
    def known(self) -> str:
        """Whether it has left, and its last calls, in words."""
        return f"closed its communicator and {self.doing}" if self.left_after is not None else self.doing


def doing(calls: Iterable[object]) -> str:
    """What a rank was last seen doing, in words.

    Args:
        calls: The headers of its last calls, the latest first.
    """
    last, *before = [str(call) for _, call in zip(range(LAST_CALLS), calls)] or [""]
    earlier = f" (before that {'; '.join(before)})" if before else ""
    return f"last called {last}{earlier}" if last else "has made no call yet"


# ------------------------------------------------------------------------------------------ calls that are not one


def mismatch(*calls: tuple[int, str], advice: str = "") -> DistributedError:
    """The error of ranks that do not make one call.

    Args:
        calls: Of each rank its number, and the call in words.
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


def timed_out(
    call: object, world_size: int, timeout_s: float, absent: Mapping[int, str], lines: Mapping[int, str]
) -> CollectiveTimeoutError:
    """The error of a call that was waited for too long.

    Args:
        call: Its header.
        absent: What is known of each rank that did not come.
        lines: Where in the user's code each rank is; empty where it did not say.
    """
    told = _incomplete(call, world_size, f" {patience(timeout_s)}", absent)
    return CollectiveTimeoutError(told + whereabouts(lines, absent))


def departed(call: object, world_size: int, absent: Mapping[int, str]) -> RankFailedError:
    """The error of a call to which ranks can't come any more; for the arguments see `timed_out`."""
    return RankFailedError(_incomplete(call, world_size, "", absent))


def _incomplete(call: object, world_size: int, limit: str, absent: Mapping[int, str]) -> str:
    present = [rank for rank in range(world_size) if rank not in absent]
    listed = ", ".join(f"rank {rank} {known}" for rank, known in absent.items())
    listed = listed or "all have come, but their data has not"
    return f"{call}: expected all {world_size} ranks{limit}, got ranks {present}: {listed}"


def announce(comm: Communicator, what: str) -> None:
    """Say to the other ranks what comes next on all of them: one that does something else is told so, in words.

    Raises:
        CollectiveMismatchError: another rank makes another call.
    """
    comm.check_headers(what)
    with comm.device.current() as xp:
        comm.all_reduce(xp.zeros(1, np.float64), layout=what).wait()
