"""Replays the recorded steps of data-parallel training, as they were, or as they would be under another choice.

What a rank did by itself takes what it took: data, forward, each gradient, handing a bucket in, the optimizer. When a
bucket goes out, when the wire is free for it, and who waits how long follows anew, by the rules of DDP's passes and on
the channels of a simulation. What a collective costs is as it was recorded, where the choice leaves it alone; else what
the link says: the one given, the one of a simulation, or one that fits what was recorded.
"""

from __future__ import annotations

import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from minigrad.arguments import as_integer
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.distributed.inspect.costs import ReplayCosts
from minigrad.distributed.inspect.buckets import plan_for
from minigrad.distributed.inspect.programs import Key, OwnStep, Programs, programs_of
from minigrad.distributed.inspect.rerun import PassManner, ReplayedRank, SharedWire, let_run
from minigrad.distributed.inspect.shares import sources_of, with_shares
from minigrad.distributed.inspect.steps import paces_between, timeline_of
from minigrad.distributed.inspect.traces import TracePrograms, replay_trace, trace_programs_of
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.links import Link
from minigrad.distributed.simulate.trace import Trace
from minigrad.errors import ArgumentError

_WHO = "replay"


@dataclass(frozen=True)
class Replayed:
    """Recorded steps as they were replayed.

    Attributes:
        choice: What was changed, in words.
        recorded_s: How long each step was, from when the last rank had ended the one before until the last one ended
            it; of the first, from when the first rank began it.
        replayed_s: The same of the replay.
        plan: The buckets, for `DDP(bucket_plan=)`; None of a trace, and where there are several wrappers.
        timeline: What the ranks did in the replay.
        counted: Of how many steps, from the first one, the means are: with a cadence, up to the last one that combines.
    """

    choice: str
    recorded_s: tuple[float, ...]
    replayed_s: tuple[float, ...]
    plan: BucketPlan | None
    timeline: Timeline
    counted: int

    @property
    def step_s(self) -> float:
        """The replayed steps, on average: what happens now and then counts for what it costs."""
        return statistics.fmean(self.replayed_s[: self.counted])

    @property
    def before_s(self) -> float:
        """The same of the recorded ones."""
        return statistics.fmean(self.recorded_s[: self.counted])

    @property
    def saved_fraction(self) -> float:
        """The part of the steps' time that the choice saves; below 0 where it costs."""
        return 1.0 - self.step_s / self.before_s if self.before_s else 0.0

    @property
    def compared(self) -> str:
        """Of which steps the means are, in words; empty where of all."""
        return f" (of the first {self.counted} steps)" if self.counted < len(self.recorded_s) else ""

    def __str__(self) -> str:
        word = "less" if self.step_s <= self.before_s else "more"
        much = f"{abs(self.saved_fraction):.1%} {word}"
        return f"{self.choice}: a step of {self.step_s:.6f} s in place of {self.before_s:.6f} s, {much}{self.compared}"


