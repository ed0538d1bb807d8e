"""Spans and events of one rank, or of several, and what can be read from them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

BUSY = ("data", "forward", "backward", "weighted", "compute", "optimizer", "checkpoint")
WAITING = ("idle", "exposed")
PASS = "pass"


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


class Event(NamedTuple):
    """What happened on a rank at one moment: "ready" and "done" of a bucket, a decision with its reason."""

    rank: int
    kind: str
    at_s: float
    step: int
    fields: dict[str, Any]


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
        steps: How many were recorded.
        wall_s: From the first moment that was recorded to the last.
        seconds: Of each kind of span, in the order in which they came. A span within another one of its kind, as that
            of a module within another module, is not counted again.
        forward_s, backward_s, idle_s, exposed_s, hidden_s: As `ddp.stats()` has them, of the passes recorded.
        bytes_sent, calls: The same.
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

    def __str__(self) -> str:
        columns = ("forward_s", "backward_s", "idle_s", "exposed_s", "hidden_s")
        rows = [["rank", "steps", "wall_s", *columns, "overlap"]]
        for each in self.ranks:
            figures = [f"{getattr(each, column):.4f}" for column in ("wall_s", *columns)]
            rows.append([str(each.rank), str(each.steps), *figures, f"{each.overlap_fraction:.0%}"])
        return table_of(rows)


def summary_of(rank: int, spans: Sequence[TimeSpan], events: Sequence[Event]) -> RankSummary:
    """The seconds of one rank, whose spans are in order of their beginning."""
    seconds, reached = dict[str, float](), dict[str, float]()
    sums: dict[str, Any] = dict.fromkeys(("backward_s", "idle_s", "exposed_s", "hidden_s"), 0.0)
    sums |= {"forward_s": 0.0, "bytes_sent": 0, "calls": 0}
    for span in spans:
        begin_s = max(span.began_s, reached.get(span.kind, -math.inf))
        seconds[span.kind] = seconds.get(span.kind, 0.0) + max(0.0, span.ended_s - begin_s)
        reached[span.kind] = max(span.ended_s, begin_s)
        for key in sums.keys() & span.fields.keys():
            sums[key] += span.fields[key]
    steps = {span.step for span in spans} | {event.step for event in events}
    moments = [moment for span in spans for moment in (span.began_s, span.ended_s)] + [event.at_s for event in events]
    wall_s = max(moments) - min(moments) if moments else 0.0
    return RankSummary(rank, len(steps), wall_s, seconds, **sums)


def gaps_in(rank: int, spans: Iterable[TimeSpan], least_s: float) -> list[Gap]:
    """The stretches of at least so many seconds in which a rank did nothing that was recorded.

    Args:
        spans: Of the rank. Waiting is no work, nor is what the wire does, nor the span of a whole pass.
    """
    busy = sorted((s for s in spans if s.kind not in (*WAITING, PASS, "wire")), key=lambda s: (s.began_s, -s.ended_s))
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
