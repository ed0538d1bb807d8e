"""Replays the recorded steps of data-parallel training, as they were, or as they would be under another choice.

What a rank did by itself takes what it took: data, forward, each gradient, handing a bucket in, the optimizer. When a
bucket goes out, when the wire is free for it, and who waits how long follows anew, by the rules of DDP's passes and on
the channels of a simulation. What a collective costs is as it was recorded, where the choice leaves it alone; else what
the link says: the one given, the one of a simulation, or one that fits what was recorded.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from minigrad.arguments import as_integer
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.distributed.inspect.costs import ReplayCosts
from minigrad.distributed.inspect.buckets import plan_for
from minigrad.distributed.inspect.programs import Key, OwnStep, Programs, programs_of
from minigrad.distributed.inspect.rerun import PassManner, ReplayedRank, SharedWire, let_run
from minigrad.distributed.inspect.shares import sources_of, with_shares
from minigrad.distributed.inspect.steps import timeline_of
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
        recorded_s: How long each step was, from the first rank that began it to the last one that ended it.
        replayed_s: The same of the replay.
        plan: The buckets, for `DDP(bucket_plan=)`; None where there are several wrappers.
        timeline: What the ranks did in the replay.
    """

    choice: str
    recorded_s: tuple[float, ...]
    replayed_s: tuple[float, ...]
    plan: BucketPlan | None
    timeline: Timeline

    @property
    def step_s(self) -> float:
        """The median of the replayed steps."""
        return statistics.median(self.replayed_s)

    @property
    def before_s(self) -> float:
        """The median of the recorded steps."""
        return statistics.median(self.recorded_s)

    @property
    def saved_fraction(self) -> float:
        """The part of a step that the choice saves; below 0 where it costs."""
        return 1.0 - self.step_s / self.before_s if self.before_s else 0.0

    def __str__(self) -> str:
        word = "less" if self.step_s <= self.before_s else "more"
        much = f"{abs(self.saved_fraction):.1%} {word}"
        return f"{self.choice}: a step of {self.step_s:.6f} s in place of {self.before_s:.6f} s, {much}"


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
        record: The timeline of `DDP(timeline=)` on all ranks; see `Timeline.gather`.
        bucket_cap_bytes: The largest bucket, in place of DDP's `bucket_cap_bytes`, >= 1.
        first_bucket_bytes: The largest first bucket, in place of DDP's `first_bucket_mb`, >= 1. By default what it was,
            or 1 MiB where a smaller cap had cut it; never over the cap.
        bucket_plan: A plan, in place of caps.
        order: The buckets' numbers in the order in which they are to go out; or "ready": in that in which they were
            complete.
        link: The network.
        shares: The part of the batch that each rank gets, of sum 1. Forward and backward take what the rank's recorded
            steps say of so many samples: where they are all of one size, time in proportion to samples.
        cadence: Combine after each so many recorded steps, >= 1: between them no rank waits for another one. Training
            so is another algorithm; what steps take does not say what they are worth.
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
    programs = programs_of(_WHO, timeline_of(_WHO, record))
    if link is not None and not isinstance(link, Link):
        raise ArgumentError(f"{_WHO}: expected a Link, got {link!r:.100}")
    every = 1 if cadence is None else as_integer(_WHO, "cadence", cadence, 1)
    sources = sources_of(programs, world_size)
    steps = {rank: programs.steps[source] for rank, source in enumerate(sources)}
    if shares is not None:
        steps = with_shares(steps, shares)
    caps = (bucket_cap_bytes, first_bucket_bytes)
    plans = {name: plan_for(programs, name, caps, bucket_plan, order) for name in programs.about}
    costs = ReplayCosts(_WHO, programs, link, sources)
    ranks = _run(programs, steps, plans, costs, sources, every)
    numbers = range(len(programs.recorded_s))
    walls_s = tuple(max(r.ends_s[i] for r in ranks) - min(r.begins_s[i] for r in ranks) for i in numbers)
    made = Timeline.of([span for rank in ranks for span in rank.spans], [], "virtual")
    given = {"bucket_cap_bytes": bucket_cap_bytes, "first_bucket_bytes": first_bucket_bytes}
    given |= {"cadence": cadence, "world_size": world_size}
    words = _words({**given, "order": order, "another plan": bucket_plan, "another link": link, "shares": shares})
    plan = next(iter(plans.values())) if len(plans) == 1 else None
    return Replayed(words, programs.recorded_s, walls_s, plan, made)


def _words(given: Mapping[str, Any]) -> str:
    chosen = {name: value for name, value in given.items() if value is not None}
    said = [name if name.startswith("another") else f"{name}={value}" for name, value in chosen.items()]
    return ", ".join(said) or "as it was"


def _run(
    programs: Programs,
    steps: Mapping[int, Sequence[OwnStep]],
    plans: Mapping[str, BucketPlan],
    costs: ReplayCosts,
    sources: Sequence[int],
    every: int,
) -> list[ReplayedRank]:
    """Let the ranks make their steps; those after which nothing is combined have no plan for their passes."""
    wires: dict[tuple[int, ...], SharedWire] = {}
    passes: dict[Key, PassManner] = {}
    whole, everyone = tuple(sorted(programs.steps)), tuple(range(len(sources)))
    for own in steps.values():
        for key in (each.key for step in own[every - 1 :: every] for each in step.passes):
            group = tuple(programs.about[key[0]]["ranks"])
            if key not in passes:
                ranks = everyone if group == whole else group
                among = () if ranks == everyone else ranks
                wire = wires.setdefault(ranks, SharedWire(costs.link, len(ranks), among))
                passes[key] = costs.pass_manner(key, plans[key[0]], wire, every)
    made = [ReplayedRank(rank, programs.begins_s[source], source) for rank, source in enumerate(sources)]
    let_run([rank.program(steps[rank.number], passes) for rank in made])
    return made
