"""What each rank did in each step, in seconds: how a timeline, or a trace, is read before all else here. Pure.

A step of a rank is as long as

    data_s + forward_s + backward_s + compute_s + optimizer_s + checkpoint_s + idle_s + exposed_s + Σ own + other_s

On a GPU host and device run beside each other, so that the sum may be more there, and other_s 0.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean, median
from typing import Any

from minigrad.distributed.inspect.units import time_text
from minigrad.distributed.record.spans import PASS, WAITING, Event, TimeSpan, counted_twice_s
from minigrad.distributed.record.stretches import Stretch, covered_s, merged, shared_s
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.record.track import in_order
from minigrad.distributed.simulate.trace import Trace
from minigrad.errors import ArgumentError

_ONCE = ("data", "optimizer", "checkpoint")
_KNOWN = (*_ONCE, "forward", "backward", "compute", "weighted", "wire", "wait", PASS, *WAITING)


@dataclass(frozen=True)
class BucketTimes:
    """The life of one bucket on one rank.

    Attributes:
        of, passed, bucket: The wrapper, the number of its pass, and that of the bucket in it.
        nbytes: Of its gradients.
        ready_s: When its last gradient was complete; None where that was not seen, as for what was accumulated before.
        handed_s: While this rank weighted it and handed it in; None on a GPU, where that is on the wire.
        wire: When its collectives were on the wire, in order.
    """

    of: str
    passed: int
    bucket: int
    nbytes: int
    ready_s: float | None
    handed_s: Stretch | None
    wire: tuple[Stretch, ...]

    @property
    def done_s(self) -> float | None:
        """When it was combined."""
        return self.wire[-1][1] if self.wire else None


@dataclass(frozen=True)
class RankStep:
    """The seconds of one rank in one step.

    Attributes:
        began_s, ended_s: From its first moment to the first one of the next step; of the last, to its last moment.
        data_s, optimizer_s, checkpoint_s: As spans say.
        forward_s, backward_s: Computing, as `ddp.stats()` counts it, but without what SyncBatchNorm layers wait in it,
            which stats() can't tell; on a GPU the device's, with that.
        compute_s: Both in one, where a trace does not tell them apart.
        idle_s: Waiting for ranks, in layers too.
        exposed_s: Standing still while the wire works, for layers too.
        hidden_s: What the wire works else.
        handing_s: What it took to weight the buckets and hand them in, waiting and what their wire did aside; a part of
            backward_s, exposed_s and other_s.
        samples: That this rank computed on.
        own: Of each other kind of span, where none of the above was under way.
        other_s: What nobody noted.
        buckets: In the order in which they were handed in.
        spans: All of the step, in order; of one's own that reach over several steps, the part in this one.
    """

    rank: int
    step: int
    began_s: float
    ended_s: float
    data_s: float
    forward_s: float
    backward_s: float
    compute_s: float
    optimizer_s: float
    checkpoint_s: float
    idle_s: float
    exposed_s: float
    hidden_s: float
    handing_s: float
    samples: float
    own: Mapping[str, float]
    other_s: float
    buckets: tuple[BucketTimes, ...]
    spans: tuple[TimeSpan, ...]

    @property
    def wall_s(self) -> float:
        """How long the step was for this rank."""
        return self.ended_s - self.began_s

    @property
    def work_s(self) -> float:
        """What of it the rank did not stand still."""
        return self.wall_s - self.idle_s - self.exposed_s

    @property
    def communication_s(self) -> float:
        """How long the wire worked, exposed or hidden."""
        return self.exposed_s + self.hidden_s


def steps_of(record: Timeline | Trace) -> dict[int, dict[int, RankStep]]:
    """The figures of each step, by its number, of each rank that made it; setting up is left out.

    Args:
        record: A timeline, of all ranks (see `Timeline.gather`), or the trace of a simulation.

    Raises:
        ArgumentError: it is neither.

    Example:
        >>> timeline = Timeline()
        >>> with timeline.span("data"):
        ...     pass
        >>> steps = steps_of(timeline)
        >>> steps[0][0].data_s == steps[0][0].wall_s
        True
    """
    timeline = timeline_of("steps_of", record)
    spans, events = dict[int, list[TimeSpan]](), dict[int, list[Event]]()
    for span in timeline.spans:
        spans.setdefault(span.rank, []).append(span)
    for event in timeline.events:
        events.setdefault(event.rank, []).append(event)
    found: dict[int, dict[int, RankStep]] = {}
    for rank, own in sorted(spans.items()):
        for times in _of_rank(rank, own, events.get(rank, ())):
            found.setdefault(times.step, {})[rank] = times
    return dict(sorted(found.items()))


def paces_s(steps: Iterable[Mapping[int, RankStep]]) -> tuple[float, ...]:
    """How long each step was: from when the last rank had ended the one before until the last one ended it.

    Of the first one, from when the first rank began it: together they are as long as the record. Wherever it is said
    how long a step took, with no rank named, it is this.
    """
    here = list(steps)
    begins_s = [min(own.began_s for own in step.values()) for step in here]
    return paces_between(begins_s[0], [max(own.ended_s for own in step.values()) for step in here])


def paces_between(begin_s: float, ends_s: Sequence[float]) -> tuple[float, ...]:
    """The same, by when the last rank ended each step."""
    return tuple(end_s - before_s for before_s, end_s in zip([begin_s, *ends_s], ends_s))


def length_in_words(paces: Sequence[float]) -> str:
    """How long steps were, as a sentence.

    Example:
        >>> length_in_words([0.5, 0.5, 0.8])
        'The median of 3 steps took 500 ms; on average a step took 600 ms.'
    """
    if len(paces) == 1:
        return f"The only step took {time_text(paces[0])}."
    middle, mean = time_text(median(paces)), time_text(fmean(paces))
    return f"The median of {len(paces):,} steps took {middle}; on average a step took {mean}."


def joined(steps: Sequence[RankStep]) -> RankStep:
    """What several steps of one rank, at least one, come to together."""
    first, sums = steps[0], dict[str, float]()
    for step in steps:
        for kind, seconds in step.own.items():
            sums[kind] = sums.get(kind, 0.0) + seconds
    figures = [each.name for each in fields(RankStep) if each.type == "float"]
    totals: dict[str, Any] = {name: sum(getattr(step, name) for step in steps) for name in figures}
    totals |= {name: tuple(one for step in steps for one in getattr(step, name)) for name in ("buckets", "spans")}
    return replace(first, **{**totals, "began_s": first.began_s, "ended_s": steps[-1].ended_s, "own": sums})


def timeline_of(who: str, record: Any) -> Timeline:
    """The timeline itself, or that of a trace.

    Raises:
        ArgumentError: it is neither.
    """
    found = record.timeline if isinstance(record, Trace) else record
    if not isinstance(found, Timeline):
        raise ArgumentError(f"{who}: expected a Timeline, or the Trace of a simulation, got {record!r:.100}")
    return found


def _of_rank(rank: int, spans: Sequence[TimeSpan], events: Iterable[Event]) -> Iterable[RankStep]:
    """The steps of one rank, whose spans are in order."""
    ready = {_bucket(event.fields): event.at_s for event in events if event.is_of_bucket}
    steps = [(number, own) for number, own in _by_step(spans) if any(span.kind != "wire" for span in own)]
    begins_s = _beginnings([own for _, own in steps])
    windows = []
    for at, (_, own) in enumerate(steps):
        last_s = max(span.ended_s for span in own if span.kind != "wire")
        ended_s = begins_s[at + 1] if at + 1 < len(steps) else last_s
        windows.append((begins_s[at], max(begins_s[at], ended_s)))
    for (number, _), window, own in zip(steps, windows, _cut(steps, windows)):
        yield _step(rank, number, window, own, ready)


def _beginnings(steps: Sequence[Sequence[TimeSpan]]) -> list[float]:
    """When each step begins: with its first span, but for one's own that reach back into steps before."""
    found, over_s = list[float](), -math.inf
    for own in steps:
        known = [span for span in own if span.kind in _KNOWN and span.kind != "wire"]
        moments = [span.began_s for span in own if span.kind not in _KNOWN]
        found.append(min([span.began_s for span in known] + [at for at in moments if at >= over_s], default=math.inf))
        found[-1] = min(moments) if math.isinf(found[-1]) else found[-1]
        over_s = max([over_s, *(span.ended_s for span in known)])
    return found


