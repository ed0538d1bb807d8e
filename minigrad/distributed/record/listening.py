"""Who hears of decisions: a timeline, any object that wants to hear of them, or the communicator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import ArgumentError

_NOTHING = nullcontext()


class EventListener(Protocol):
    """Takes notes of what happens in a run, as a `Timeline` does."""

    def event(self, kind: str, **fields: Any) -> None:
        """Something happened."""


def listener(who: str, timeline: EventListener | None, comm: Communicator) -> EventListener:
    """Who hears of a rank's decisions: its track of the timeline, another listener, else the communicator.

    Raises:
        ArgumentError: the timeline has no event().
    """
    if timeline is None:
        return comm
    return timeline.at(comm) if isinstance(timeline, Timeline) else check_timeline(who, timeline)


def spans_of(timeline: Any, comm: Communicator) -> Callable[[str], AbstractContextManager[Any]]:
    """What makes a span of a kind on a rank's track; where the timeline is none, or only hears of events, nothing."""
    return timeline.at(comm).span if isinstance(timeline, Timeline) else _unseen


def _unseen(kind: str) -> AbstractContextManager[None]:
    return _NOTHING


def check_timeline(who: str, timeline: EventListener) -> EventListener:
    """What hears of events; ArgumentError where it has no event()."""
    if not callable(getattr(timeline, "event", None)):
        raise ArgumentError(f"{who}: expected a timeline with event(kind, **fields), got {timeline!r}")
    return timeline
