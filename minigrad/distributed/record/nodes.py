"""What a timeline says of a run as a graph: stretches of computing and calls of ranks, and what each came after. Pure.

A rank's own work is cut into stretches that do not overlap: each is of the innermost span that was open, and ends where
a span or a stretch of waiting begins or ends, or where the rank called something. What nobody noted, between what was,
is a stretch too; waiting is none. What a rank does comes

- after the stretch before it;
- where it had waited since, after the calls that were over by then, of the wrapper that was waited for;
- where a pass, or in a simulation's trace a step, had ended since, after the calls of it.

A call comes after what the rank had done when it made it, and a collective after the one before it on its wire. All is
in whole nanoseconds.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigrad.distributed.record.spans import PASS, WAITING, Event, TimeSpan

UNNOTED = "not noted"
_RECEIVED = "recv "  # in front of the name of a wire: messages on it, which come in any order
_WAITS = (*WAITING, "wait")
_WAITED, _ENDED, _CALLED, _WORKED = range(4)  # of one moment, in this order
Group = tuple[int, ...]  # global ranks; none where they are all


@dataclass(eq=False)
class TraceNode:
    """A stretch of a rank's own work, or a call of it.

    Attributes:
        kind: "compute", "collective", "send" or "recv".
        name: Of the span.
        began_ns, ended_ns: From the first moment of the timeline on. Of a collective: on the wire.
        step: As in the timeline.
        fields: Of the span; of a send, of its event.
        group: Of a collective.
        after: What had to be over.
        number: Its place among those of its rank, from 0; what it comes after has a smaller one.
    """

    kind: str
    name: str
    began_ns: int
    ended_ns: int
    step: int
    fields: dict[str, Any] = field(default_factory=dict)
    group: Group = ()
    after: list[TraceNode] = field(default_factory=list)
    number: int = -1


def nodes_of(spans: Sequence[TimeSpan], events: Sequence[Event]) -> dict[int, list[TraceNode]]:
    """The nodes of each rank, in order of their numbers.

    Args:
        spans, events: Of all ranks, on one clock.
    """
    zero_s = min([span.began_s for span in spans] + [event.at_s for event in events], default=0.0)
    ranks = sorted({span.rank for span in spans} | {event.rank for event in events})
    members = defaultdict[str, set[int]](set)
    for span in spans:
        if isinstance(span.fields.get("of"), str):
            members[span.fields["of"]].add(span.rank)
    groups = {of: tuple(sorted(those)) if len(those) < len(ranks) else () for of, those in members.items()}
    own_spans, own_events = defaultdict[int, list[TimeSpan]](list), defaultdict[int, list[Event]](list)
    for span in spans:
        own_spans[span.rank].append(span)
    for event in events:
        own_events[event.rank].append(event)
    return {rank: _RankGraph(own_spans[rank], own_events[rank], groups, zero_s).nodes() for rank in ranks}


def stretches_of(spans: Iterable[tuple[int, int, Any]], cuts: Iterable[int]) -> list[tuple[int, int, Any]]:
    """From the first moment to the last, who was the innermost that was open; None where nobody was.

    Args:
        spans: When each began and ended, and what it is.
        cuts: Where a stretch ends in any case.
    """
    waiting = sorted(((began, -ended, i, what) for i, (began, ended, what) in enumerate(spans)), reverse=True)
    if not waiting:
        return []
    apart = set(cuts)
    edges = {moment for began, minus_ended, *_ in waiting for moment in (began, -minus_ended)}
    first, last = min(edges), max(edges)
    moments = sorted(edges | {cut for cut in apart if first < cut < last})
    found: list[tuple[int, int, Any]] = []
    opened: list[tuple[int, int, int, Any]] = []  # the innermost first: it began last, and ends first
    for begin, end in zip(moments, moments[1:]):
        while waiting and waiting[-1][0] <= begin:
            began, minus_ended, i, what = waiting.pop()
            heapq.heappush(opened, (-began, -minus_ended, -i, what))
        while opened and opened[0][1] <= begin:
            heapq.heappop(opened)
        innermost = opened[0][3] if opened else None
        if found and found[-1][2] is innermost and begin not in apart:
            found[-1] = found[-1][0], end, innermost
        else:
            found.append((begin, end, innermost))
    return found


class _RankGraph:
    """Makes the nodes of one rank."""

    def __init__(
        self, spans: list[TimeSpan], events: list[Event], groups: dict[str, Group], zero_s: float
    ) -> None:
        self._groups, self._zero_s = groups, zero_s
        self._moments: list[tuple[int, int, int, Any]] = []  # when, what kind of moment, a number, and of what
        self._wires = defaultdict[str, list[TraceNode]](list)  # by wrapper, or group, in order
        self._names: dict[int, str] = {}  # of the wire that each is on
        self._called: set[int] = set()  # so far, while they are gone through
        self._over: dict[str, int] = {}  # how many of those on a wire the rank has waited for
        self._front: list[TraceNode] = []  # what all that comes next comes after
        self._made: list[TraceNode] = []
        cuts: list[int] = []
        for span in sorted(spans, key=lambda span: (span.ended_s, span.began_s)):  # a wire's calls are over in order
            if span.kind == "wire":
                cuts.append(self._add_wire(span))
            elif span.kind == PASS:
                self._add_moment(self._ns(span.ended_s), _ENDED, span.fields.get("of"))
        for event in events:
            if event.is_message:
                cuts.append(self._add_sent(event))
        self._add_stretches(spans, cuts)

    def nodes(self) -> list[TraceNode]:
        """All of them, numbered."""
        step = -1
        for moment, kind, _, about in sorted(self._moments, key=lambda each: each[:3]):
            if kind == _CALLED:
                about.after += self._front
                self._called.add(id(about))
                if about.kind != "send" and about.ended_ns <= moment:  # at once: nobody waits for it
                    self._wait_for(moment, self._names[id(about)].removeprefix(_RECEIVED))
            elif kind == _WORKED:
                if about.step > step:
                    self._wait_for(moment, None, of_trace=True)
                    step = about.step
                about.after += self._front
                self._front = [about]
            else:
                self._wait_for(moment, about)
        return _numbered(self._made)

    def _wait_for(self, moment: int, of: str | None, of_trace: bool = False) -> None:
        """What comes next comes after the calls that are over: of one wrapper, or of all."""
        for name, wires in self._wires.items():
            owner = name.removeprefix(_RECEIVED)
            if (of is not None and of != owner) or (of_trace and owner in self._groups):
                continue
            seen = at = self._over.get(name, 0)
            while at < len(wires) and wires[at].ended_ns <= moment and id(wires[at]) in self._called:
                at += 1
            if at > seen:
                self._over[name] = at
                if wires[seen].kind == "recv":
                    self._front += wires[seen:at]
                else:  # each comes after the one before it
                    before = wires[seen - 1] if seen else None
                    self._front = [each for each in self._front if each is not before] + wires[at - 1 : at]

    def _ns(self, moment_s: float) -> int:
        return round((moment_s - self._zero_s) * 1e9)

    def _add_moment(self, moment: int, kind: int, about: Any) -> None:
        self._moments.append((moment, kind, len(self._moments), about))

    def _add(self, node: TraceNode) -> TraceNode:
        self._made.append(node)
        return node

    def _add_wire(self, span: TimeSpan) -> int:
        """Take a call; when the rank made it."""
        fields, of = span.fields, span.fields.get("of", "")
        called, began = self._ns(span.began_s - fields.get("queued_s", 0.0)), self._ns(span.began_s)
        comes = fields.get("collective") == "recv"
        group = self._groups[of] if of else tuple(fields.get("ranks", ()))
        wire = (_RECEIVED if comes else "") + (of or f"ranks {list(group)}")
        wires = self._wires[wire]
        before = wires[-1:] if not comes else []
        begin = called if comes else max(called, began, *(each.ended_ns for each in before))
        kind, end = "recv" if comes else "collective", max(begin, self._ns(span.ended_s))
        name = span.name or str(fields.get("collective", kind))
        node = self._add(TraceNode(kind, name, begin, end, span.step, fields, group, before))
        wires.append(node)
        self._names[id(node)] = wire
        self._add_moment(called, _CALLED, node)
        return called

    def _add_sent(self, event: Event) -> int:
        """Take a message; when it was sent."""
        at = self._ns(event.at_s)
        self._add_moment(at, _CALLED, self._add(TraceNode("send", "", at, at, event.step, event.fields)))
        return at

    def _add_stretches(self, spans: Iterable[TimeSpan], cuts: list[int]) -> None:
        own = [(self._ns(s.began_s), self._ns(s.ended_s), s) for s in spans if s.kind not in ("wire", PASS)]
        step = -1
        for begin, end, span in stretches_of((each for each in own if each[1] > each[0]), cuts):
            step = step if span is None else max(step, span.step)
            if span is not None and span.kind in _WAITS:
                self._add_moment(end, _WAITED, span.fields.get("of"))
                continue
            kind, name = (UNNOTED, "") if span is None else (span.kind, span.name)
            node = TraceNode("compute", f"{kind} {name}".strip(), begin, end, step)
            self._add_moment(begin, _WORKED, self._add(node))


def _numbered(nodes: list[TraceNode]) -> list[TraceNode]:
    """In order of time, each behind what it comes after."""
    followers, left = defaultdict[int, list[int]](list), list[int]()
    places = {id(node): place for place, node in enumerate(nodes)}
    for place, node in enumerate(nodes):
        node.after = list({id(each): each for each in node.after}.values())
        left.append(len(node.after))
        for each in node.after:
            followers[places[id(each)]].append(place)
    free = [(node.began_ns, node.kind == "compute", place) for place, node in enumerate(nodes) if not left[place]]
    heapq.heapify(free)
    order: list[TraceNode] = []
    while free:
        *_, done = heapq.heappop(free)
        nodes[done].number = len(order)
        order.append(nodes[done])
        for place in followers[done]:
            left[place] -= 1
            if not left[place]:
                heapq.heappush(free, (nodes[place].began_ns, nodes[place].kind == "compute", place))
    assert len(order) == len(nodes), "nodes that come after each other"
    for node in order:
        node.after.sort(key=lambda each: each.number)
    return order
