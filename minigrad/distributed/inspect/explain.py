"""Where the time of a step went, and what would help most: the recorded steps replayed under other choices."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from minigrad.distributed.balance.allocation import allocate
from minigrad.distributed.balance.cost import CostModel
from minigrad.distributed.inspect.buckets import plan_for, recorded_plan
from minigrad.distributed.inspect.late import Late, explain_ranks
from minigrad.distributed.inspect.programs import OwnStep, Programs, Sent, programs_of
from minigrad.distributed.inspect.punctual import named, punctual, punctual_trace
from minigrad.distributed.inspect.replay import Choice, Replayed, replayed, replayed_trace
from minigrad.distributed.inspect.shares import computing_s, samples_of, working_s
from minigrad.distributed.inspect.steps import RankStep, length_in_words, paces_s, steps_of, timeline_of
from minigrad.distributed.inspect.traces import trace_programs_of
from minigrad.distributed.record.spans import table_of
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.trace import Trace
from minigrad.errors import ArgumentError

_PARTS = {"compute_s": "computing", "waiting_s": "waiting for ranks", "exposed_s": "waiting for the wire"}
_PARTS |= {"overhead_s": "all else"}
_WORTH_IT = 0.01  # of a step: less is none
_UNCHANGED = "as it was"
_FEWEST = 10  # a rank's shard is no smaller than this part of the recorded one: what so few take is not known
_NETWORKS = {"a network twice as fast": 0.5, "a network that takes no time": 0.0}
Offer = tuple[str, Choice]  # in words


@dataclass(frozen=True)
class RankTime:
    """Where the time of a rank went, in seconds of a step on average; the four parts add up to `wall_s`.

    Attributes:
        wall_s: From the beginning of a step to that of the next.
        compute_s: Data, forward, backward, and the optimizer.
        waiting_s: Until other ranks had called a collective.
        exposed_s: For the wire, which nothing hid.
        overhead_s: All else: checkpoints, spans of one's own, and what nobody noted, as handing in buckets.
        hidden_s: What the wire worked besides, while the rank computed; in none of the four.
    """

    rank: int
    wall_s: float
    compute_s: float
    waiting_s: float
    exposed_s: float
    overhead_s: float
    hidden_s: float


@dataclass(frozen=True)
class Explanation:
    """Where the time of recorded steps went; print it.

    Attributes:
        paces_s: How long each step was: from when the last rank had ended the one before until the last one ended it.
        ranks: The seconds of each rank.
        choices: The steps as they would be under other choices, that which saves most first; beside `unchanged`, so
            that what a replay of real ranks leaves out is not taken for what a choice does.
        unchanged: The recorded steps replayed as they were; None where `unknown`.
        unknown: Why there are none, in words; empty where there are.
        beyond: Which of the choices no option of a training stands for: another network, ranks as fast as others.
    """

    paces_s: tuple[float, ...]
    ranks: tuple[RankTime, ...]
    choices: tuple[Replayed, ...] = ()
    unchanged: Replayed | None = None
    unknown: str = ""
    beyond: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many there are."""
        return len(self.paces_s)

    @property
    def step_s(self) -> float:
        """The median of them."""
        return statistics.median(self.paces_s)

    @property
    def mean_s(self) -> float:
        """The mean of them."""
        return statistics.fmean(self.paces_s)

    @property
    def best(self) -> Replayed | None:
        """What would help most; None where nothing that was tried saves 1 % of a step."""
        return next((each for each in self.choices if each.saved_fraction >= _WORTH_IT), None)

    @property
    def best_option(self) -> Replayed | None:
        """The same of what an option of the training stands for."""
        options = (each for each in self.choices if each.choice not in self.beyond)
        return next((each for each in options if each.saved_fraction >= _WORTH_IT), None)

    def fraction(self, part: str) -> float:
        """The part of the time of all ranks that went into one thing: the name of a field of `RankTime`."""
        whole_s = sum(rank.wall_s for rank in self.ranks)
        return float(sum(getattr(rank, part) for rank in self.ranks) / whole_s) if whole_s else 0.0

    def __str__(self) -> str:
        parts = ", ".join(f"{self.fraction(name):.0%} {words}" for name, words in _PARTS.items())
        lines = [length_in_words(self.paces_s), f"Of the ranks' time: {parts}. Of each, in a step on average:"]
        rows = [["rank", "wall_s", *_PARTS, "hidden_s"]]
        for rank in self.ranks:
            rows.append([str(rank.rank), *(f"{getattr(rank, name):.6f}" for name in rows[0][1:])])
        lines.append(table_of(rows))
        if self.unknown:
            return "\n".join([*lines, f"what would help is not known: {self.unknown}"])
        if self.unchanged is not None and abs(self.unchanged.saved_fraction) >= _WORTH_IT:
            lines.append(f"a replay of what is recorded is not exact, and choices are beside it: {self.unchanged}")
        if self.best is None:
            lines.append("nothing that was tried would save 1 % of a step; what was tried, in a step on average:")
        else:
            most, option = self.best.choice, self.best_option
            if option is not None and option is not self.best:
                most += f", and of options of the training {option.choice}"
            lines.append(f"what would help most is {most}; what was tried, in a step on average:")
        return "\n".join([*lines, *(f"  {choice}" for choice in self.choices)])


