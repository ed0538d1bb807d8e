"""What changes from step to step: times, and what was measured and divided. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minigrad.distributed.inspect.steps import RankStep
from minigrad.distributed.record.spans import Event

_LISTS = {"shares": "shares of the batch", "shards": "samples of each rank", "counts": "batches of each rank"}


@dataclass(frozen=True)
class Curve:
    """A figure over the steps.

    Attributes:
        unit: "s" of times; empty else.
        lines: Of each rank, or of all: pairs of step and value, in order; only finite ones.
        left_out: How many values were not finite.
        from_zero: Whether its axis begins at 0.
    """

    name: str
    unit: str
    lines: Mapping[str, tuple[tuple[int, float], ...]]
    left_out: int = 0
    from_zero: bool = False


def curves_of(steps: Mapping[int, Mapping[int, RankStep]], events: Iterable[Event]) -> list[Curve]:
    """Times of the steps, and each figure that an event has.

    A figure is the field "value" of an event, named as its kind, as of `timeline.event("loss", value=0.5)`; the field
    "loss"; and lists of a number for each rank, which hold until the next one: shares, shards and counts.
    """
    walls, works = dict[str, Any](), dict[str, Any]()
    for number, ranks in steps.items():
        for rank, step in ranks.items():
            walls.setdefault(f"rank {rank}", []).append((number, step.wall_s))
            works.setdefault(f"rank {rank}", []).append((number, step.work_s))
    told: dict[str, dict[str, dict[int, float]]] = {}
    for event in events:
        if event.step < 0:  # of setting up
            continue
        for name, line, value in _figures(event):
            told.setdefault(name, {}).setdefault(line, {})[event.step] = value  # the last one of a step
    for name in told.keys() & set(_LISTS.values()):
        told[name] = {line: _held(points, max(steps, default=0)) for line, points in told[name].items()}
    curves = [_curve(name, "", {line: found.items() for line, found in lines.items()}) for name, lines in told.items()]
    times = [_curve("time of a step of each rank", "s", walls), _curve("of it at work, not waiting", "s", works)]
    return curves + [each for each in times if each.lines]


def _figures(event: Event) -> Iterable[tuple[str, str, float]]:
    fields = event.fields
    if _is_number(fields.get("value")):
        yield event.kind, f"rank {event.rank}", float(fields["value"])
    if _is_number(fields.get("loss")):
        yield "loss", f"rank {event.rank}", float(fields["loss"])
    for key, name in _LISTS.items():
        numbers = fields.get(key)
        if isinstance(numbers, (list, tuple)) and numbers and all(map(_is_number, numbers)):
            for rank, value in enumerate(numbers):
                yield name, f"rank {rank}", float(value)


def _held(points: Mapping[int, float], last: int) -> dict[int, float]:
    """What was decided holds until something else is, or to the last step."""
    held, value = dict[int, float](), math.nan
    for step in range(min(points), max(last, *points) + 1):
        value = held[step] = points.get(step, value)
    return held


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _curve(name: str, unit: str, lines: Mapping[str, Iterable[tuple[int, float]]]) -> Curve:
    kept, left_out = dict[str, tuple[tuple[int, float], ...]](), 0
    for line in sorted(lines, key=lambda line: (len(line), line)):  # rank 2 before rank 10
        every = sorted(lines[line])
        finite = tuple((step, value) for step, value in every if math.isfinite(value))
        left_out += len(every) - len(finite)
        if finite:
            kept[line] = finite
    return Curve(name, unit, kept, left_out, from_zero=unit == "s" or name in _LISTS.values())


def scale_of(curve: Curve) -> tuple[float, float]:
    """The lowest and the highest value of a curve's axis."""
    values = [value for points in curve.lines.values() for _, value in points]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (min(0.0, low) if curve.from_zero else low), high
