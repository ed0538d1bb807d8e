"""Lets ranks do again what they did, over another wire: who waits how long follows from when they call what.

Nothing is computed and nothing travels. The collectives run on the channels of a simulation, in order of their number;
a rank goes on until it needs to know the end of a collective that others have not called yet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minigrad.distributed.inspect.programs import Handing, Key, OwnPass, OwnStep, Sent, OwnWork
from minigrad.distributed.record.spans import PASS, TimeSpan
from minigrad.distributed.simulate.links import Link
from minigrad.distributed.simulate.trace import Times
from minigrad.distributed.simulate.wire import Channel


class _Priced:
    """A link on which a collective takes what was said just before, where that is known."""

    def __init__(self, link: Link | None) -> None:
        self._link, self.said_s = link, 0.0

    def cost_s(
        self, kind: str, nbytes: float, world_size: int, ranks: Sequence[int] = (), local_steps: float = 0.0
    ) -> float:
        """See `Link.cost_s`."""
        if self._link is None:
            return self.said_s
        return self._link.cost_s(kind, nbytes, world_size, ranks, local_steps)


@dataclass(eq=False)
class Called:
    """A collective that a rank has called.

    Attributes:
        number: Of the calls on the wire.
        times: When all ranks had called it, and when it is over; known once it is settled.
        at_s: When this rank called it.
    """

    wire: SharedWire
    number: int
    sent: Sent
    times: Times
    at_s: float

    @property
    def is_settled(self) -> bool:
        """Whether all ranks have called it."""
        return self.wire.counts[self.number] == self.wire.world_size


class SharedWire:
    """What the collectives of some ranks run on.

    Args:
        link: What it costs; None for what each `Sent` says.
        ranks: Those of a group; none where they are all.
    """

    def __init__(self, link: Link | None, world_size: int, ranks: Sequence[int] = ()) -> None:
        self.world_size, self._priced = world_size, _Priced(link)
        self._channel = Channel(self._priced, world_size, ranks)
        self._made = Counter[int]()  # by each rank
        self.counts = Counter[int]()  # of each call, how many ranks have made it

    def call(self, rank: int, now_s: float, sent: Sent, local_steps: int) -> Called:
        """A rank calls its next collective."""
        number = self._made[rank]
        self._priced.said_s = sent.seconds
        times = self._channel.call(number, sent.kind, (now_s, sent.nbytes, local_steps))
        self._made[rank] += 1
        self.counts[number] += 1
        return Called(self, number, sent, times, now_s)


@dataclass(frozen=True)
class PassManner:
    """How a pass goes this time.

    Attributes:
        buckets: Of each the names of its parameters, in the order in which they go out.
        sent: What goes out for each.
        handings: What each of them takes a rank, for each rank.
        counted, later: What comes before, and afterwards.
        every: In each so many'th recorded pass the ranks combine.
        in_order: A bucket goes out with the gradient that completes it, and waits for the counts.
        blocking: See `Programs`.
    """

    wire: SharedWire
    buckets: tuple[tuple[str, ...], ...]
    sent: tuple[Sent, ...]
    handings: Mapping[int, Sequence[Handing]]
    counted: Sent
    later: tuple[Sent, ...]
    every: int
    in_order: bool
    blocking: bool


@dataclass
class ReplayedRank:
    """One rank at its work.

    Attributes:
        now_s: Its time.
        source: The rank whose record it follows.
        step: The number of the step under way.
        spans: What it did.
        ends_s: When each step ended.
    """

    number: int
    now_s: float
    source: int
    step: int = 0
    spans: list[TimeSpan] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    def program(self, steps: Iterable[OwnStep], plans: Mapping[Key, PassManner]) -> Iterator[Called]:
        """All steps; gives each collective whose end it has to know, and goes on once that is settled.

        Args:
            plans: Of each pass; one without combines nothing this time.
        """
        for own in steps:
            self.step = own.number
            for each in own.passes:
                self.work(each.before)
                if each.key in plans:
                    yield from _Pass(self, each, plans[each.key]).run()
                else:
                    self.work(OwnWork("backward", name, seconds) for name, seconds in each.leaves)
                    self.now_s += each.rest_s
            self.work(own.after)
            self.ends_s.append(self.now_s)

    def work(self, works: Iterable[OwnWork]) -> None:
        """Do something by itself."""
        for kind, name, seconds in works:
            began_s, self.now_s = self.now_s, self.now_s + seconds
            if kind:
                whole = kind == "forward" or (kind, name) == ("backward", "local")
                self.note(kind, name, began_s, self.now_s, {f"{kind}_s": self.now_s - began_s} if whole else {})

    def note(self, kind: str, name: str, began_s: float, ended_s: float, fields: dict[str, Any]) -> None:
        """A span is over."""
        self.spans.append(TimeSpan(self.number, kind, name, began_s, ended_s, self.step, fields))


class _Pass:
    """A pass of a rank; what a `Pass` of a wrapper does with real gradients."""

    def __init__(self, rank: ReplayedRank, own: OwnPass, plan: PassManner) -> None:
        self._rank, self._own, self._plan = rank, own, plan
        self._mine: dict[str, Any] = {"of": own.key[0], "pass": own.key[1]}
        self._calls: list[tuple[Called, str, dict[str, Any]]] = []
        self._handed: list[Called] = []
        self._is_known = False
        self._sums = {"backward_s": 0.0, "idle_s": 0.0, "exposed_s": 0.0}

    def run(self) -> Iterator[Called]:
        """From the sum of the samples to the end."""
        rank, own, plan, began_s = self._rank, self._own, self._plan, self._rank.now_s
        self._counted = yield from self._call("samples", plan.counted, own.local_steps * plan.every, self._mine)
        here = {name for name, _ in own.leaves}
        missing = [here.intersection(names) for names in plan.buckets]
        for name, seconds in own.leaves:
            rank.work([OwnWork("backward", name, seconds)])
            for names in missing:
                names.discard(name)
            yield from self._launch(missing, plan.in_order)
        self._sums["backward_s"] = rank.now_s - began_s - self._sums["idle_s"] - self._sums["exposed_s"]
        if not self._is_known:
            yield from self._wait(0)
            self._is_known = True
        yield from self._launch(missing, True)
        for number in range(1, 1 + len(plan.buckets)):
            yield from self._wait(number)
        for sent in plan.later:
            yield from self._call("after the gradients", sent, 0, self._mine)
            yield from self._wait(len(self._calls) - 1)
        rank.now_s += own.rest_s
        self._end(began_s)

    def _launch(self, missing: Sequence[set[str]], wait: bool) -> Iterator[Called]:
        """Hand in the next buckets, as long as all of their gradients are there."""
        while len(self._handed) < len(missing) and not missing[len(self._handed)]:
            if not self._is_known:
                if wait:
                    yield from self._wait(0)
                else:
                    yield self._counted
                self._is_known = self._counted.times.done_s <= self._rank.now_s
                if not self._is_known:
                    return
            bucket, rank, began_s = len(self._handed), self._rank, self._rank.now_s
            handing, name = self._plan.handings[rank.number][bucket], f"bucket {bucket}"
            fields = {**self._mine, "bucket": bucket, "nbytes": handing.nbytes}
            rank.now_s += handing.before_s
            self._handed.append((yield from self._call(name, self._plan.sent[bucket], 0, fields)))
            rank.now_s += handing.after_s
            rank.note("weighted", name, began_s, rank.now_s, fields)
            if self._own.one_by_one:
                yield from self._wait(len(self._calls) - 1)

    def _call(
        self, name: str, sent: Sent, local_steps: int, fields: dict[str, Any]
    ) -> Generator[Called, None, Called]:
        called = self._plan.wire.call(self._rank.number, self._rank.now_s, sent, local_steps)
        self._calls.append((called, name, fields))
        if self._plan.blocking:
            yield from self._wait(len(self._calls) - 1)
        return called

    def _wait(self, number: int) -> Iterator[Called]:
        """Wait for what was called."""
        called, name, fields = self._calls[number]
        yield called
        rank, times = self._rank, called.times
        if times.done_s <= rank.now_s:
            return
        come_s = max(rank.now_s, times.started_s)
        over_s = times.done_s + called.sent.lag_s.get(rank.source, 0.0)
        for kind, began_s, ended_s in (("idle", rank.now_s, come_s), ("exposed", come_s, over_s)):
            if ended_s > began_s:
                rank.note(kind, name, began_s, ended_s, fields)
                self._sums[f"{kind}_s"] += ended_s - began_s
        rank.now_s = over_s

    def _end(self, began_s: float) -> None:
        """Note what was on the wire, and what the pass came to."""
        rank, reached_s, wire_s = self._rank, -math.inf, 0.0
        for called, name, fields in self._calls:
            begin_s, done_s = max(called.times.started_s, reached_s), called.times.done_s
            told = {"collective": called.sent.kind, "sent_bytes": called.sent.nbytes, "queued_s": begin_s - called.at_s}
            rank.note("wire", name, begin_s, done_s, {**fields, **told})
            reached_s, wire_s = done_s, wire_s + done_s - begin_s
        sums = {**self._sums, "hidden_s": max(0.0, wire_s - self._sums["exposed_s"])}
        sums |= {"bytes_sent": sum(called.sent.nbytes for called in self._handed), "calls": len(self._handed)}
        rank.note(PASS, self._own.key[0], began_s, rank.now_s, {**self._mine, "samples": self._own.samples, **sums})


def let_run(programs: Sequence[Iterator[Called]]) -> None:
    """Let each go on until all are over.

    Raises:
        RuntimeError: none of them can, since each needs a collective that another one does not call.
    """
    needed: dict[int, Called | None] = dict.fromkeys(range(len(programs)))
    while needed:
        before = dict(needed)
        for number, called in before.items():
            while called is None or called.is_settled:
                called = next(programs[number], None)
                if called is None:
                    break
            needed[number] = called
            if called is None:
                del needed[number]
        if before == needed:
            raise RuntimeError("replay: expected ranks that make the same calls, got some that wait for ever")