def _cut(steps: Sequence[tuple[int, list[TimeSpan]]], windows: Sequence[Stretch]) -> list[list[TimeSpan]]:
    """The spans of each step; of one's own that reach over several steps each has its part."""
    found: list[list[TimeSpan]] = [[] for _ in steps]
    begins_s = [began_s for began_s, _ in windows]
    for at, (_, spans) in enumerate(steps):
        began_s, ended_s = windows[at]
        for span in spans:
            if span.kind in _KNOWN or (began_s <= span.began_s and span.ended_s <= ended_s):
                found[at].append(span)
                continue
            first = max(0, bisect_right(begins_s, span.began_s) - 1)
            for here in range(first, max(first + 1, bisect_left(begins_s, span.ended_s))):
                part = max(windows[here][0], span.began_s), min(windows[here][1], span.ended_s)
                if part[0] < part[1] or not span.seconds:
                    found[here].append(span._replace(began_s=part[0], ended_s=part[1], step=steps[here][0]))
    return [in_order(own) for own in found]


def _by_step(spans: Sequence[TimeSpan]) -> list[tuple[int, list[TimeSpan]]]:
    """The spans of each step.

    A rank that has no data makes a pass without a forward, which begins no step of its own; that is made up for here.
    """
    passed: dict[int, dict[str, int]] = {}  # the first pass of each wrapper in a step, as it was noted
    extra: dict[tuple[str, int], int] = {}
    for span in spans:
        named = _pass_of(span)
        if span.kind == PASS and named is not None:
            extra[named] = named[1] - passed.setdefault(span.step, {}).setdefault(*named)
    shifts = dict[int, int]()  # how many steps were made up for before a step ends
    for span in spans:
        shifts[span.step] = max(shifts.get(span.step, 0), extra.get(_pass_of(span) or _NO_PASS, 0))
    before, total = dict[int, int](), 0
    for step in sorted(shifts):
        before[step], total = total, total + shifts[step]
    found: dict[int, list[TimeSpan]] = {}
    reached = dict[int, int]()
    for span in spans:
        if span.step >= 0:
            here = extra.get(_pass_of(span) or _NO_PASS)
            if here is not None:
                reached[span.step] = max(reached.get(span.step, 0), here)
            shift = reached.get(span.step, 0) if here is None else here
            found.setdefault(span.step + before[span.step] + shift, []).append(span)
    return sorted(found.items())