def explain(record: Timeline | Trace) -> Explanation:
    """Where the time of a step went, and what would help most.

    The latter is found by `replay`: of other caps of buckets, another order, shares by what each rank's samples take,
    ranks that are late (see `explain_ranks`) as fast as the others, a faster network, and combining less often. What a
    choice costs elsewhere it does not say: a faster network has a price, and to combine less often is another
    algorithm.

    Args:
        record: The timeline of all ranks (see `Timeline.gather`), or the trace of a simulation, of which late ranks
            and a faster network are all that is tried, since it knows of no gradients and buckets.

    Raises:
        ArgumentError: it is neither, or has no step.

    Example:
        >>> from minigrad import distributed, nn, randn
        >>> from minigrad.distributed import simulate
        >>> def body(comm, timeline):
        ...     ddp = distributed.DDP(nn.Linear(3, 1), comm, timeline=timeline)
        ...     ddp(randn(30, 3)).mean().backward()
        >>> timeline = distributed.Timeline()
        >>> _ = simulate.run(body, simulate.Cluster.of_speeds([2, 1]), timeline)
        >>> explanation = explain(timeline)
        >>> round(explanation.fraction("compute_s"), 2), round(explanation.fraction("waiting_s"), 2)
        (0.75, 0.25)
        >>> print(explanation.best)
        rank 1 as fast as the others in backward and forward: a step of 0.015000 s in place of 0.030000 s, 50.0% less
        >>> print(explanation.best_option)
        shares of 0.6667, 0.3333 (if time goes with samples): a step of 0.020000 s in place of 0.030000 s, 33.3% less
    """
    timeline = timeline_of("explain", record)
    steps = steps_of(timeline)
    if not steps:
        raise ArgumentError("explain: expected a record with a step, got one without")
    took_s = paces_s(steps.values())
    ranks = sorted({rank for step in steps.values() for rank in step})
    times = tuple(_time_of(rank, [step[rank] for step in steps.values() if rank in step]) for rank in ranks)
    try:
        choices, beyond = _of_trace(timeline) if isinstance(record, Trace) else _of_timeline(timeline)
    except ArgumentError as error:
        return Explanation(took_s, times, unknown=str(error))
    unchanged, *others = choices
    beside = [replace(each, recorded_s=unchanged.replayed_s) for each in others]
    beside.sort(key=lambda choice: -choice.saved_fraction)
    return Explanation(took_s, times, tuple(beside), unchanged, beyond=beyond)


def _time_of(rank: int, steps: Sequence[RankStep]) -> RankTime:
    def mean(*names: str) -> float:
        return math.fsum(getattr(step, name) for step in steps for name in names) / len(steps)

    compute_s = mean("data_s", "forward_s", "backward_s", "compute_s", "optimizer_s")
    wall_s, waiting_s, exposed_s = mean("wall_s"), mean("idle_s"), mean("exposed_s")
    overhead_s = max(0.0, wall_s - compute_s - waiting_s - exposed_s)
    return RankTime(rank, wall_s, compute_s, waiting_s, exposed_s, overhead_s, mean("hidden_s"))


# ------------------------------------------------------------------------------------------------ what may be tried


def _of_trace(timeline: Timeline) -> tuple[list[Replayed], tuple[str, ...]]:
    programs, late = trace_programs_of("explain", timeline), _late_in(timeline)
    tried = {words: programs.faster(factor) for words, factor in _NETWORKS.items()}
    tried |= {named(late): punctual_trace(programs, late)} if late else {}
    each_of = {_UNCHANGED: programs, **tried}
    return [replayed_trace(each, None, words) for words, each in each_of.items()], tuple(tried)


