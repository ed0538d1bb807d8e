"""Spans and events of one rank, or of several, and what can be read from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from minigrad.distributed.record.stretches import covered_s, merged

BUSY = ("data", "forward", "backward", "weighted", "compute", "optimizer", "checkpoint")
WAITING = ("idle", "exposed")
PASS = "pass"
_NO_WORK = (*WAITING, "wait", PASS, "wire")
_WAITED = ("idle_s", "exposed_s")
_CARRIED = {  # the figures that spans of a kind have in their fields; what else is there are words of a user
    "forward": ("forward_s",),
    "backward": ("backward_s",),
    "compute": ("compute_s", "samples"),
    "wait": _WAITED,
    PASS: ("backward_s", *_WAITED, "hidden_s", "bytes_sent", "calls", "samples"),
}


class TimeSpan(NamedTuple):
    """What a rank, or the wire for it, did from one moment to another.

    Attributes:
        kind: "data", "forward" (of a module), "backward" (until the gradient of a leaf was complete), "weighted" (what
            handing a bucket in took), "wire" (from when all ranks had called a collective until it was over), "idle"
            (the rank waits for ranks), "exposed" (it waits for the wire), "pass" (a synchronising pass as a whole),
            "optimizer", "checkpoint", or a user's own.
        name: Of the module, the leaf or the bucket.
        began_s, ended_s: On the rank's clock.
        step: Number of the step, from 0. The first data, or forward, after a synchronising pass begins another one;
            else `timeline.at().begin_step()` does.
        fields: What else is known, as plain data. Of the wire: `collective`, its kind; `sent_bytes`, what this rank
            handed in; `queued_s`, how long before the wire began with it this rank had called it; `ranks`, where a
            simulation's are a group. A message that comes has `peer`, `tag` and `nbytes` instead of bytes sent.
    """

    rank: int
    kind: str
    name: str
    began_s: float
    ended_s: float
    step: int
    fields: dict[str, Any]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_s - self.began_s

    @property
    def figures(self) -> dict[str, Any]:
        """Those of its fields that are figures of this rank, to be added up."""
        return {name: self.fields[name] for name in _CARRIED.get(self.kind, ()) if name in self.fields}


class Event(NamedTuple):
    """What happened on a rank at one moment: "ready" and "done" of a bucket, a decision with its reason."""

    rank: int
    kind: str
    at_s: float
    step: int
    fields: dict[str, Any]

    @property
    def is_message(self) -> bool:
        """Whether the rank sent one, with its `peer`, `tag` and `nbytes`; else "sent" is a word of a user."""
        return self.kind == "sent" and self.fields.keys() >= {"peer", "tag", "nbytes"}

    @property
    def is_of_bucket(self) -> bool:
        """Whether the last gradient of a bucket was complete; else "ready" is a word of a user."""
        return self.kind == "ready" and isinstance(self.fields.get("bucket"), int)


class Gap(NamedTuple):
    """A stretch in which a rank did nothing that was recorded: it waited, or ran what nobody noted.

    Attributes:
        after, before: Kind and name of what it did before and afterwards.
    """

    rank: int
    began_s: float
    ended_s: float
    after: str
    before: str

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended_s - self.began_s


@dataclass(frozen=True)
class RankSummary:
    """The seconds of one rank.

    Attributes:
        steps: How many were recorded; setting up is none, and in no figure but wall_s and seconds.
        wall_s: From the first moment that was recorded to the last.
        seconds: Of each kind of span, in the order in which they came. A span within another one of its kind, as that
            of a module within another module, is not counted again.
        forward_s, backward_s, idle_s, exposed_s, hidden_s: As `ddp.stats()` has them, of the passes recorded; where
            there are none, as in a simulation's trace, as its steps have them. A backward of several wrappers is in
            the statistics of each, and once here.
        bytes_sent, calls: The same.
        compute_s: Forward and backward in one, where they are not told apart.
    """

    rank: int
    steps: int
    wall_s: float
    seconds: dict[str, float]
    forward_s: float = 0.0
    backward_s: float = 0.0
    idle_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    bytes_sent: int = 0
    calls: int = 0
    compute_s: float = 0.0

    @property
    def communication_s(self) -> float:
        """How long the wire worked, exposed or hidden."""
        return self.exposed_s + self.hidden_s

    @property
    def overlap_fraction(self) -> float:
        """The part of the communication that is hidden, between 0 and 1; 0 where there was none."""
        return self.hidden_s / self.communication_s if self.communication_s > 0.0 else 0.0


@dataclass(frozen=True)
class TimelineSummary:
    """What a timeline comes to, rank by rank; print it."""

    ranks: tuple[RankSummary, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The seconds that are worth to be shown: compute_s where there is any."""
        together = ("compute_s",) if any(rank.compute_s for rank in self.ranks) else ()
        return ("forward_s", "backward_s", *together, "idle_s", "exposed_s", "hidden_s")

    def __str__(self) -> str:
        columns = self.columns
        rows = [["rank", "steps", "wall_s", *columns, "overlap"]]
        for each in self.ranks:
            figures = [f"{getattr(each, column):.4f}" for column in ("wall_s", *columns)]
            rows.append([str(each.rank), str(each.steps), *figures, f"{each.overlap_fraction:.0%}"])
        return table_of(rows)


