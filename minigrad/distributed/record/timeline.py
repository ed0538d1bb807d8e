"""The timeline of a run: what each rank did and when, and what was decided and why.

Whatever takes `timeline=` writes on it, each rank on a track of its own; `with timeline.span("data"):` adds one's own.
Ranks that are threads share one timeline; those that are processes have one each, and `gather` puts them together. The
time is that of the communicator's clock, so a simulation writes virtual time. Where ranks have clocks of their own,
those are aligned at the collectives that they shared; see `record.alignment`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from minigrad.arguments import as_amount, as_integer, check_text
from minigrad.backend.ranks import ranks_here
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.distributed.record.alignment import offsets_of
from minigrad.distributed.record.exports import Exports
from minigrad.distributed.record.spans import (
    Event,
    Gap,
    TimelineSummary,
    TimeSpan,
    dump_plain,
    gaps_in,
    load_plain,
    plain,
    summary_of,
)
from minigrad.distributed.record.track import OpenSpan, Track, in_order, name_of_clock
from minigrad.errors import ArgumentError

_FORMAT = "minigrad timeline 1"
Read = tuple[str, list[TimeSpan], list[Event], dict[str, tuple[float, float]]]  # of a rank, its clock first


class Timeline(Exports):
    """A record of spans and events of all ranks.

    Args:
        last_steps: How many steps are kept of each rank, the latest; None for all. What is dropped is gone.
        depth: How deep forward is looked into: 0 for the wrapped module alone, 1 for the modules in it, and so on.

    Attributes:
        depth: What was given.

    Raises:
        ArgumentError: last_steps is no integer >= 1, or depth none >= 0.

    Example:
        >>> from minigrad import distributed, nn, randn
        >>> timeline = Timeline()
        >>> def body(comm):
        ...     ddp = distributed.DDP(nn.Linear(3, 1), comm, timeline=timeline)
        ...     with timeline.span("data"):
        ...         batch = randn(4, 3)
        ...     ddp(batch).mean().backward()
        >>> _ = distributed.run(body, 2)
        >>> sorted({span.kind for span in timeline.spans if span.rank == 1} - {"idle", "exposed"})
        ['backward', 'data', 'forward', 'pass', 'weighted', 'wire']
    """

    def __init__(self, last_steps: int | None = None, depth: int = 1) -> None:
        if last_steps is not None:
            as_integer("Timeline", "last_steps", last_steps, 1)
        self.depth = as_integer("Timeline", "depth", depth, 0)
        self._last_steps = last_steps
        self._tracks: dict[int, Track] = {}

    # ------------------------------------------------------------------------------------------------- writing

    def at(self, comm: Communicator | None = None, *, rank: int | None = None, clock: Any = None) -> Track:
        """The track of a rank, by its global number.

        Args:
            comm: The rank's; by default that of this context. Where there is none, the only track that there is, as in
                a process that is one rank; else rank 0 of the host's time.
            rank, clock: Its number and what tells its time, in place of a communicator.
        """
        if comm is not None:
            check_is_communicator("Timeline.at", comm)
        here: Any = ranks_here() if comm is None else comm
        if rank is None:
            known = hasattr(here, "global_ranks")
            rank = here.global_ranks[here.rank] if known else next(iter(self._tracks)) if len(self._tracks) == 1 else 0
        else:
            as_integer("Timeline.at", "rank", rank, 0)
        track = self._tracks.get(rank)
        if track is None:
            tells = clock or getattr(here, "clock", None) or HostClock()
            made = Track(rank, tells.now_s, name_of_clock(tells), self._last_steps)
            made.facts |= getattr(tells, "facts", {})
            track = self._tracks.setdefault(rank, made)  # in one step, whichever thread comes first
        return track

    def span(self, kind: str, name: str = "", /, **fields: Any) -> OpenSpan:
        """Around what is a span of this context's rank.

        Args:
            kind: For example "data", "optimizer" or "checkpoint"; see `TimeSpan.kind`.
            fields: What else to keep: numbers, text, lists and mappings of them.

        Raises:
            ArgumentError: kind or name is no text, or a field is a tensor or an array.

        Example:
            >>> timeline = Timeline()
            >>> with timeline.span("optimizer", lr=0.1):
            ...     pass
            >>> timeline.spans[0].kind, timeline.spans[0].fields
            ('optimizer', {'lr': 0.1})
        """
        check_text("Timeline.span", kind=kind, name=name)
        _check_fields("Timeline.span", fields)
        return OpenSpan(self.at(), kind, name, fields)

    def event(self, kind: str, **fields: Any) -> None:
        """Something happened on this context's rank, just now: a decision with its reason, say.

        Args:
            kind: What; numbers of a kind, such as "loss" with value=loss.item(), are a curve on the page.
            fields: See `span`.

        Raises:
            ArgumentError: kind is no text, or a field is a tensor or an array.
        """
        check_text("Timeline.event", kind=kind)
        _check_fields("Timeline.event", fields)
        self.at().event(kind, **fields)

    # ------------------------------------------------------------------------------------------------- reading

    @property
    def ranks(self) -> list[int]:
        """Those of which something is known."""
        return sorted(self._tracks)

    @property
    def spans(self) -> list[TimeSpan]:
        """All spans, on the clock of the first rank, in order of their beginning."""
        return self._aligned()[0]

    @property
    def events(self) -> list[Event]:
        """All events, on the clock of the first rank, in order."""
        return self._aligned()[1]

    @property
    def facts(self) -> dict[int, dict[str, Any]]:
        """Of each rank what holds for all that was noted: the buckets of each wrapper, and of a simulation the link."""
        return {rank: plain(self._tracks[rank].facts) for rank in self.ranks}

    @property
    def clocks(self) -> dict[int, str]:
        """What tells the time of each rank: the same text for those that have one clock, "virtual" in a simulation."""
        return {rank: self._tracks[rank].clock for rank in self.ranks}

    def offsets_s(self) -> dict[int, float]:
        """What was added to the clock of each rank to have that of the first."""
        return _offsets_s(self._read())

    def _aligned(self) -> tuple[list[TimeSpan], list[Event]]:
        spans, events, read = list[TimeSpan](), list[Event](), self._read()
        for rank, offset_s in _offsets_s(read).items():
            _, own_spans, own_events, _ = read[rank]
            if offset_s:
                own_spans = [s._replace(began_s=s.began_s + offset_s, ended_s=s.ended_s + offset_s) for s in own_spans]
                own_events = [each._replace(at_s=each.at_s + offset_s) for each in own_events]
            spans += own_spans
            events += own_events
        return in_order(spans), sorted(events, key=lambda event: event.at_s)

    def summary(self) -> TimelineSummary:
        """The seconds of each rank: of each kind of span, and the figures of `ddp.stats()`; print it."""
        read = self._read().items()
        return TimelineSummary(tuple(summary_of(rank, spans, events) for rank, (_, spans, events, _) in read))

    def idle_gaps(self, rank: int | None = None, least_s: float = 0.0) -> list[Gap]:
        """Stretches in which a rank did nothing that was recorded, in order.

        Args:
            rank: Of which; None for all.
            least_s: Shorter ones are left out.

        Raises:
            ArgumentError: nothing is known of that rank, or least_s is no number >= 0.
        """
        least_s = as_amount("idle_gaps", "least_s", least_s)
        if rank is not None and rank not in self._tracks:
            raise ArgumentError(f"idle_gaps: expected a rank of {self.ranks}, got {rank!r}")
        spans = self.spans
        chosen = self.ranks if rank is None else [rank]
        gaps = [gap for each in chosen for gap in gaps_in(each, [s for s in spans if s.rank == each], least_s)]
        return sorted(gaps, key=lambda gap: gap.began_s)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timeline) and (self._read(), self.facts) == (other._read(), other.facts)

    __hash__ = None  # type: ignore[assignment]

    def _read(self) -> dict[int, Read]:
        return {rank: (self._tracks[rank].clock, *self._tracks[rank].read()) for rank in self.ranks}

    # ------------------------------------------------------------------------------------------- between ranks

    def gather(self, comm: Communicator | None = None) -> Timeline:
        """What the timelines of all ranks say, on every rank; all of them call this.

        Example: `whole = timeline.gather(comm)`, then `if comm.rank == 0: whole.to_perfetto("run.json")`
        """
        here = communicator_for("Timeline.gather", comm)
        own = here.global_ranks[here.rank]
        texts = here.all_gather_object(_text(track for rank, track in self._tracks.items() if rank == own))
        return Timeline.merged(map(Timeline.from_json, texts))

    @staticmethod
    def merged(timelines: Iterable[Timeline]) -> Timeline:
        """Several in one; each has ranks that the others have not.

        Raises:
            ArgumentError: two know of the same rank, or one is none.
        """
        whole = Timeline()
        if isinstance(timelines, Timeline) or not isinstance(timelines, Iterable):
            raise ArgumentError(f"Timeline.merged: expected timelines in a list, got {timelines!r:.100}")
        for each in timelines:
            if not isinstance(each, Timeline):
                raise ArgumentError(f"Timeline.merged: expected timelines, got {each!r:.100}")
            twice = sorted(whole._tracks.keys() & each._tracks.keys())
            if twice:
                raise ArgumentError(f"Timeline.merged: expected each rank in one of the timelines, got {twice} in two")
            for rank, track in each._tracks.items():
                kept = whole._tracks[rank] = Track(rank, track.now_s, track.clock)
                kept.fill(*track.read())
                kept.facts |= track.facts
        return whole

    # ------------------------------------------------------------------------------------------------- formats

    def to_json(self) -> str:
        """The timeline as text, for a file or another process; numbers come back to the last bit."""
        return _text(self._tracks.values())

    @staticmethod
    def of(
        spans: Iterable[TimeSpan],
        events: Iterable[Event],
        clock: str,
        facts: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Timeline:
        """A timeline of spans and events, all on one clock, and of what holds for all of each rank."""
        made = Timeline()
        by_rank: dict[int, tuple[list[TimeSpan], list[Event]]] = {}
        for span in spans:
            by_rank.setdefault(span.rank, ([], []))[0].append(span)
        for event in events:
            by_rank.setdefault(event.rank, ([], []))[1].append(event)
        for rank, (own_spans, own_events) in by_rank.items():
            track = made._tracks[rank] = Track(rank, HostClock.now_s, clock)
            track.fill(own_spans, own_events, {})
            track.facts |= facts.get(rank, {})
        return made

    @staticmethod
    def from_json(text: str) -> Timeline:
        """A timeline that `to_json` wrote.

        Raises:
            ArgumentError: the text is none.
        """
        made = Timeline()
        try:
            read = json.loads(text, object_hook=load_plain)
            if read["format"] != _FORMAT:
                raise ValueError(f"format {read['format']!r:.100}")
            for entry in read["ranks"]:
                rank = int(entry["rank"])
                track = made._tracks[rank] = Track(rank, HostClock.now_s, str(entry["clock"]))
                spans = [_span_of(rank, *values) for values in entry["spans"]]
                events = [_event_of(rank, *values) for values in entry["events"]]
                meetings = {name: (float(called), float(over)) for name, (called, over) in entry["meetings"].items()}
                track.fill(spans, events, meetings)
                track.facts |= dict(entry["facts"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            wanted = f"the text of to_json, of {_FORMAT!r}"
            raise ArgumentError(f"Timeline.from_json: expected {wanted}, got {text!r:.100}: {error}") from error
        return made


def _check_fields(who: str, fields: Mapping[str, Any]) -> None:
    """A tensor would keep all that backward needs until the timeline is read, and be text then."""
    for name, value in fields.items():
        if getattr(value, "shape", None) is not None and not isinstance(value, np.generic):
            raise ArgumentError(
                f"{who}: expected fields as numbers, text, lists and mappings of them, got {name} as "
                f"{type(value).__name__}: write {name}=x.item()"
            )


def _text(tracks: Iterable[Track]) -> str:
    entries = []
    for track in sorted(tracks, key=lambda track: track.rank):
        spans, events, meetings = track.read()
        met = {name: list(each) for name, each in meetings.items()}
        entry = {"rank": track.rank, "clock": track.clock, "meetings": met, "facts": plain(track.facts)}
        entry |= {"spans": [list(span[1:]) for span in spans], "events": [list(event[1:]) for event in events]}
        entries.append(dump_plain(entry))
    return json.dumps({"format": _FORMAT, "ranks": entries}, allow_nan=False)


def _span_of(rank: int, kind: str, name: str, began_s: Any, ended_s: Any, step: int, fields: Any) -> TimeSpan:
    """A span as a file has it; TypeError or ValueError where that is none."""
    check_text("a span", kind=kind, name=name)
    return TimeSpan(rank, kind, name, float(began_s), float(ended_s), as_integer("a span", "step", step), dict(fields))


def _event_of(rank: int, kind: str, at_s: Any, step: int, fields: Any) -> Event:
    """An event as a file has it; TypeError or ValueError where that is none."""
    check_text("an event", kind=kind)
    return Event(rank, kind, float(at_s), as_integer("an event", "step", step), dict(fields))


def _offsets_s(read: dict[int, Read]) -> dict[int, float]:
    clocks, meetings = [clock for clock, *_ in read.values()], [met for *_, met in read.values()]
    return dict(zip(read, offsets_of(clocks, meetings)))
