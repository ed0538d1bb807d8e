"""Spans and events as Chrome's trace events, which Perfetto opens (ui.perfetto.dev). Pure.

The format is that of "Trace Event Format" (Google, 2016): complete events "X" with ts and dur in microseconds, metadata
"M", instants "i", and flows from "s" to "f". A rank is a process; what runs beside each other has threads of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minigrad.distributed.record.spans import PASS, Event, TimeSpan, each_number

_LANES = {"wire": (2, "wire"), "idle": (1, "waiting"), "exposed": (1, "waiting"), PASS: (3, "passes")}
_HOST = (0, "host")
_INSIDE_US = 1e-3  # an arrow binds to the slice that is open where it begins or ends


def trace_events(spans: Sequence[TimeSpan], events: Sequence[Event]) -> dict[str, Any]:
    """The trace as one JSON object; the first moment is 0.

    Args:
        spans, events: Of all ranks, on one clock, in order.
    """
    zero_s = min([span.began_s for span in spans] + [event.at_s for event in events], default=0.0)
    ranks = sorted({span.rank for span in spans} | {event.rank for event in events})
    made = [entry for rank in ranks for entry in _names_of(rank)]
    for span in spans:
        begin_us = _us(span.began_s, zero_s)
        entry = {"ph": "X", "cat": span.kind, "name": span.name or span.kind, "ts": begin_us}
        entry |= {"dur": max(0.0, _us(span.ended_s, zero_s) - begin_us), "args": _args(span)}
        made.append(entry | _place(span))
    for event in events:
        entry = {"ph": "i", "s": "t", "cat": "event", "name": event.kind, "ts": _us(event.at_s, zero_s)}
        made.append(entry | {"pid": event.rank, "tid": _HOST[0], "args": _args(event)})
    return {"traceEvents": made + _arrows(spans, events, zero_s), "displayTimeUnit": "ms"}


def _us(moment_s: float, zero_s: float) -> float:
    return round((moment_s - zero_s) * 1e6, 4)


def _args(each: TimeSpan | Event) -> dict[str, Any]:
    kept: dict[str, Any] = each_number(each.fields, str)
    return {"step": each.step, **kept}


def _place(span: TimeSpan) -> dict[str, int]:
    return {"pid": span.rank, "tid": _LANES.get(span.kind, _HOST)[0]}


def _names_of(rank: int) -> Iterable[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for tid, name in sorted({_HOST, *_LANES.values()}):
        yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": tid, "args": {"sort_index": tid}}


def _arrows(spans: Sequence[TimeSpan], events: Sequence[Event], zero_s: float) -> list[dict[str, Any]]:
    """An arrow for each bucket, from when it was ready to when it was done."""
    ready = {_key(event): event for event in events if event.is_of_bucket}
    completing = {(span.rank, span.ended_s): span for span in spans if span.kind == "backward"}
    made: list[dict[str, Any]] = []
    for span in spans:
        event = ready.get(_key(span)) if span.kind == "wire" else None
        if event is None:
            continue
        leaf = completing.get((event.rank, event.at_s))
        begin_us, arrow = _us(event.at_s, zero_s), {"cat": "bucket", "name": span.name, "id": len(made) // 2 + 1}
        if leaf is not None:
            begin_us = max(_us(leaf.began_s, zero_s), begin_us - _INSIDE_US)
        end_us = max(_us(span.began_s, zero_s), _us(span.ended_s, zero_s) - _INSIDE_US)
        made.append({"ph": "s", **arrow, "ts": begin_us, "pid": event.rank, "tid": _HOST[0]})
        made.append({"ph": "f", "bp": "e", **arrow, "ts": max(begin_us, end_us), **_place(span)})
    return made


def _key(each: TimeSpan | Event) -> tuple[Any, ...]:
    return each.rank, each.fields.get("of"), each.fields.get("pass"), each.fields.get("bucket")