_NO_PASS = ("", -1)


def _pass_of(span: TimeSpan) -> tuple[str, int] | None:
    """The wrapper and the number of the pass to which a span belongs; fields of a user's may be anything."""
    of, number = span.fields.get("of"), span.fields.get("pass")
    return (of, number) if isinstance(of, str) and isinstance(number, int) else None


def _step(
    rank: int, number: int, window: Stretch, spans: list[TimeSpan], ready: Mapping[tuple[Any, ...], float]
) -> RankStep:
    kinds = defaultdict[str, list[TimeSpan]](list)
    for span in spans:
        kinds[span.kind].append(span)
    on_device = not kinds["weighted"] and any("bucket" in span.fields for span in kinds["wire"])
    seconds = {f"{kind}_s": covered_s(_stretches(kinds[kind])) for kind in _ONCE}
    seconds["compute_s"] = _sum(spans, "compute_s")
    for kind in ("forward", "backward"):
        counted = [span for span in kinds[kind] if f"{kind}_s" in span.figures]
        if on_device or not any(f"{kind}_s" in span.figures for span in spans):
            seconds[f"{kind}_s"] = covered_s(_stretches(counted or kinds[kind]))
        else:
            seconds[f"{kind}_s"] = _sum(spans, f"{kind}_s") - counted_twice_s(spans, kind)
    for kind in WAITING:
        held = covered_s(_stretches(kinds[kind]))
        seconds[f"{kind}_s"] = held if on_device else _sum(spans, f"{kind}_s")
    for phase, waits in _inside_s(kinds).items() if not on_device else ():
        for kind, held in waits.items():
            seconds[f"{kind}_s"], seconds[f"{phase}_s"] = seconds[f"{kind}_s"] + held, seconds[f"{phase}_s"] - held
    told = any("hidden_s" in span.figures for span in spans)
    wire_s = covered_s(_stretches(kinds["wire"]))
    seconds["hidden_s"] = _sum(spans, "hidden_s") if told else max(0.0, wire_s - seconds["exposed_s"])
    seconds["handing_s"] = _handing_s(kinds)
    seconds["samples"] = _sum(spans, "samples")
    known = _stretches(span for span in spans if span.kind in _KNOWN and span.kind not in ("wire", "weighted"))
    own: dict[str, float] = {}
    for kind in [kind for kind, here in kinds.items() if here and kind not in _KNOWN]:
        these = _stretches(kinds[kind])
        own[kind] = covered_s(these) - shared_s(these, known)
        known = merged([*known, *these])
    other_s = max(0.0, window[1] - window[0] - sum(own.values()) - sum(seconds[name] for name in _PARTS))
    buckets = tuple(_buckets(spans, ready))
    return RankStep(rank, number, *window, **seconds, own=own, other_s=other_s, buckets=buckets, spans=tuple(spans))