@dataclass(frozen=True)
class Choice:
    """What is to be otherwise; see `replay`."""

    bucket_cap_bytes: int | None = None
    first_bucket_bytes: int | None = None
    bucket_plan: BucketPlan | None = None
    order: Sequence[int] | Literal["ready"] | None = None
    link: Link | None = None
    shares: Sequence[float] | None = None
    cadence: int | None = None
    world_size: int | None = None

    def in_words(self) -> str:
        """What was chosen."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        chosen = {name: value for name, value in given.items() if value is not None}
        long = {"bucket_plan": "another plan", "link": "another link"}
        return ", ".join(long.get(name, f"{name}={value}") for name, value in chosen.items()) or "as it was"


def replay(
    record: Timeline | Trace,
    *,
    bucket_cap_bytes: int | None = None,
    first_bucket_bytes: int | None = None,
    bucket_plan: BucketPlan | None = None,
    order: Sequence[int] | Literal["ready"] | None = None,
    link: Link | None = None,
    shares: Sequence[float] | None = None,
    cadence: int | None = None,
    world_size: int | None = None,
) -> Replayed:
    """The recorded steps once more, under another choice; with none, as they were.

    It knows no step that was not recorded: what code of one's own, or a layer such as SyncBatchNorm, waits for other
    ranks outside of DDP's passes counts as work that takes what it took.

    Args:
        record: The timeline of `DDP(timeline=)` on all ranks, see `Timeline.gather`; or the trace of a simulation, of
            which another link can be chosen: the ranks call their collectives after the work that came before.
        bucket_cap_bytes: The largest bucket, in place of DDP's `bucket_cap_bytes`, >= 1.
        first_bucket_bytes: The largest first bucket, in place of DDP's `first_bucket_mb`, >= 1. By default what it was,
            or 1 MiB where a smaller cap had cut it; never over the cap.
        bucket_plan: A plan, in place of caps.
        order: The buckets' numbers in the order in which they are to go out; or "ready": in that in which they were
            complete.
        link: The network.
        shares: The part of the batch that each rank gets, of sum 1. Forward and backward take what the rank's recorded
            steps say of so many samples: where they are all of one size, time in proportion to samples.
        cadence: Combine in each so many'th recorded pass of a wrapper, >= 1: between them no rank waits for another
            one. Training so is another algorithm; what steps take does not say what they are worth.
        world_size: So many ranks, >= 1. Rank r does what rank r % W of the record did, on as many samples, so that
            fewer or more samples are computed in all.

    Raises:
        ArgumentError: an argument out of its range; the record is no such timeline; or it does not tell what the
            collectives of another number of ranks cost, and no link was given.

    Example:
        >>> from minigrad import distributed, nn, randn
        >>> from minigrad.distributed import simulate
        >>> def body(comm, timeline):
        ...     ddp = distributed.DDP(nn.Linear(3, 1), comm, timeline=timeline)
        ...     ddp(randn(30, 3)).mean().backward()
        >>> timeline, slow = distributed.Timeline(), simulate.Link(bandwidth_bytes_s=1e4)
        >>> _ = simulate.run(body, simulate.Cluster.of_speeds([1, 1], link=slow), timeline)
        >>> print(replay(timeline, link=simulate.Link(bandwidth_bytes_s=1e5)))
        another link: a step of 0.031280 s in place of 0.042800 s, 26.9% less
    """
    timeline = timeline_of(_WHO, record)
    if link is not None and not isinstance(link, Link):
        raise ArgumentError(f"{_WHO}: expected a Link, got {link!r:.100}")
    choice = Choice(bucket_cap_bytes, first_bucket_bytes, bucket_plan, order, link, shares, cadence, world_size)
    if isinstance(record, Trace):
        if choice != Choice(link=link):
            raise ArgumentError(
                f"{_WHO}: expected no choice but a link, got {choice.in_words()} for a trace, which knows of no "
                "gradients and buckets: give the timeline of DDP(timeline=)"
            )
        return replayed_trace(trace_programs_of(_WHO, timeline), link, choice.in_words())
    return replayed(programs_of(_WHO, timeline), choice, choice.in_words())


def replayed_trace(programs: TracePrograms, link: Link | None, words: str) -> Replayed:
    """What was read of a trace, once more, on a link."""
    paces_s, spans = replay_trace(programs, link)
    return Replayed(words, programs.recorded_s, paces_s, None, Timeline.of(spans, [], "virtual"), len(paces_s))


def replayed(programs: Programs, choice: Choice, words: str) -> Replayed:
    """What was read of a record, once more, under a choice."""
    every = 1 if choice.cadence is None else as_integer(_WHO, "cadence", choice.cadence, 1)
    combining = combining_in(programs, every)
    sources = sources_of(programs, choice.world_size)
    steps = {rank: programs.steps[source] for rank, source in enumerate(sources)}
    if choice.shares is not None:
        steps = with_shares(steps, choice.shares)
    caps = (choice.bucket_cap_bytes, choice.first_bucket_bytes)
    plans = {name: plan_for(programs, name, caps, choice.bucket_plan, choice.order) for name in programs.about}
    ranks = _run(programs, steps, plans, ReplayCosts(_WHO, programs, choice.link, sources), sources, every, combining)
    ends_s = [max(ends_s) for ends_s in zip(*(rank.ends_s for rank in ranks))]
    paces_s = paces_between(min(programs.begins_s.values()), ends_s)
    facts = {rank.number: _facts(programs, plans, choice.link, rank.source, len(ranks)) for rank in ranks}
    made = Timeline.of([span for rank in ranks for span in rank.spans], [], "virtual", facts)
    plan = next(iter(plans.values())) if len(plans) == 1 else None
    ends = [at for own in steps.values() for at, step in enumerate(own) if any(p.key in combining for p in step.passes)]
    counted = len(paces_s) if every == 1 else max(ends) + 1
    return Replayed(words, programs.recorded_s, paces_s, plan, made, counted)


def _facts(
    programs: Programs, plans: Mapping[str, BucketPlan], link: Link | None, source: int, world_size: int
) -> dict[str, Any]:
    """What holds for all of a rank; see `Timeline.facts`."""
    facts: dict[str, Any] = {}
    for name, about in programs.about.items():
        ranks = list(about["ranks"])
        if source in ranks:
            whole = len(ranks) == len(programs.steps)
            groups = [list(bucket.entries) for bucket in plans[name].buckets]
            facts[name] = {**about, "buckets": groups, "ranks": list(range(world_size)) if whole else ranks}
    known = programs.link if link is None else link
    return facts if known is None else {**facts, "link": asdict(known)}


def combining_in(programs: Programs, every: int) -> set[Key]:
    """The passes in which ranks combine: each so many'th of each wrapper.

    Raises:
        ArgumentError: a wrapper has fewer.
    """
    kept = set[Key]()
    for name in sorted({of for of, _ in programs.shared}):
        own = sorted(key for key in programs.shared if key[0] == name)
        if every > len(own):
            passes = f"{len(own)}, the passes of {name!r}"
            raise ArgumentError(f"{_WHO}: expected cadence to be at most {passes}, got {every}")
        kept.update(own[every - 1 :: every])
    return kept


def _run(
    programs: Programs,
    steps: Mapping[int, Sequence[OwnStep]],
    plans: Mapping[str, BucketPlan],
    costs: ReplayCosts,
    sources: Sequence[int],
    every: int,
    combining: Container[Key],
) -> list[ReplayedRank]:
    """Let the ranks make their steps; passes in which nothing is combined have no plan."""
    wires: dict[tuple[int, ...], SharedWire] = {}
    passes: dict[Key, PassManner] = {}
    whole, everyone = tuple(sorted(programs.steps)), tuple(range(len(sources)))
    for own in steps.values():
        for key in (each.key for step in own for each in step.passes if each.key in combining):
            group = tuple(programs.about[key[0]]["ranks"])
            if key not in passes:
                ranks = everyone if group == whole else group
                among = () if ranks == everyone else ranks
                wire = wires.setdefault(ranks, SharedWire(costs.link, len(ranks), among))
                passes[key] = costs.pass_manner(key, plans[key[0]], wire, every)
    made = [ReplayedRank(rank, programs.begins_s[source], source) for rank, source in enumerate(sources)]
    let_run([rank.program(steps[rank.number], passes) for rank in made])
    return made
