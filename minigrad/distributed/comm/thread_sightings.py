"""What is seen of ranks that are threads: all of it, since they are of one process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from minigrad.distributed.comm.calls import in_words
from minigrad.distributed.comm.hangs import HangReport
from minigrad.distributed.comm.sightings import Sighting
from minigrad.distributed.comm.where import stack_of, user_line, words_of
from minigrad.errors import DistributedError


def look_at(world: Any) -> None:
    """Let the errors of a ThreadWorld have a report."""
    found = weakref.ref(world)
    world.failure.look = lambda error: _report(found(), error)


def lines_of(world: Any) -> dict[int, str]:
    """Where in the user's code each rank is."""
    return {rank: user_line(world._threads.get(rank, 0)) for rank in range(world.world_size)}


def _report(world: Any, error: DistributedError) -> HangReport | None:
    if world is None:
        return None
    seen = []
    for rank in range(world.world_size):
        thread = world._threads.get(rank, 0)
        calls = tuple(reversed(in_words(list(world.last[rank]))))
        cause = error.__cause__
        raised = words_of(cause) if cause is not None and str(error).startswith(f"rank {rank} failed first") else ""
        gone, elsewhere = world._left.get(rank, ""), _elsewhere(world, rank)
        seen.append(Sighting(rank, calls, gone, raised, user_line(thread), stack_of(thread), elsewhere))
    return HangReport(tuple(seen), str(error))


def _elsewhere(world: Any, rank: int) -> str:
    """A call of another world of the same threads that a rank has made, and others have not."""
    top, path = world, rank
    while top.parent is not None and top.parent[1]() is not None:
        ranks, parent = top.parent
        top, path = parent(), ranks[path]
    for other, there in _worlds_of(top, path):
        if other is not world:
            for call in list(other._calls.values()):
                if there in call.present and not call.done:
                    made = next(m for m in in_words(list(other.last[there])) if m.seq == call.header.seq)
                    return f"{call.header} at {made.line}"
    return ""


def _worlds_of(world: Any, rank: int) -> Iterator[tuple[Any, int]]:
    """A world and those of its groups in which a rank is, each with its rank there."""
    yield world, rank
    for ranks, group in list(world.groups):
        if rank in ranks:
            yield from _worlds_of(group, ranks.index(rank))