def _inside_s(kinds: Mapping[str, list[TimeSpan]]) -> dict[str, dict[str, float]]:
    """What layers wait by themselves in forward, and in backward, for ranks and for the wire."""
    inside = {kind: _stretches(span for span in kinds[kind] if "inside" in span.fields) for kind in WAITING}
    if not any(inside.values()):
        return {}
    forward = _stretches(span for span in kinds["forward"] if "forward_s" in span.figures)
    found = {"forward": {kind: shared_s(stretches, forward) for kind, stretches in inside.items()}}
    found["backward"] = {kind: covered_s(each) - found["forward"][kind] for kind, each in inside.items()}
    return found


_PARTS = (*(f"{kind}_s" for kind in (*_ONCE, *WAITING)), "forward_s", "backward_s", "compute_s")


def _handing_s(kinds: Mapping[str, list[TimeSpan]]) -> float:
    """What it took to hand the buckets in, less what their rank waited, and what their own wire worked, meanwhile."""
    handed = {_bucket(span.fields): span for span in kinds["weighted"]}
    others = [(span.began_s, span.ended_s) for kind in WAITING for span in kinds[kind]]
    for span in kinds["wire"]:
        mine = handed.get(_bucket(span.fields))
        if mine is not None and span.began_s < mine.ended_s:
            others.append((span.began_s, min(span.ended_s, mine.ended_s)))
    handing, held_s = _stretches(handed.values()), sum(span.fields.get("held_s", 0.0) for span in kinds["wire"])
    return covered_s(handing) - shared_s(handing, merged(others)) + float(held_s)


def _sum(spans: Iterable[TimeSpan], name: str) -> float:
    return float(sum(span.figures.get(name, 0.0) for span in spans))


def _bucket(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    return fields.get("of"), fields.get("pass"), fields.get("bucket")


def _buckets(spans: Iterable[TimeSpan], ready: Mapping[tuple[Any, ...], float]) -> Iterable[BucketTimes]:
    found: dict[tuple[Any, ...], list[TimeSpan]] = {}
    for span in spans:
        if "bucket" in span.fields and span.kind in ("weighted", "wire"):
            found.setdefault(_bucket(span.fields), []).append(span)
    for name, own in found.items():
        handed = [(span.began_s, span.ended_s) for span in own if span.kind == "weighted"]
        wire = tuple((span.began_s, span.ended_s) for span in own if span.kind == "wire")
        at_s, nbytes = ready.get(name), int(own[0].fields.get("nbytes", 0))
        of, passed, bucket = name
        yield BucketTimes(of, passed, bucket, nbytes, at_s, handed[0] if handed else None, wire)


def _stretches(spans: Iterable[TimeSpan]) -> list[Stretch]:
    return merged((span.began_s, span.ended_s) for span in spans)
