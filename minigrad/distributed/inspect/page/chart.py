"""Where everything of a step lies in its picture: bars, arrows and notes, as fractions of the step's width. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.distributed.inspect.steps import RankStep
from minigrad.distributed.inspect.units import bytes_text, time_text
from minigrad.distributed.record.spans import PASS, WAITING, Event, TimeSpan

LANES = ("work", "waiting", "wire")
LEAST_ARROW = 0.01  # of the step: who waited less gets no arrow
_MOST_TICKS = 6
_SAME_S = 1e-9
_KINDS = {"idle": "waits for ranks", "exposed": "waits for the wire", "wire": "on the wire"}
_NO_NOTES = ("ready", "done", "sent")  # events of what is drawn itself
_MOST_NAMED = 6  # parameters of a bucket, in the words of its bar

Facts = Mapping[int, Mapping[str, Any]]  # see `Timeline.facts`


@dataclass(frozen=True)
class Bar:
    """A span as it is drawn.

    Attributes:
        lane: Of `LANES`.
        row: Of the lane, from 0: what overlaps lies in rows below each other.
        left, width: In parts of the step's width, from 0 to 1.
        label: What stands on it.
        about: What it is, in words.
    """

    rank: int
    lane: str
    row: int
    kind: str
    name: str
    began_s: float
    ended_s: float
    left: float
    width: float
    label: str
    about: str


@dataclass(frozen=True)
class Arrow:
    """A rank waited for another one, which came last.

    Attributes:
        name: Of what both took part in: a bucket, say.
        left: Where it came, in parts of the step's width.
    """

    late: int
    waiting: int
    name: str
    seconds: float
    left: float


@dataclass(frozen=True)
class Note:
    """Something that was decided, or happened.

    Attributes:
        ranks: On which, the same in the same step.
        left: Where, on the first of them, in parts of the step's width.
    """

    ranks: tuple[int, ...]
    kind: str
    text: str
    left: float


@dataclass(frozen=True)
class Chart:
    """The picture of one step.

    Attributes:
        began_s, seconds: From the first moment of any rank in it to the last one: what is drawn.
        pace_s: How long the step took; see `steps.paces_s`.
        ranks: The figures of each rank that made it.
        rows: How many there are of each lane, alike for all ranks.
        ticks: Of the axis: where in parts of the width, and what stands there, in the unit.
    """

    number: int
    began_s: float
    seconds: float
    ranks: Mapping[int, RankStep]
    bars: tuple[Bar, ...]
    rows: Mapping[str, int]
    arrows: tuple[Arrow, ...]
    notes: tuple[Note, ...]
    ticks: tuple[tuple[float, str], ...]
    unit: str
    pace_s: float


def chart_of(
    number: int, ranks: Mapping[int, RankStep], events: Sequence[Event], facts: Facts, pace_s: float
) -> Chart:
    """The picture of a step.

    Args:
        ranks: What each rank did in it; see `steps_of`.
        events: Of the step.
        facts: Of the run: which parameters the buckets are of.
        pace_s: How long it took.
    """
    spans = {rank: drawn(step.spans) for rank, step in ranks.items()}
    began_s = min(step.began_s for step in ranks.values())
    ended_s = max(step.ended_s for step in ranks.values())
    ended_s = max([ended_s, *(span.ended_s for own in spans.values() for span in own)])
    seconds = ended_s - began_s
    bars, rows = list[Bar](), dict.fromkeys(LANES, 1)
    for rank, own in spans.items():
        for lane in LANES:
            for row, span in in_rows(in_turn(span for span in own if lane_of(span) == lane)):
                left, right = _part(span.began_s - began_s, seconds), _part(span.ended_s - began_s, seconds)
                about = _about(span, began_s, facts.get(rank, {}))
                place = (span.began_s, span.ended_s, left, right - left)
                bars.append(Bar(rank, lane, row, span.kind, span.name, *place, name_of(span), about))
                rows[lane] = max(rows[lane], row + 1)
    unit, ticks = ticks_of(seconds)
    notes = tuple(notes_of(events, began_s, seconds))
    arrows = tuple(arrows_of({rank: halved(step.spans) for rank, step in ranks.items()}, began_s, seconds))
    return Chart(number, began_s, seconds, ranks, tuple(bars), rows, arrows, notes, ticks, unit, pace_s)


def _part(seconds: float, of_s: float) -> float:
    return seconds / of_s if of_s > 0.0 else 0.0


def drawn(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    """The spans that take time."""
    return [span for span in halved(spans) if span.ended_s > span.began_s and span.kind != PASS]


def halved(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    """The spans, but that a trace's waiting is cut in waiting for ranks and for the wire."""
    found = []
    for span in spans:
        if span.kind == "wait":
            come_s = min(span.ended_s, span.began_s + span.fields.get("idle_s", 0.0))
            found.append(span._replace(kind="idle", ended_s=come_s))
            found.append(span._replace(kind="exposed", began_s=come_s))
        else:
            found.append(span)
    return found


