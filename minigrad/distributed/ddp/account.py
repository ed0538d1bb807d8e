"""What the notes of one pass come to: how long the wire works, and how long the rank stands still. Pure.

The wire works from when all ranks have called a collective, and the one before it is over, until it is over; and while
a call holds the rank, to weight or to add up say. A rank stands still while it waits, and while a call holds it: for a
rank until all have called a collective, then for the wire. What that does meanwhile is exposed; all else is hidden.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from minigrad.distributed.comm.work import DoneWork

Stretch = tuple[float, float]  # when it began, and when it ended
Spans = dict[int, Stretch | None]
Note = tuple[Any, float, float]  # what a call gave back, when it was called or waited for, when that was over


class Account(NamedTuple):
    """Seconds of one pass on one rank.

    Attributes:
        idle_s: Waiting for ranks that had not called a collective yet.
        exposed_s: Standing still while the wire works.
        hidden_s: What the wire works else.
        blocked: Each stretch in which the rank stood still.
        taken: Each in which the wire worked for this pass, or the rank stood still for it with all ranks there.
        spans: When all ranks had called each collective, and when it was over, by the id of what its call gave back.
    """

    idle_s: float
    exposed_s: float
    hidden_s: float
    blocked: list[Stretch]
    taken: list[Stretch]
    spans: dict[int, Stretch]


def account_of(
    calls: list[Note], waits: list[Note], known: Spans, others: list[Account], calls_take_time: bool
) -> Account:
    """The account of what was called and waited for, once all is over.

    Args:
        known: Of some collectives, by the id of what their call gave back.
        others: What passes of other wrappers, which run in the same backward and are over, came to.
        calls_take_time: In a simulation it is computing that passes in them.
    """
    first = {id(work): (began_s, ended_s) for work, began_s, ended_s in reversed(waits)}
    reached_s, wire_s, idle_s, exposed_s, spans = -math.inf, 0.0, 0.0, 0.0, dict[int, Stretch]()
    busy, blocked, held, still = list[Stretch](), list[Stretch](), list[Stretch](), list[Stretch]()
    for work, began_s, called_s in calls:
        span = known.get(id(work)) or work.span
        spans[id(work)] = started_s, done_s = _span(work, span, began_s, called_s, first.get(id(work)))
        begin_s = max(started_s, reached_s)
        if done_s > begin_s:
            wire_s += done_s - begin_s
            busy.append((begin_s, done_s))
            reached_s = done_s
        if called_s > began_s:
            blocked.append((began_s, called_s))
            if isinstance(work, DoneWork) and work.span is not None:  # the call blocked
                late_s = max(0.0, min(started_s, called_s) - began_s)
                idle_s, began_s = idle_s + late_s, began_s + late_s
            held.append((began_s, called_s))
    for work, began_s, ended_s in waits:
        started_s, done_s = spans.get(id(work), (began_s, ended_s))
        late_s = 0.0
        if began_s < done_s:
            late_s = min(max(0.0, started_s - began_s), ended_s - began_s)
            idle_s += late_s
            exposed_s += ended_s - began_s - late_s
        blocked.append((began_s, ended_s))
        still.append((began_s + late_s, ended_s))
    hidden_s = wire_s - exposed_s
    if held:
        inside_s = _overlap_s(held, busy)
        exposed_s += sum([end_s - begin_s for begin_s, end_s in held]) if calls_take_time else inside_s
        hidden_s -= inside_s
    if others:
        hidden_s -= _overlap_s(_merged([stretch for other in others for stretch in other.taken]), busy)
    return Account(idle_s, exposed_s, max(0.0, hidden_s), blocked, busy + still, spans)


def _span(work: Any, known: Stretch | None, began_s: float, called_s: float, wait: Stretch | None) -> Stretch:
    """When all ranks had called a collective, and when it was over, as far as this rank is concerned."""
    if known is None:  # nobody tells: it may have run from its call to the end of its wait
        return called_s, called_s if wait is None else wait[1]
    started_s, done_s = known
    if started_s <= called_s:  # this rank was the last to call it, and maybe held until it was over
        done_s = max(done_s, called_s) if began_s < done_s <= called_s else done_s
    if wait is not None and wait[0] < done_s < wait[1]:
        done_s = wait[1]  # a rank that waits needs time to wake up
    return started_s, done_s


def _merged(stretches: list[Stretch]) -> list[Stretch]:
    """Disjoint stretches, in order, that cover the same time."""
    merged: list[Stretch] = []
    for began_s, ended_s in sorted(stretches):
        if merged and began_s <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended_s)
        else:
            merged.append((began_s, ended_s))
    return merged


def _overlap_s(some: list[Stretch], others: list[Stretch]) -> float:
    """Seconds that lie in both of two lists of disjoint stretches, each in order."""
    total_s, at = 0.0, 0
    for began_s, ended_s in some:
        while at < len(others) and others[at][1] <= began_s:
            at += 1
        here = at
        while here < len(others) and others[here][0] < ended_s:
            total_s += min(ended_s, others[here][1]) - max(began_s, others[here][0])
            here += 1
    return total_s