def summary_of(rank: int, spans: Sequence[TimeSpan], events: Sequence[Event]) -> RankSummary:
    """The seconds of one rank, whose spans are in order of their beginning."""
    seconds, reached = dict[str, float](), dict[str, float]()
    sums: dict[str, Any] = dict.fromkeys(("forward_s", "backward_s", "compute_s", *_WAITED, "hidden_s"), 0.0)
    sums |= {"bytes_sent": 0, "calls": 0}
    for span in spans:
        begin_s = max(span.began_s, reached.get(span.kind, -math.inf))
        seconds[span.kind] = seconds.get(span.kind, 0.0) + max(0.0, span.ended_s - begin_s)
        reached[span.kind] = max(span.ended_s, begin_s)
        for key, figure in span.figures.items() if span.step >= 0 else ():
            if key in sums:
                sums[key] += figure
    sums["backward_s"] -= counted_twice_s([span for span in spans if span.step >= 0], "backward")
    if PASS not in seconds:
        sent = [event.fields["nbytes"] for event in events if event.is_message and event.step >= 0]
        sums |= _of_wire([span for span in spans if span.step >= 0], sent)
    steps = {span.step for span in spans if span.step >= 0} | {event.step for event in events if event.step >= 0}
    moments = [moment for span in spans for moment in (span.began_s, span.ended_s)] + [event.at_s for event in events]
    wall_s = max(moments) - min(moments) if moments else 0.0
    return RankSummary(rank, len(steps), wall_s, seconds, **sums)


def counted_twice_s(spans: Iterable[TimeSpan], kind: str) -> float:
    """What the figures of passes in one backward count twice: each is as long as its pass, less its own waiting."""
    counted = [span for span in spans if f"{kind}_s" in span.figures]
    whole_s, covered = sum(span.seconds for span in counted), covered_s(merged((s.began_s, s.ended_s) for s in counted))
    if whole_s - covered <= 1e-9 * whole_s:
        return 0.0
    still_s = float(sum(span.figures.get(each, 0.0) for span in counted for each in _WAITED))
    return float(sum(span.figures[f"{kind}_s"] for span in counted)) - max(0.0, covered - still_s)


def _of_wire(spans: Sequence[TimeSpan], sent: Sequence[int]) -> dict[str, Any]:
    """What the wire did, where no pass says so: of each step, what is not exposed of it is hidden.

    Args:
        sent: Bytes of each message that was sent.
    """
    wire, exposed, reached_s = dict[int, float](), dict[int, float](), -math.inf
    for span in spans:
        if span.kind == "wire":
            wire[span.step] = wire.get(span.step, 0.0) + max(0.0, span.ended_s - max(span.began_s, reached_s))
            reached_s = max(reached_s, span.ended_s)
        exposed[span.step] = exposed.get(span.step, 0.0) + span.figures.get("exposed_s", 0.0)
    calls = [span for span in spans if span.kind == "wire"]
    hidden_s = sum((max(0.0, seconds - exposed[step]) for step, seconds in wire.items()), 0.0)
    nbytes = sum(span.fields.get("sent_bytes", 0) for span in calls) + sum(sent)
    return {"hidden_s": hidden_s, "bytes_sent": nbytes, "calls": len(calls) + len(sent)}


def gaps_in(rank: int, spans: Iterable[TimeSpan], least_s: float) -> list[Gap]:
    """The stretches of at least so many seconds in which a rank did nothing that was recorded.

    Args:
        spans: Of the rank. Waiting is no work, nor is what the wire does, nor the span of a whole pass.
    """
    busy = sorted((s for s in spans if s.kind not in _NO_WORK), key=lambda s: (s.began_s, -s.ended_s))
    gaps, last = [], None
    for span in busy:
        if last is not None and span.began_s - last.ended_s >= least_s and span.began_s > last.ended_s:
            gaps.append(Gap(rank, last.ended_s, span.began_s, _called(last), _called(span)))
        if last is None or span.ended_s > last.ended_s:
            last = span
    return gaps


def table_of(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as lines, with the columns aligned on the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)


def _called(span: TimeSpan) -> str:
    return f"{span.kind} {span.name}" if span.name else span.kind


def plain(value: Any) -> Any:
    """A value as JSON has it: numbers, text, lists and mappings; anything else as its text."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return str(value)


def dump_plain(value: Any) -> Any:
    """Plain data with each number that is not finite as a mapping, which strict JSON has."""
    return each_number(value, lambda number: {"$number": str(number)})


def load_plain(value: dict[str, Any]) -> Any:
    """The object_hook of json.loads that takes back what `dump_plain` changed."""
    return float(value["$number"]) if value.keys() == {"$number"} else value


def each_number(value: Any, change: Callable[[float], Any]) -> Any:
    """Plain data with each number that is not finite changed."""
    if isinstance(value, float) and not math.isfinite(value):
        return change(value)
    if isinstance(value, dict):
        return {key: each_number(each, change) for key, each in value.items()}
    return [each_number(each, change) for each in value] if isinstance(value, list) else value
