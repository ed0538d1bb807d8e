"""What is written while a rank runs: notes on its own clock, as cheap as they can be; they are read later."""

from __future__ import annotations

import platform
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, SupportsFloat

from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.record.spans import Event, TimeSpan, plain

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_OF_HOST = ("data", "checkpoint")  # which the host does, also for a GPU
_BEGINNING = ("data", "forward")
# Collectives that are over on no rank before all have called them; the root of another one may be ahead.
ALL_MEET = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_gather_object", "barrier")
_NOTHING: Mapping[str, Any] = {}
Moment = SupportsFloat  # seconds, or what will tell them, as an event of a GPU
Later = tuple[list[tuple[Any, ...]], dict[str, tuple[float, float]]]  # notes, as they are kept, and meetings


def name_of_clock(clock: Any) -> str:
    """What tells a rank's time, the same for ranks whose times may be compared: one machine has one clock."""
    if not isinstance(clock, HostClock):
        return "virtual"
    return "host " + (_BOOT.read_text().strip() if _BOOT.exists() else platform.node())


class Track:
    """The notes of one rank.

    Args:
        rank: The global one.
        now_s: Its clock.
        clock: What that is; see `name_of_clock`.
        last_steps: How many steps are kept, the latest; None for all.

    Attributes:
        mark: The moment it is where a rank's work is done: of its clock, or of its GPU.
        number: Of the step under way.
        meetings: When this rank called each collective that it shared with others, and when that was over, by a name
            that all ranks share.
        backward: The one under way, and the leaves that are complete in it, each with when, whichever wrapper noted it.
        facts: What holds for all that is noted, as plain data by name: the buckets of a wrapper, the link simulated.
    """

    __slots__ = (
        *("rank", "now_s", "mark", "clock", "number", "meetings", "facts", "backward"),
        *("_steps", "_notes", "_is_over", "_last_steps", "_names"),
    )

    def __init__(
        self, rank: int, now_s: Callable[[], float], clock: str = "virtual", last_steps: int | None = None
    ) -> None:
        self.rank, self.now_s, self.clock, self._last_steps = rank, now_s, clock, last_steps
        self.mark: Callable[[], Moment] = now_s
        self.number, self._is_over = 0, False
        self.meetings: dict[str, tuple[Moment, Moment]] = {}
        self.facts: dict[str, Any] = {}
        self.backward: tuple[Any, list[tuple[int, Moment]]] = None, []
        self._names: Counter[str] = Counter()
        self._notes: list[tuple[Any, ...]] = []
        self._steps = deque([(0, self._notes, self.meetings)], last_steps)

    def note(
        self, kind: str, name: str, began_s: Moment, ended_s: Moment, fields: Mapping[str, Any] = _NOTHING
    ) -> None:
        """A span is over."""
        if self._is_over and kind in _BEGINNING:
            self.begin_step()
        self._notes.append((kind, name, began_s, ended_s, fields))

    def event(self, kind: str, **fields: Any) -> None:
        """Something has just happened."""
        self._notes.append((kind, self.now_s(), fields))

    def event_at(self, kind: str, at_s: Moment, fields: Mapping[str, Any] = _NOTHING) -> None:
        """Something happened at a moment."""
        self._notes.append((kind, at_s, fields))

    def later(self, tell: Callable[..., Later], *data: Any) -> None:
        """Something happened of which tell(*data) makes notes when they are read."""
        self._notes.append((tell, data))

    def span(self, kind: str, name: str = "", /, **fields: Any) -> OpenSpan:
        """Around what is a span."""
        return OpenSpan(self, kind, name, fields)

    def met(self, name: str, called_s: Moment, over_s: Moment) -> None:
        """A collective that all ranks called, by a name that all of them give it, is over."""
        self.meetings[name] = called_s, over_s

    def own_name(self, name: str) -> str:
        """A name for one that notes its collectives, of those that ask for it, which all ranks do in one order."""
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name} ({self._names[name]})"

    def end_step(self) -> None:
        """The gradients are combined: the next data, or forward, is of a new step."""
        self._is_over = True

    def begin_if_over(self) -> None:
        """A new step begins, where the last one is over."""
        if self._is_over:
            self.begin_step()

    def begin_step(self) -> None:
        """What is noted from now on is of a new step."""
        self.number, self._is_over, self._notes, self.meetings = self.number + 1, False, [], {}
        self._steps.append((self.number, self._notes, self.meetings))

    def read(self) -> tuple[list[TimeSpan], list[Event], dict[str, tuple[float, float]]]:
        """What was noted so far, in order of time, and the meetings."""
        spans, events, meetings = self.as_noted()
        return in_order(spans), sorted(events, key=lambda event: event.at_s), meetings

    def as_noted(self) -> tuple[list[TimeSpan], list[Event], dict[str, tuple[float, float]]]:
        """The same, in the order in which it was noted."""
        spans, events, meetings = list[TimeSpan](), list[Event](), dict[str, tuple[float, float]]()
        for number, notes, met in tuple(self._steps):
            for note in _whole(notes, met):
                if len(note) == 5:
                    kind, name, began_s, ended_s, fields = note
                    spans.append(TimeSpan(self.rank, kind, name, float(began_s), float(ended_s), number, plain(fields)))
                else:
                    kind, at_s, fields = note
                    events.append(Event(self.rank, kind, float(at_s), number, plain(fields)))
            meetings |= {name: (float(called_s), float(over_s)) for name, (called_s, over_s) in tuple(met.items())}
        return spans, events, meetings

    def fill(
        self, spans: Iterable[TimeSpan], events: Iterable[Event], meetings: Mapping[str, tuple[float, float]]
    ) -> None:
        """Take over what was read of another one, before anything is noted here."""
        steps: dict[int, tuple[int, list[tuple[Any, ...]], dict[str, Any]]] = {}
        for span in spans:
            steps.setdefault(span.step, (span.step, [], {}))[1].append((*span[1:5], span.fields))
        for event in events:
            steps.setdefault(event.step, (event.step, [], {}))[1].append((event.kind, event.at_s, event.fields))
        if steps:
            self._steps = deque((steps[number] for number in sorted(steps)), self._last_steps)
            self.number, self._notes, self.meetings = self._steps[-1]
        self.meetings.update(meetings)


def _whole(notes: list[tuple[Any, ...]], met: dict[str, tuple[Moment, Moment]]) -> Iterator[tuple[Any, ...]]:
    """The notes of a step, with those that were to be made when they are read; its meetings get theirs."""
    for at, note in enumerate(tuple(notes)):
        if len(note) != 2:
            yield note
            continue
        tell, data = note
        made = tell(*data)
        notes[at] = (_known, (made,))  # whoever reads them again
        met |= made[1]
        yield from made[0]


def _known(made: Later) -> Later:
    return made


def in_order(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    """By when they began; of those that began together, the longest first."""
    return sorted(spans, key=lambda span: (span.began_s, -span.ended_s))


class OpenSpan:
    """A span under way, for `with`; what its code finds out is added to `fields`."""

    __slots__ = ("_track", "_kind", "_name", "fields", "_began_s", "_mark")

    def __init__(self, track: Track, kind: str, name: str, fields: dict[str, Any]) -> None:
        self._track, self._kind, self._name, self.fields = track, kind, name, fields
        self._mark = track.now_s if kind in _OF_HOST else track.mark
        self._began_s: Moment = 0.0

    def __enter__(self) -> OpenSpan:
        self._began_s = self._mark()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.fields["error"] = type(error).__name__
        self._track.note(self._kind, self._name, self._began_s, self._mark(), self.fields)