def _of_timeline(timeline: Timeline) -> tuple[list[Replayed], tuple[str, ...]]:
    programs, late = programs_of("explain", timeline), _late_in(timeline)
    tried = {words: _faster(programs, factor) for words, factor in _NETWORKS.items()}
    tried |= {named(late): punctual(programs, late)} if late else {}
    made = [replayed(programs, choice, words) for words, choice in [(_UNCHANGED, Choice()), *_offers(programs)]]
    return [*made, *(replayed(each, Choice(), words) for words, each in tried.items())], tuple(tried)


def _late_in(timeline: Timeline) -> list[Late]:
    """The ranks that were late in steps that are known, and not since they had more to compute on."""
    late = explain_ranks(timeline).late if len(timeline.ranks) > 1 else ()
    return [each for each in late if each.steps and each.samples is None]


def _offers(programs: Programs) -> Iterator[Offer]:
    """What options of a training stand for."""
    if len(programs.about) == 1:
        yield from _of_buckets(programs)
    yield from _of_shares(programs)
    if min(Counter(name for name, _ in programs.shared).values()) >= 2:
        yield "combining half as often", Choice(cadence=2)


def _of_buckets(programs: Programs) -> Iterator[Offer]:
    """Other caps, and the order in which buckets are complete; each plan of buckets once."""
    ((name, about),) = programs.about.items()
    cap, first, plan = int(about["cap_bytes"]), int(about["first_cap_bytes"]), recorded_plan(about)
    whole, seen = sum(bucket.nbytes for bucket in plan.buckets), {plan.id}
    offers = {"buckets in the order in which they are complete": Choice(order="ready")}
    offers |= {f"bucket_cap_bytes={size}": Choice(size, min(size, first)) for size in (cap * 4, max(1, cap // 4))}
    offers |= {f"first_bucket_bytes={first // 4}": Choice(cap, first // 4)} if first >= 4 else {}
    offers |= {"all gradients in one bucket": Choice(whole, whole), "a bucket for each gradient": Choice(1, 1)}
    for words, choice in offers.items():
        caps = (choice.bucket_cap_bytes, choice.first_bucket_bytes)
        other = plan_for(programs, name, caps, None, choice.order)
        if other.id not in seen:
            seen.add(other.id)
            yield words, Choice(bucket_plan=other)


def _of_shares(programs: Programs) -> Iterator[Offer]:
    """Shares with which all ranks would be through at once, where that divides the batch otherwise.

    Forward and backward go with samples; what else a rank does, as to get its data, takes what it took.
    """
    samples = [_mean(own, samples_of) for own in programs.steps.values()]
    seconds = [_mean(own, computing_s) for own in programs.steps.values()]
    if len(samples) < 2 or not all(samples) or not all(seconds):
        return
    else_s = [_mean(own, working_s) - took_s for own, took_s in zip(programs.steps.values(), seconds)]
    costs = [CostModel(max(0.0, own_s), took_s / count) for own_s, took_s, count in zip(else_s, seconds, samples)]
    fewest = [max(1, int(count / _FEWEST)) for count in samples]
    sizes = allocate(round(sum(samples)), costs, at_least=fewest)
    shares = [size / sum(sizes) for size in sizes]
    if any(abs(share - count / sum(samples)) >= _WORTH_IT / len(shares) for share, count in zip(shares, samples)):
        said = f"shares of {', '.join(f'{share:.4f}' for share in shares)}"
        if any(len({samples_of(step) for step in own}) == 1 for own in programs.steps.values()):
            said += " (if time goes with samples)"  # which steps of one size do not tell
        yield said, Choice(shares=shares)


def _mean(steps: Sequence[OwnStep], seconds_of: Callable[[OwnStep], float]) -> float:
    return statistics.fmean(map(seconds_of, steps))


def _faster(programs: Programs, factor: float) -> Programs:
    """The same where each collective takes so many times as long."""

    def scaled(sent: Sent) -> Sent:
        return sent._replace(seconds=sent.seconds * factor)

    shared = {}
    for key, each in programs.shared.items():
        buckets = {number: scaled(sent) for number, sent in each.buckets.items()}
        shared[key] = replace(
            each, counted=scaled(each.counted), buckets=buckets, later=tuple(map(scaled, each.later))
        )
    return replace(programs, shared=shared)