def in_turn(spans: Iterable[TimeSpan]) -> Iterable[TimeSpan]:
    """The same, but what a trace has on the wire since all had called it, from when the wire was free for it."""
    free_s = dict[Any, float]()
    for span in sorted(spans, key=lambda span: span.ended_s):
        if span.kind == "wire" and "call" in span.fields and span.fields.get("collective") != "recv":
            group = tuple(span.fields.get("ranks", ()))
            span = span._replace(began_s=max(span.began_s, free_s.get(group, span.began_s)))
            free_s[group] = span.ended_s
        yield span


def lane_of(span: TimeSpan) -> str:
    """Where it is drawn: beside the rank's work is what it waits for, and what the wire does for it."""
    return "waiting" if span.kind in WAITING else "wire" if span.kind == "wire" else "work"


def in_rows(spans: Iterable[TimeSpan]) -> list[tuple[int, TimeSpan]]:
    """Each span with its row, the first one that is free when it begins: in a row none overlap."""
    ends_s, found = list[float](), []
    for span in sorted(spans, key=lambda span: (span.began_s, -span.ended_s, "forward_s" not in span.fields)):
        row = next((row for row, end_s in enumerate(ends_s) if end_s <= span.began_s), len(ends_s))
        if row == len(ends_s):
            ends_s.append(0.0)
        ends_s[row] = span.ended_s
        found.append((row, span))
    return found


def ticks_of(seconds: float) -> tuple[str, tuple[tuple[float, str], ...]]:
    """The unit of a step's axis, and its ticks, from 0."""
    if seconds <= 0.0:
        return "s", ((0.0, "0"),)
    unit, scale = next(((name, size) for name, size in (("s", 1.0), ("ms", 1e-3)) if seconds >= size), ("µs", 1e-6))
    width = seconds / scale
    rough = width / _MOST_TICKS
    power: float = 10.0 ** math.floor(math.log10(rough))
    apart = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    count = int(width / apart * (1 + 1e-9))
    return unit, tuple((min(1.0, number * apart / width), f"{number * apart:.6g}") for number in range(count + 1))


def arrows_of(spans: Mapping[int, Sequence[TimeSpan]], began_s: float, seconds: float) -> Iterable[Arrow]:
    """Who waited for whom, where that took a part of the step that can be seen."""
    called: dict[Any, dict[int, list[float]]] = {}  # when each rank called what all take part in
    for rank, own in spans.items():
        for span in own:
            if span.kind == "wire" and "queued_s" in span.fields:
                here = called.setdefault(meeting_of(span), {}).setdefault(rank, [])
                here.append(span.began_s - span.fields["queued_s"])
    for rank, own in spans.items():
        for span in own:
            if span.kind != "idle" or span.seconds < LEAST_ARROW * seconds:
                continue
            until_s, meeting = span.ended_s + _SAME_S, meeting_of(_waited_for(span, own))
            came = dict[int, float]()
            for other, moments_s in called.get(meeting, {}).items():
                came |= {other: max(at_s for at_s in moments_s if at_s <= until_s)} if min(moments_s) <= until_s else {}
            late = max(came, key=lambda other: came[other], default=rank)
            if rank in came and came[late] > came[rank] + _SAME_S:
                yield Arrow(late, rank, span.name, span.seconds, _part(span.ended_s - began_s, seconds))


