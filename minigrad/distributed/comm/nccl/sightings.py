"""What is seen of ranks on GPUs: all calls of this one, and of the others what they last told of themselves."""

from __future__ import annotations

import re
import weakref
from collections import deque

from minigrad.distributed.comm.calls import Kept, Made, in_words
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.headers import Peer
from minigrad.distributed.comm.nccl.world import World
from minigrad.distributed.comm.sightings import Sighting
from minigrad.errors import DistributedError

_CITED = re.compile(r"(call \d+(?: of group \[[^]]*\])?: (?:(?! on rank ).)+) on rank (\d+)")
_CAME = re.compile(r"(call \d+(?: of group \[[^]]*\])?: [^:]*): expected all \d+ ranks[^[]*\[([\d, ]*)\]")
_ABSENT = re.compile(r"rank (\d+) (?:last called|has made no call|closed|is gone|did not)")
_LAYOUT = re.compile(
    r"got (call \d+(?: of group \[[^]]*\])?: \w+\(\w+) .*?(\) of \d+ \w+) on rank \d+ and layout (.*?) on rank (\d+)"
)
_NUMBERED = re.compile(r"call (\d+)(?: of (group \[[^]]*\]))?: (.*)", re.DOTALL)


def look_at(world: World, calls: deque[Kept]) -> None:
    """Let the errors of a world have a report.

    Args:
        calls: The last ones of this rank, the latest first.
    """
    found = weakref.ref(world)
    world.failure.look = lambda error: _report(found(), calls, error)


def _report(world: World | None, calls: deque[Kept], error: DistributedError) -> HangReport | None:
    if world is None:
        return None
    seen = []
    for rank, peer in enumerate(world.peers):
        if rank == world.rank:
            mine = list(reversed(in_words(list(calls))))
            mine += [made._replace(line=world.line()) for made in _cited(str(error), rank) if made.seq > _last(mine)]
            seen.append(Sighting(rank, tuple(mine), at=world.line()))
        else:
            gone = "closed its communicator" if peer.left_after is not None else ""
            gone = "is gone, its process has ended" if f"rank {rank} is gone, its process" in str(error) else gone
            unseen, known = "" if peer.line else "did not say in time where it is", _known(peer, str(error), rank)
            if not known and str(rank) not in _ABSENT.findall(str(error)):
                unseen = unseen or "did not say in time which calls it has made"
            stack = (peer.line,) if peer.line else ()
            seen.append(Sighting(rank, known, gone, "", peer.line, stack, "", unseen))
    return HangReport(tuple(seen), str(error))


def _last(calls: list[Made]) -> int:
    return max([made.seq for made in calls], default=-1)


def _known(peer: Peer, error: str, rank: int) -> tuple[Made, ...]:
    """The last calls of a rank without a gap, the earliest first: that which the error cites, and those before.

    None where the error does not say how far it is: what it told last may be long ago.
    """
    cited = _cited(error, rank)
    if not cited and str(rank) not in _ABSENT.findall(error):
        return ()
    calls = {made.seq: made for made in (*_told(peer), *cited)}
    first = last = max(calls, default=-1)
    while first - 1 in calls:
        first -= 1
    return tuple(calls[seq] for seq in range(first, last + 1) if seq in calls)


def _told(peer: Peer) -> tuple[Made, ...]:
    """The last calls of a rank as it has told them; the lines that made them it does not tell.

    Example:
        >>> _told(Peer(doing="last called call 4: barrier (before that call 3: all_reduce(SUM) of 3 float32)"))[0].what
        'all_reduce(SUM) of 3 float32'
    """
    last, _, before = peer.doing.removeprefix("last called ").partition(" (before that ")
    found = [_NUMBERED.match(text) for text in (last, *before.removesuffix(")").split("; "))]
    return tuple(reversed([Made(int(call[1]), call[3], "", call[2] or "") for call in found if call is not None]))


def _cited(error: str, rank: int) -> list[Made]:
    """The call of a rank that an error cites."""
    texts = [text for text, other in _CITED.findall(error) if int(other) == rank]
    texts += [f"{call} {layout}{of}" for call, of, layout, other in _LAYOUT.findall(error) if int(other) == rank]
    texts += [text for text, ranks in _CAME.findall(error) if str(rank) in ranks.split(", ")]
    found = [_NUMBERED.match(text) for text in texts]
    return [Made(int(call[1]), call[3], "", call[2] or "") for call in found if call is not None]
