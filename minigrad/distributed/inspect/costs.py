"""What collectives and buckets take in a replay: as recorded, as a link says, or as the record lets expect. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from minigrad.distributed.balance.cost import CostModel, Reading, fit_cost
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.distributed.inspect.buckets import recorded_plan
from minigrad.distributed.inspect.programs import Handing, Key, OwnPass, Programs, Sent
from minigrad.distributed.inspect.rerun import PassManner, SharedWire
from minigrad.distributed.simulate.links import Link
from minigrad.errors import ArgumentError

_COUNT_BYTES = 8  # of a number of the first collective, which has one for each rank


def link_of(who: str, programs: Programs) -> Link:
    """The network of a record: that of a simulation, or a ring that takes what was measured.

    Raises:
        ArgumentError: there is no collective that took time.
    """
    if programs.link is not None:
        return programs.link
    count = len(programs.steps)
    sent = [each for shared in programs.shared.values() for each in (shared.counted, *shared.buckets.values())]
    cost, hops = _line([(each.nbytes, each.seconds) for each in sent]), 2 * (count - 1)
    if count == 1 or not (cost.fixed_s or cost.per_sample_s):
        raise ArgumentError(f"{who}: expected a link, got none: the record has no collective that took time")
    rate = hops / count / cost.per_sample_s if cost.per_sample_s else math.inf  # (p - 1)(alpha + beta·n/p), twice
    return Link(cost.fixed_s / hops, rate)


class ReplayCosts:
    """What each collective takes, and each bucket on each rank.

    Args:
        link: The one that was asked for.
        sources: Which recorded rank each one follows.

    Attributes:
        link: The one on which all is replayed; None where what was recorded takes what it took.
    """

    def __init__(self, who: str, programs: Programs, link: Link | None, sources: Sequence[int]) -> None:
        self._who, self._programs, self._sources = who, programs, sources
        self._more = len(sources) - len(programs.steps)
        self.link = link_of(who, programs) if link is None and self._more else link
        self._found = self.link
        self._found_models: dict[tuple[str, int], tuple[CostModel, CostModel]] = {}
        self._recorded = {name: recorded_plan(about) for name, about in programs.about.items()}
        self._own: dict[Key, dict[int, OwnPass]] = {}
        for rank, steps in programs.steps.items():
            for one in (each for step in steps for each in step.passes):
                self._own.setdefault(one.key, {})[rank] = one

    def pass_manner(self, key: Key, plan: BucketPlan, wire: SharedWire, every: int) -> PassManner:
        """How a recorded pass goes this time, one after each so many recorded steps."""
        shared, about = self._programs.shared[key], self._programs.about[key[0]]
        counted = shared.counted._replace(nbytes=shared.counted.nbytes + _COUNT_BYTES * self._more)
        buckets: tuple[tuple[str, ...], ...] = ()
        sent: tuple[Sent, ...] = ()
        handings: dict[int, Sequence[Handing]] = {}
        if shared.buckets:  # else nobody had samples
            buckets = tuple(tuple(plan.names[i] for i in bucket.entries) for bucket in plan.buckets)
            was = self._kept(key, plan)
            sent = self._sent(key, plan, was, wire.world_size)
            for rank, source in enumerate(self._sources):
                if source in self._own[key]:
                    handings[rank] = self._handings(key, source, plan, was)
        in_order, blocking = bool(about["in_order"]), self._programs.blocking
        return PassManner(wire, buckets, sent, handings, counted, shared.later, every, in_order, blocking)

    def _kept(self, key: Key, plan: BucketPlan) -> list[int | None]:
        """Of each bucket which one it was in the record, where there was one of the same parameters."""
        recorded = {bucket.entries: bucket.index for bucket in self._recorded[key[0]].buckets}
        known = self._programs.shared[key].buckets
        found = [recorded.get(bucket.entries) for bucket in plan.buckets]
        return [each if each in known else None for each in found]

    def _sent(self, key: Key, plan: BucketPlan, was: Sequence[int | None], world_size: int) -> tuple[Sent, ...]:
        """What goes out for each bucket."""
        known = self._programs.shared[key].buckets
        others = [each for bucket, each in known.items() if bucket not in was]
        if not others:
            return tuple(known[before] for before in was if before is not None)
        if self._found is None:
            self._found = link_of(self._who, self._programs)
        kind, link, own = others[0].kind, self._found, next(iter(self._own[key].values())).handings
        part = sum(each.nbytes for each in others) / sum(own[i].nbytes for i in known if i not in was)  # by a hook
        expected_s = sum(link.cost_s(kind, each.nbytes, world_size) for each in others)
        slower = _ratio(sum(each.seconds for each in others), expected_s)
        lag_s = {rank: _mean([each.lag_s[rank] for each in others]) for rank in others[0].lag_s}
        made: list[Sent] = []
        for bucket, before in zip(plan.buckets, was):
            nbytes = round(bucket.nbytes * part)
            new = Sent(kind, nbytes, link.cost_s(kind, nbytes, world_size) * slower, lag_s)
            made.append(new if before is None else known[before])
        return tuple(made)

    def _handings(self, key: Key, source: int, plan: BucketPlan, was: Sequence[int | None]) -> tuple[Handing, ...]:
        """What each bucket takes a rank to hand in."""
        known = self._own[key][source].handings
        others = [each for bucket, each in known.items() if bucket not in was]
        before, after = self._models(key[0], source)
        expected_s = [sum(model.time_s(each.nbytes) for each in others) for model in (before, after)]
        befores = _ratio(sum(each.before_s for each in others), expected_s[0])
        afters = _ratio(sum(each.after_s for each in others), expected_s[1])
        made: list[Handing] = []
        for bucket, number in zip(plan.buckets, was):
            size = bucket.nbytes
            new = Handing(size, befores * before.time_s(size), afters * after.time_s(size))
            made.append(new if number is None else known[number])
        return tuple(made)

    def _models(self, name: str, source: int) -> tuple[CostModel, CostModel]:
        """What a rank of the record needs to hand in a bucket: before it calls the collective, and from then on."""
        if (name, source) not in self._found_models:
            own = [passes[source] for key, passes in self._own.items() if key[0] == name and source in passes]
            each = [handing for one in own for handing in one.handings.values()]
            befores = _line([(handing.nbytes, handing.before_s) for handing in each])
            afters = _line([(handing.nbytes, handing.after_s) for handing in each])
            self._found_models[name, source] = befores, afters
        return self._found_models[name, source]


def _mean(lags_s: Sequence[float]) -> float:
    """How long a rank that waits takes to go on: of those times when it waited."""
    waited = [lag_s for lag_s in lags_s if lag_s]
    return statistics.fmean(waited) if waited else 0.0


def _ratio(seconds: float, expected_s: float) -> float:
    """How many times as long as expected it took, so that a pass as a whole takes what it took."""
    return seconds / expected_s if expected_s else 1.0


def _line(points: Sequence[tuple[float, float]]) -> CostModel:
    """Seconds by bytes; none where nothing took any."""
    readings = [Reading(nbytes, seconds) for nbytes, seconds in points if nbytes and seconds > 0.0]
    return fit_cost(readings) if readings else CostModel(0.0, 0.0)
