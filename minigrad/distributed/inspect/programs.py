"""What each rank of a record did between its collectives: what a replay lets it do again. Pure.

A step of a rank is work, then the passes of its wrappers, with work in between, then work. A pass is: the sum of the
samples is called; the gradient of one leaf after the other is complete; a bucket is handed in once its gradients are
there; at the end the rank waits for all buckets, and makes what calls follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minigrad.distributed.inspect.steps import RankStep, paces_s, steps_of
from minigrad.distributed.record.spans import PASS, WAITING, TimeSpan
from minigrad.distributed.record.stretches import Stretch, covered_s, merged, shared_s
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.links import Link
from minigrad.errors import ArgumentError

_NO_WORK = ("wire", "weighted", PASS, *WAITING)
_LAST = "after the gradients"
Key = tuple[str, int]  # a wrapper, and the number of its pass


class OwnWork(NamedTuple):
    """What a rank does by itself; kind and name are empty where nobody noted what it is."""

    kind: str
    name: str
    seconds: float


class Handing(NamedTuple):
    """What it takes a rank to hand a bucket in: before it calls the collective, and from then on."""

    nbytes: int
    before_s: float
    after_s: float


class Sent(NamedTuple):
    """A collective, as the wire sees it.

    Attributes:
        seconds: How long it was on the wire, from when all ranks had called it and the one before it was over.
        lag_s: Of each rank, how long after its end a rank went on that waited for it.
    """

    kind: str
    nbytes: int
    seconds: float
    lag_s: Mapping[int, float]


@dataclass(frozen=True)
class OwnPass:
    """What one rank did in a pass.

    Attributes:
        key: Of which wrapper it is, and which one of its passes.
        before: Its work since the step began, or since the pass before.
        leaves: Of each gradient the name, and the seconds until it was complete, in order.
        handings: Of each bucket.
        rest_s: What else it did until the pass was over.
        samples: What its gradients weigh.
        local_steps: Forwards since its last collective.
        bytes_sent: What it handed in.
        one_by_one: It waits for each bucket before it hands in the next.
    """

    key: Key
    before: tuple[OwnWork, ...]
    leaves: tuple[tuple[str, float], ...]
    handings: Mapping[int, Handing]
    rest_s: float
    samples: float
    local_steps: int
    bytes_sent: int
    one_by_one: bool


@dataclass(frozen=True)
class OwnStep:
    """What one rank did in a step."""

    number: int
    passes: tuple[OwnPass, ...]
    after: tuple[OwnWork, ...]


@dataclass(frozen=True)
class SharedPass:
    """What the ranks of a pass called together.

    Attributes:
        counted: The sum of the samples.
        buckets: What went out for each bucket.
        later: What followed.
    """

    counted: Sent
    buckets: Mapping[int, Sent]
    later: tuple[Sent, ...]


@dataclass(frozen=True)
class Programs:
    """What all ranks of a record did.

    Attributes:
        begins_s: When each rank began.
        steps: Of each rank, in order.
        shared: Of each pass.
        about: Of each wrapper, see `Timeline.facts`.
        link: That of a simulation.
        blocking: A call returns once the collective is over.
        recorded_s: How long each step was; see `steps.paces_s`.
    """

    begins_s: Mapping[int, float]
    steps: Mapping[int, tuple[OwnStep, ...]]
    shared: Mapping[Key, SharedPass]
    about: Mapping[str, Mapping[str, Any]]
    link: Link | None
    blocking: bool
    recorded_s: tuple[float, ...]


def programs_of(who: str, timeline: Timeline) -> Programs:
    """What the ranks of a timeline did.

    Raises:
        ArgumentError: it has no synchronising pass of a wrapper, or not those of all of its ranks.
    """
    facts = [own for _, own in sorted(timeline.facts.items())]
    about = {name: each for own in reversed(facts) for name, each in own.items() if "entries" in each}
    found = steps_of(timeline)
    ranks = sorted({rank for step in found.values() for rank in step})
    steps = {number: step for number, step in found.items() if sorted(step) == ranks}
    passes = {rank: {number: _passes(step[rank], about) for number, step in steps.items()} for rank in ranks}
    _check(who, steps, passes, about)
    shared, blocking = _shared([each for own in passes.values() for one in own.values() for each in one])
    made = {}
    for rank in ranks:
        made[rank] = tuple(_own(steps[number][rank], passes[rank][number], blocking) for number in steps)
    first, link = next(iter(steps.values())), next((own["link"] for own in facts if "link" in own), None)
    begins_s = {rank: first[rank].began_s for rank in ranks}
    return Programs(begins_s, made, shared, about, link and _link(link), blocking, paces_s(steps.values()))


def _link(fields: Mapping[str, Any]) -> Link:
    inner = fields["inner"]
    return Link(**{**fields, "inner": inner and _link(inner)})


# --------------------------------------------------------------------------------------------- a pass as it was noted


class _Noted(NamedTuple):
    """The spans of a pass of one rank."""

    key: Key
    rank: int
    whole: TimeSpan
    counted: TimeSpan
    handed: Mapping[int, TimeSpan]
    wire: Mapping[int, list[TimeSpan]]
    later: list[TimeSpan]
    waits: list[TimeSpan]
    leaves: list[TimeSpan]

    @property
    def calls(self) -> list[TimeSpan]:
        """What it called, in order; of what a hook calls for a bucket the last one, as long as all of them."""
        return [self.counted, *(_joined(self.wire[bucket]) for bucket in sorted(self.wire)), *self.later]


def called_s(span: TimeSpan) -> float:
    """When the rank had called what is on the wire."""
    return span.began_s - float(span.fields.get("queued_s", 0.0))


def _joined(spans: list[TimeSpan]) -> TimeSpan:
    first = spans[0]
    sent = sum(span.fields.get("sent_bytes", 0) for span in spans)
    return first._replace(ended_s=spans[-1].ended_s, fields={**first.fields, "sent_bytes": sent})


def _passes(step: RankStep, about: Mapping[str, Any]) -> list[_Noted]:
    found = []
    for whole in sorted((s for s in step.spans if s.kind == PASS), key=lambda s: s.ended_s):
        key = whole.fields.get("of", ""), whole.fields.get("pass", -1)
        own = [span for span in step.spans if (span.fields.get("of"), span.fields.get("pass")) == key]
        wire = [span for span in own if span.kind == "wire"]
        counted = [span for span in wire if span.name == "samples"]
        if key[0] not in about or not counted:
            continue
        buckets: dict[int, list[TimeSpan]] = {}
        for span in wire:
            if "bucket" in span.fields:
                buckets.setdefault(span.fields["bucket"], []).append(span)
        handed = {span.fields["bucket"]: span for span in own if span.kind == "weighted"}
        inside = (span for span in step.spans if span.kind == "backward" and "of" not in span.fields)
        leaves = [span for span in inside if whole.began_s <= span.ended_s <= whole.ended_s]
        later = [span for span in wire if span.name == _LAST]
        waits = [span for span in own if span.kind in WAITING]
        found.append(_Noted(key, step.rank, whole, counted[0], handed, buckets, later, waits, leaves))
    return found


def _check(
    who: str,
    steps: Mapping[int, Any],
    passes: Mapping[int, Mapping[int, list[_Noted]]],
    about: Mapping[str, Mapping[str, Any]],
) -> None:
    noted = {each.key for own in passes.values() for one in own.values() for each in one}
    if not steps or not noted:
        raise ArgumentError(
            f"{who}: expected the timeline of DDP(timeline=) on all ranks with a synchronising pass, got one without: "
            "what combines parameters, or runs on a GPU or on one rank, is not replayed"
        )
    for number in steps:
        for rank, own in passes.items():
            for one, other in zip(own[number], own[number][1:]):
                if called_s(other.counted) < one.whole.ended_s:
                    raise ArgumentError(f"{who}: expected one pass after the other, got two at once in step {number}")
            for each in own[number]:
                planned = len(about[each.key[0]]["buckets"])
                if each.handed and len(each.handed) != planned:
                    raise ArgumentError(
                        f"{who}: expected one plan of buckets in all steps, got {len(each.handed)} buckets in step "
                        f"{number}, and {planned} before: steps around a change, such as freezing, are not replayed"
                    )
                for peer in about[each.key[0]]["ranks"]:
                    if each.key not in [there.key for there in passes.get(peer, {}).get(number, [])]:
                        raise ArgumentError(
                            f"{who}: expected the timeline of all ranks, see Timeline.gather, got pass {each.key[1]} "
                            f"of {each.key[0]!r} on rank {rank}, and not on rank {peer}"
                        )


def _shared(passes: Iterable[_Noted]) -> tuple[dict[Key, SharedPass], bool]:
    """What was called together; and whether a call returns once all is over."""
    by_key: dict[Key, list[_Noted]] = {}
    for each in passes:
        by_key.setdefault(each.key, []).append(each)
    shared, blocking = {}, True
    for key, ranks in by_key.items():
        reached_s, sent = float("-inf"), []
        for calls in zip(*(each.calls for each in ranks)):
            done_s = min(span.ended_s for span in calls)
            begin_s = max(reached_s, *(called_s(span) for span in calls))
            lag_s = {each.rank: _lag_s(each, span, done_s) for each, span in zip(ranks, calls)}
            fields = calls[0].fields
            whole = max(int(span.fields.get("sent_bytes", 0)) for span in calls)
            kind = str(fields.get("collective", "all_reduce"))
            sent.append(Sent(kind, whole, max(0.0, done_s - begin_s), lag_s))
            reached_s = max(reached_s, done_s)
        buckets = sorted(ranks[0].wire)
        shared[key] = SharedPass(sent[0], dict(zip(buckets, sent[1:])), tuple(sent[1 + len(buckets) :]))
        for each in ranks:
            for bucket, handed in each.handed.items():
                over_s = max((span.ended_s for span in each.wire.get(bucket, ())), default=0.0)
                blocking = blocking and handed.began_s < handed.ended_s >= over_s
    return shared, blocking


def _lag_s(noted: _Noted, call: TimeSpan, done_s: float) -> float:
    """How long after a call was over the rank went on, if it waited for it."""
    ends_s = [wait.ended_s for wait in noted.waits if wait.name == call.name and wait.began_s <= done_s <= wait.ended_s]
    return ends_s[0] - done_s if ends_s else 0.0


# ------------------------------------------------------------------------------------------------ what a rank did


def _own(step: RankStep, passes: Sequence[_Noted], blocking: bool) -> OwnStep:
    made, at_s = [], step.began_s
    for each in passes:
        begin_s = called_s(each.counted)
        before = _works(step.spans, at_s, begin_s)
        made.append(_own_pass(step, each, before, blocking))
        at_s = each.whole.ended_s
    return OwnStep(step.step, tuple(made), _works(step.spans, at_s, step.ended_s))


def _own_pass(step: RankStep, noted: _Noted, before: tuple[OwnWork, ...], blocking: bool) -> OwnPass:
    handings = {}
    for bucket, handed in noted.handed.items():
        begin_s = max(handed.began_s, min(handed.ended_s, called_s(noted.wire[bucket][0])))
        from_s = max(begin_s, noted.wire[bucket][-1].ended_s) if blocking else begin_s
        nbytes = int(handed.fields["nbytes"])
        handings[bucket] = Handing(nbytes, begin_s - handed.began_s, max(0.0, handed.ended_s - from_s))
    still = _stretches([*noted.waits, *noted.handed.values()])
    if blocking:
        still = merged([*still, *((called_s(span), span.ended_s) for span in noted.calls)])
    at_s, leaves = called_s(noted.counted), []
    for leaf in noted.leaves:
        begin_s = max(at_s, leaf.began_s)
        leaves.append((leaf.name, _busy_s(begin_s, leaf.ended_s, still)))
        at_s = max(at_s, leaf.ended_s)
    ends_s = [noted.wire[bucket][-1].ended_s for bucket in sorted(noted.wire)]
    begins_s = [noted.handed[bucket].began_s for bucket in sorted(noted.handed)]
    one_by_one = not leaves and all(done_s <= next_s for done_s, next_s in zip(ends_s, begins_s[1:]))
    fields = noted.whole.fields
    forwards = sum(s.kind == "forward" and "forward_s" in s.fields and s.ended_s <= at_s for s in step.spans)
    return OwnPass(
        noted.key,
        before,
        tuple(leaves),
        handings,
        _busy_s(at_s, noted.whole.ended_s, still),
        float(fields["samples"]),
        forwards,
        int(fields["bytes_sent"]),
        one_by_one,
    )


def _works(spans: Iterable[TimeSpan], begin_s: float, end_s: float) -> tuple[OwnWork, ...]:
    """What a rank did between two moments, by the outermost spans."""
    works, at_s = [], begin_s
    for span in sorted((s for s in spans if s.kind not in _NO_WORK), key=lambda s: (s.began_s, -s.ended_s)):
        from_s, to_s = max(span.began_s, at_s), min(span.ended_s, end_s)
        if to_s > from_s:
            if from_s > at_s:
                works.append(OwnWork("", "", from_s - at_s))
            works.append(OwnWork(span.kind, span.name, to_s - from_s))
            at_s = to_s
    if end_s > at_s:
        works.append(OwnWork("", "", end_s - at_s))
    return tuple(works)


def _stretches(spans: Iterable[TimeSpan]) -> list[Stretch]:
    return merged((span.began_s, span.ended_s) for span in spans)


def _busy_s(begin_s: float, end_s: float, still: Sequence[Stretch]) -> float:
    """The seconds between two moments in which a rank did not stand still."""
    return max(0.0, covered_s([(begin_s, end_s)]) - shared_s([(begin_s, end_s)], still)) if end_s > begin_s else 0.0
