"""Replays the trace of a simulation, which knows when each rank called, and needed, each collective, and no gradients.

A rank computes as long as it did between one of these moments and the next. A step ends with its last collective; the
last one may have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from minigrad.distributed.inspect.programs import Sent
from minigrad.distributed.inspect.rerun import Called, SharedWire, let_run
from minigrad.distributed.inspect.steps import paces_between
from minigrad.distributed.record.spans import TimeSpan
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.links import Link
from minigrad.errors import ArgumentError

Group = tuple[int, ...]


class Moment(NamedTuple):
    """When a rank called a collective, or needed it.

    Attributes:
        number: Of the collective, among those that the rank called; -1 of work that none follows.
        work_s: What the rank did since the moment before.
    """

    number: int
    is_call: bool
    work_s: float
    step: int


@dataclass(frozen=True)
class OwnTrace:
    """What one rank did.

    Attributes:
        begin_s: When its first step began.
        sent: What it called, and over which group, by number.
        local_steps: How often it computed since the one before.
    """

    begin_s: float
    moments: tuple[Moment, ...]
    sent: Mapping[int, tuple[Group, Sent]]
    local_steps: Mapping[int, int]


@dataclass(frozen=True)
class TracePrograms:
    """What all ranks did.

    Attributes:
        recorded_s: How long each step was.
    """

    ranks: tuple[OwnTrace, ...]
    recorded_s: tuple[float, ...]

    def faster(self, factor: float) -> TracePrograms:
        """The same where each collective takes so many times as long."""
        made = []
        for own in self.ranks:
            scaled = {n: (group, s._replace(seconds=s.seconds * factor)) for n, (group, s) in own.sent.items()}
            made.append(replace(own, sent=scaled))
        return replace(self, ranks=tuple(made))


def trace_programs_of(who: str, timeline: Timeline) -> TracePrograms:
    """What the ranks of a trace did.

    Raises:
        ArgumentError: there were messages, or no collective.
    """
    if any(event.is_message for event in timeline.events):
        raise ArgumentError(f"{who}: expected a trace without messages, which have no turn on the wire, got some")
    spans = [span for span in timeline.spans if span.step >= 0]
    count = max((span.step + 1 for span in spans), default=0)
    if not any(span.kind == "wire" for span in spans):
        raise ArgumentError(f"{who}: expected a trace with a collective, got none")
    ranks = sorted({span.rank for span in spans})
    everyone = tuple(ranks)
    own = [[span for span in spans if span.rank == rank] for rank in ranks]
    made = tuple(_own(each, everyone) for each in own)
    ends_s = [max(_last_s(each, step) for each in own) for step in range(count)]
    return TracePrograms(made, paces_between(min(each.begin_s for each in made), ends_s))


def _last_s(spans: Sequence[TimeSpan], step: int) -> float:
    """When a rank was through with a step."""
    ends_s = [_over_s(span) if span.kind == "wire" else span.ended_s for span in spans if span.step <= step]
    return max(ends_s, default=-math.inf)


def _called_s(span: TimeSpan) -> float:
    return float(span.began_s - span.fields["queued_s"])


def _needed_s(span: TimeSpan) -> float:
    """When the rank needed a collective; as early as it called it where it never did."""
    return _called_s(span) + float(span.fields.get("needed_s", 0.0))


def _over_s(span: TimeSpan) -> float:
    """When the rank had called it, and was through with waiting for it."""
    return max(_needed_s(span), span.ended_s) if "needed_s" in span.fields else _called_s(span)


def _own(spans: Sequence[TimeSpan], everyone: Group) -> OwnTrace:
    wire = [span for span in spans if span.kind == "wire"]
    begin_s = min(span.began_s for span in spans if span.kind != "wire")
    order: list[tuple[tuple[float, ...], TimeSpan, bool]] = []
    for span in wire:
        number = span.fields["call"]
        order.append(((number, 0.0, number), span, True))
        if "needed_s" in span.fields:  # after its last call before
            order.append(((span.fields["needed_by"] - 1, _needed_s(span) + 1.0, number), span, False))
    moments, at_s = [], begin_s
    for _, span, is_call in sorted(order, key=lambda each: each[0]):
        now_s = _called_s(span) if is_call else _needed_s(span)
        moments.append(Moment(span.fields["call"], is_call, max(0.0, now_s - at_s), span.step))
        at_s = max(at_s, now_s if is_call else _over_s(span))
    last = max(spans, key=lambda span: (span.step, span.kind != "wire", span.ended_s))
    if last.kind != "wire" and last.ended_s > at_s:
        moments.append(Moment(-1, False, last.ended_s - at_s, last.step))
    reached_s, sent, steps = dict[Group, float](), dict[int, tuple[Group, Sent]](), dict[int, int]()
    for span in sorted(wire, key=lambda span: span.fields["call"]):
        group, number = tuple(span.fields.get("ranks", everyone)), span.fields["call"]
        seconds = span.ended_s - max(span.began_s, reached_s.get(group, -math.inf))
        reached_s[group] = span.ended_s
        sent[number] = group, Sent(span.fields["collective"], span.fields["sent_bytes"], max(0.0, seconds), {})
        computed = {s.fields["call"] for s in spans if s.kind == "compute" and s.fields.get("samples")}
        steps[number] = int(number in computed)
    return OwnTrace(begin_s, tuple(moments), sent, steps)


def replay_trace(programs: TracePrograms, link: Link | None) -> tuple[tuple[float, ...], list[TimeSpan]]:
    """How long each step is on a link, None for what each collective took; and what the ranks do then."""
    wires: dict[Group, SharedWire] = {}
    whole = tuple(range(len(programs.ranks)))
    for own in programs.ranks:
        for group, _ in own.sent.values():
            wires.setdefault(group, SharedWire(link, len(group), () if group == whole else group))
    ranks = [_Rank(number, own, len(programs.recorded_s)) for number, own in enumerate(programs.ranks)]
    let_run([rank.program(wires) for rank in ranks])
    ends_s = [max(each) for each in zip(*(accumulate(rank.ends_s, max) for rank in ranks))]
    spans = [span for rank in ranks for span in rank.spans]
    return paces_between(min(own.begin_s for own in programs.ranks), ends_s), spans


class _Rank:
    """A rank at its moments.

    Attributes:
        ends_s: When it was through with the collectives of each step, where it had any.
        spans: What it did.
    """

    def __init__(self, number: int, own: OwnTrace, steps: int) -> None:
        self._number, self._own = number, own
        self.ends_s = [-math.inf] * steps
        self.spans: list[TimeSpan] = []

    def program(self, wires: Mapping[Group, SharedWire]) -> Iterator[Called]:
        """One moment after the other; gives each collective whose end it needs."""
        own, now_s, called = self._own, self._own.begin_s, dict[int, Called]()
        for number, is_call, work_s, step in own.moments:
            self._note("compute", now_s, now_s + work_s, step)
            now_s += work_s
            if is_call:
                group, sent = own.sent[number]
                called[number] = wires[group].call(self._number, now_s, sent, own.local_steps[number])
            elif number >= 0:
                yield called[number]
                times = called[number].times
                come_s, over_s = max(now_s, min(times.started_s, times.done_s)), max(now_s, times.done_s)
                self._note("idle", now_s, come_s, step)
                self._note("exposed", come_s, over_s, step)
                now_s = over_s
            self.ends_s[step] = max(self.ends_s[step], now_s)

    def _note(self, kind: str, began_s: float, ended_s: float, step: int) -> None:
        if ended_s > began_s:
            fields = {f"{kind}_s": ended_s - began_s}
            self.spans.append(TimeSpan(self._number, kind, "", began_s, ended_s, step, fields))
