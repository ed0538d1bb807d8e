"""What one pass sends and waits for, on its rank's clock: how long the wire works, and how long the rank stands still.

The wire works from when all ranks have called a collective, and the one before it is over, until it is over; and while
a call holds the rank, to weight or to add up say. A rank stands still while it waits, and while a call holds it. Until
all ranks have called a collective it waits for a rank; from then on for the wire. What the wire does meanwhile is
exposed; all else of it is hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from minigrad.distributed.comm.front import HostClock
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.comm.work import DoneWork
from minigrad.distributed.ddp.stats import Stats

Stretch = tuple[float, float]  # when it began, and when it ended


class Account(NamedTuple):
    """Seconds of one pass on one rank.

    Attributes:
        idle_s: Waiting for ranks that had not called a collective yet.
        exposed_s: Standing still while the wire works.
        hidden_s: What the wire works else.
        blocked: Each stretch in which the rank stood still.
        taken: Each in which the wire worked for this pass, or the rank stood still for it with all ranks there.
    """

    idle_s: float
    exposed_s: float
    hidden_s: float
    blocked: list[Stretch]
    taken: list[Stretch]


class Ledger:
    """Takes the notes of one pass.

    Attributes:
        sent: Collectives so far, and nbytes: what this rank handed in to them; the sum of the samples is in neither.
        others: What passes of other wrappers, which run in the same backward and are over, came to.
    """

    def __init__(self, clock: Clock) -> None:
        self.now_s = clock.now_s
        self._calls_take_time = isinstance(clock, HostClock)  # in a simulation it is computing that passes in them
        self.sent = self.nbytes = 0
        self.others: list[Account] = []
        self._calls: list[tuple[Any, float, float]] = []  # what came back, when it was called, when that was over
        self._waits: list[tuple[Any, float, float]] = []
        self._first: dict[int, Stretch] = {}  # by id of what came back, the first wait for it
        self._spans: dict[int, Stretch | None] = {}  # likewise: some know it only for a while

    def called(self, work: Any, began_s: float, nbytes: int | None = None) -> None:
        """A collective was called: just now, since began_s."""
        self._calls.append((work, began_s, self.now_s()))
        if nbytes is not None:
            self.sent += 1
            self.nbytes += nbytes

    def waited(self, work: Any, began_s: float) -> None:
        """A wait for it is over: just now, since began_s."""
        ended_s = self.now_s()
        self._waits.append((work, began_s, ended_s))
        self._first.setdefault(id(work), (began_s, ended_s))
        self._spans[id(work)] = work.span

    def wait(self, work: Any, host: bool = False) -> None:
        """Wait for it."""
        began_s = self.now_s()
        work.wait(host)
        self.waited(work, began_s)

    def done(self, work: Any) -> bool:
        """Whether it is over; a look that finds it so may have made time pass, in a simulation."""
        began_s = self.now_s()
        done: bool = work.done()
        if done:
            self.waited(work, began_s)
        return done

    def account(self) -> Account:
        """What it comes to, once all is over."""
        spans, reached_s, wire_s = {}, -math.inf, 0.0
        busy: list[Stretch] = []
        blocked: list[Stretch] = []
        held: list[Stretch] = []
        still: list[Stretch] = []
        idle_s = exposed_s = 0.0
        for work, began_s, called_s in self._calls:
            key = id(work)
            known = self._spans.get(key) or work.span
            spans[key] = started_s, done_s = _span(work, known, began_s, called_s, self._first.get(key))
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
        for work, began_s, ended_s in self._waits:
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
            exposed_s += sum([end_s - begin_s for begin_s, end_s in held]) if self._calls_take_time else inside_s
            hidden_s -= inside_s
        if self.others:
            hidden_s -= _overlap_s(_merged([stretch for other in self.others for stretch in other.taken]), busy)
        return Account(idle_s, exposed_s, max(0.0, hidden_s), blocked, busy + still)

    def add_to(self, stats: Stats, began_s: float, over_s: float, company: Iterable[Ledger]) -> None:
        """Add what the pass took to the statistics: from when it began until there was nothing to do but wait.

        Args:
            company: Of passes of other wrappers that end after this one.
        """
        account = self.account()
        stats.idle_s += account.idle_s
        stats.exposed_s += account.exposed_s
        stats.hidden_s += account.hidden_s
        stats.backward_s -= self._blocked_s(account, began_s, over_s)
        for other in company:
            other.others.append(account)

    def _blocked_s(self, account: Account, first_s: float, last_s: float) -> float:
        """How long the rank stood still between two moments, for this pass or for others."""
        blocked_s = 0.0
        for each in (account, *self.others):
            for began_s, ended_s in each.blocked:
                blocked_s += max(0.0, min(ended_s, last_s) - max(began_s, first_s))
        return blocked_s


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