def _waited_for(waiting: TimeSpan, own: Iterable[TimeSpan]) -> TimeSpan:
    """Of a trace, which numbers its waiting by steps, what went on the wire when the waiting was over."""
    if "call" not in waiting.fields:
        return waiting
    wire = (span for span in own if span.kind == "wire" and abs(span.began_s - waiting.ended_s) <= _SAME_S)
    return next(wire, waiting)


def meeting_of(span: TimeSpan) -> tuple[Any, ...]:
    """What the ranks that took part in one thing have alike."""
    fields = span.fields
    return fields.get("of"), fields.get("pass"), fields.get("bucket", fields.get("call", span.name))


def notes_of(events: Iterable[Event], began_s: float, seconds: float) -> Iterable[Note]:
    """What was decided, or happened, once for all ranks that say the same."""
    found: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event.kind not in _NO_NOTES and "value" not in event.fields:
            found.setdefault((event.kind, words_of(event.fields)), []).append(event)
    for (kind, text), same in found.items():
        left = min(1.0, max(0.0, _part(same[0].at_s - began_s, seconds)))
        yield Note(tuple(sorted({event.rank for event in same})), kind, text, left)


def words_of(fields: Mapping[str, Any]) -> str:
    """The fields of an event as words, its reason first."""
    rest = [f"{key} {_value(value)}" for key, value in fields.items() if key != "reason" and value is not None]
    reason = [str(fields["reason"])] if fields.get("reason") else []
    return "; ".join([*reason, ", ".join(rest)] if rest else reason)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(each) for each in value) + "]"
    return str(value)


def held_by(facts: Mapping[str, Any], of: str, bucket: int) -> list[tuple[str, int]]:
    """The parameters of a bucket, each with its bytes; none where the record does not tell."""
    about = facts.get(of)
    if not isinstance(about, Mapping) or not 0 <= bucket < len(about.get("buckets", ())):
        return []
    entries = [about["entries"][number] for number in about["buckets"][bucket]]
    return [(entry["name"], (entry["stop"] - entry["start"]) * entry["itemsize"]) for entry in entries]


def name_of(span: TimeSpan) -> str:
    """What a span is called where there is little room."""
    return span.name or str(span.fields.get("collective", _KINDS.get(span.kind, span.kind)))


def _about(span: TimeSpan, began_s: float, facts: Mapping[str, Any]) -> str:
    kind, name = _KINDS.get(span.kind, span.kind), name_of(span)
    what = kind if name == kind else f"{kind}: {name}"
    begin, end = time_text(span.began_s - began_s), time_text(span.ended_s - began_s)
    said = [f"{what}: {time_text(span.seconds)}, from {begin} to {end}"]
    if "bucket" in span.fields and span.kind in ("weighted", *_KINDS):
        names = [name for name, _ in held_by(facts, span.fields.get("of", ""), span.fields["bucket"])]
        more = [f"and {len(names) - _MOST_NAMED} more"] if len(names) > _MOST_NAMED else []
        held = ", ".join([*names[:_MOST_NAMED], *more])
        said.append(bytes_text(span.fields.get("nbytes", 0)) + (f" of {held}" if held else ""))
    elif lane_of(span) == "work" and span.fields.keys() - {"forward_s", "backward_s", "of"}:
        said.append(words_of(span.fields))
    return "; ".join(said)
