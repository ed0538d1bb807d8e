"""Who hears of decisions: a timeline, any object that wants to hear of them, or the communicator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.wrappers import Wrapper
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import ArgumentError

__all__ = ["EventListener", "Overheard", "Timeline", "check_timeline", "listener", "overheard", "spans_of"]

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


class Overheard(Wrapper):
    """Lets a timeline hear the events of a rank, too."""

    def __init__(self, inner: Communicator, timeline: EventListener) -> None:
        super().__init__(inner)
        self.timeline, self._heard = timeline, listener("Overheard", timeline, inner)

    def for_group(self, comm: Communicator) -> Communicator:
        """One for a group, which the same timeline hears."""
        return Overheard(comm, self.timeline)

    def event(self, kind: str, **fields: Any) -> None:
        """Tell both."""
        self._heard.event(kind, **fields)
        self.inner.event(kind, **fields)


def overheard(who: str, timeline: EventListener | None, comm: Communicator) -> Communicator:
    """A communicator whose events a timeline hears too, once, whoever sees to it.

    Raises:
        ArgumentError: the timeline has no event().
    """
    if timeline is None:
        return comm
    check_timeline(who, timeline)
    inner = comm
    while isinstance(inner, Wrapper):
        if isinstance(inner, Overheard) and inner.timeline is timeline:
            return comm
        inner = inner.inner
    return Overheard(comm, timeline)


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
