"""Who was late, in which phase, by how much, and in what part of the steps. Pure.

An all-reduce makes the steps of all ranks equally long, whoever is slow: the others wait. So what is compared is what
each rank did itself. In a step, a rank is late in a phase by what that took it longer than the middle one of the other
ranks; of an even number, than the faster of the middle two. What counts is what stands out of how these seconds vary
from step to step anyway, and what the rank did not make up for in other phases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median

from minigrad.arguments import as_amount, as_real
from minigrad.distributed.inspect.patterns import Pattern, Seen, pattern_in, spread_of
from minigrad.distributed.inspect.steps import RankStep, joined, length_in_words, paces_s, steps_of, timeline_of
from minigrad.distributed.record.spans import table_of
from minigrad.distributed.record.stretches import covered_s, merged
from minigrad.distributed.record.timeline import Timeline
from minigrad.distributed.simulate.trace import Trace
from minigrad.errors import ArgumentError

_WORK = ("data", "forward", "backward", "compute", "link", "optimizer", "checkpoint")
_COMPUTING = ("forward", "backward", "compute")
_RESTLESS = 3.0  # so many times as much as with the others it may vary from step to step, for no reason
_AS_MANY = 1.05  # steps: where some ranks make more than that, as with a cadence, their steps do not correspond
_LISTED = 6  # steps that are named one by one
_MORE_SAMPLES = 1.1
_MOST_OF_IT = 0.75  # a rank that lost so much did not make up for it


@dataclass(frozen=True)
class Late:
    """One rank that was late in one phase.

    Attributes:
        rank: Which; None where the wire itself took longer than else, which all ranks share.
        phase: "data", "forward", "backward", "optimizer", "link" (weighting buckets and handing them in; without a
            rank, the wire), "checkpoint", a kind of one's own spans, "other" (what nobody noted), or, from a trace,
            "compute".
        pattern: "constant", "occasional" or "growing".
        steps: Those in which it was; none where ranks are compared in sum, since some made more steps than others.
        looked_at: How many steps there are in all; 0 in that case.
        by_s: How much longer it took than the others, on average over `steps`; or in sum.
        first_s, last_s: The same as it grows, in the first and in the last of them; by_s where it does not.
        samples: Of this rank in a step, and of the middle one of the others, where it had more to compute on; else
            None. In sum where `steps` are none.
        made_up_s: What of by_s it made up for in other phases, where that is much; else 0.
    """

    rank: int | None
    phase: str
    pattern: Pattern
    steps: tuple[int, ...]
    looked_at: int
    by_s: float
    first_s: float
    last_s: float
    samples: tuple[float, float] | None = None
    made_up_s: float = 0.0

    @property
    def steps_fraction(self) -> float:
        """In what part of the steps."""
        return len(self.steps) / self.looked_at if self.looked_at else 1.0

    @property
    def per_step_s(self) -> float:
        """What it comes to, spread over all steps."""
        return self.by_s * self.steps_fraction

    def __str__(self) -> str:
        phase = "what nobody noted" if self.phase == "other" else self.phase
        head = "The wire took longer than else" if self.rank is None else f"Rank {self.rank} was late in {phase}"
        if self.pattern == "growing":
            first, last = self.steps[0], self.steps[-1]
            how = f"more and more, from {_ms(self.first_s)} in step {first} to {_ms(self.last_s)} in step {last}"
        else:
            how = f"by {_ms(self.by_s)} in {self._which()}"
        said = f"{head}: {how}"
        if self.samples is not None:
            own, middle = self.samples
            there = "in a step" if self.steps else "in all"
            said += f"; it had {own:g} samples {there}, the middle one of the others {middle:g}"
        if self.made_up_s > 0.0:
            said += f"; it made up for {_ms(self.made_up_s)} of that in other phases"
        return f"{said}."

    def _which(self) -> str:
        if not self.steps:
            return "all"
        count, first, last = len(self.steps), self.steps[0], self.steps[-1]
        if count == self.looked_at:
            return f"each of {_counted(count)}" if count > 1 else _counted(count)
        said = f"{count} of {self.looked_at} steps"
        if last - first + 1 == count and count > 1:
            return f"{said}, those from {first} to {last}"
        named = ", ".join(map(str, self.steps[:_LISTED]))
        return f"{said} ({named}{', ...' if count > _LISTED else ''})"


@dataclass(frozen=True)
class LateReport:
    """Which ranks were late; print it.

    Attributes:
        late: What was found, the most costly first.
        wire: Where the wire itself took longer in some steps than in others; else None.
        made: How many steps each rank made.
        steps: How many were looked at, one by one; 0 where some ranks made more than others, so that what each did is
            compared in sum.
        paces_s: How long each step was, see `steps.paces_s`; of the record, where what ranks did is compared in sum.
        waited_s: What each rank waited for other ranks in that time, on average.
        least_fraction: What was given.
    """

    late: tuple[Late, ...]
    wire: Late | None
    made: Mapping[int, int]
    steps: int
    paces_s: tuple[float, ...]
    waited_s: Mapping[int, float]
    least_fraction: float

    @property
    def step_s(self) -> float:
        """The median of them."""
        return median(self.paces_s)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were late, the most costly first."""
        return tuple(dict.fromkeys(each.rank for each in self.late if each.rank is not None))

    def __str__(self) -> str:
        lines = [str(each) for each in self.late]
        if not lines:
            least = f"{_ms(self.least_fraction * self.step_s)} ({self.least_fraction:.0%})"
            varies = "was in the first step alone, varies from step to step or " if self.steps > 1 else ""
            but = f"{', on average' if varies else ''}, but for what {varies}was made up for in another"
            what = _counted(self.steps) if self.steps else "all"
            lines = [f"Nobody was late: in {what} no rank took {least} longer than the others in a phase{but}."]
        if self.wire is not None:
            lines.append(str(self.wire))
        took = length_in_words(self.paces_s)
        if not self.steps:
            steps = ", ".join(f"rank {rank} {count}" for rank, count in self.made.items())
            took = f"All took {_ms(self.step_s)}. Ranks made steps of their own, and are compared in sum: {steps}."
        rows = [["rank", f"waited for ranks, in {'a step' if self.steps else 'all'}"]]
        rows += [[str(rank), _ms(seconds)] for rank, seconds in sorted(self.waited_s.items())]
        return "\n".join([*lines, took, table_of(rows)])


def explain_ranks(
    record: Timeline | Trace, *, least_fraction: float = 0.02, least_s: float | None = None
) -> LateReport:
    """Say which ranks were late, in which phase, by how much and in what part of the steps.

    The phases are those that the record has: data and optimizer where `timeline.span` notes them, forward, backward and
    link where a wrapper has the timeline. A trace knows computing alone. On a GPU, whose streams do not tell it, what
    ranks wait inside a layer, as SyncBatchNorm does, is part of its forward: there nobody can be told to be late.

    Args:
        record: A timeline of all ranks (see `Timeline.gather`), or the trace of a simulation.
        least_fraction: What part of a step lateness has to come to, on average over all steps, to be told, in [0, 1];
            now and then anything may happen, so three times that where it was in one step, twice where in two.
        least_s: How many seconds it has to come to in a step that is named by itself, >= 0. By default a millisecond,
            which an operating system may take from a thread at any time, and 0 in a simulation.

    Raises:
        ArgumentError: the record has no step that two ranks made, or a number is out of its range.

    Example:
        >>> from minigrad.distributed import simulate
        >>> def body(comm):
        ...     for _ in range(4):
        ...         comm.clock.compute(10)
        ...         comm.barrier()
        >>> print(explain_ranks(simulate.run(body, simulate.Cluster.of_speeds([2, 1]))).late[0])
        Rank 1 was late in compute: by 5.0 ms in each of 4 steps.
    """
    least_fraction = as_real("explain_ranks", "least_fraction", least_fraction, 0.0, 1.0)
    is_virtual = set(timeline_of("explain_ranks", record).clocks.values()) <= {"virtual"}
    at_once_s = (0.0 if is_virtual else 1e-3) if least_s is None else as_amount("explain_ranks", "least_s", least_s)
    found = steps_of(record)
    ranks = sorted(set[int]().union(*found.values()))
    counts = {rank: sum(rank in each for each in found.values()) for rank in ranks}
    steps = {number: own for number, own in found.items() if len(own) == len(ranks)}
    if len(ranks) < 2 or not steps:
        hint = ": gather the timelines of all ranks" if len(ranks) == 1 else ""
        raise ArgumentError(
            f"explain_ranks: expected a record with a step that two ranks made, got {len(steps)} steps of ranks "
            f"{ranks}{hint}"
        )
    numbers, made = list(steps), list(steps.values())
    if max(counts.values()) > _AS_MANY * min(counts.values()) + 1:
        numbers, made = [], [{rank: joined([own[rank] for own in found.values() if rank in own]) for rank in ranks}]
    took_s = paces_s(found.values()) if numbers else paces_s(made)
    step_s = median(took_s)
    late = _late_ranks(numbers, made, ranks, (least_fraction * step_s, at_once_s))
    wire = _late_wire(numbers, made, (least_fraction * step_s, at_once_s))
    waited = {rank: fmean(each[rank].idle_s for each in made) for rank in ranks}
    return LateReport(tuple(late), wire, counts, len(numbers), took_s, waited, least_fraction)


def phases_of(step: RankStep) -> dict[str, float]:
    """What a rank did itself in a step, in seconds, by phase; waiting is in none."""
    found = {phase: float(getattr(step, f"{phase}_s")) for phase in _WORK if phase != "link"}
    found |= {"link": step.handing_s, **step.own}
    noted = covered_s(merged((span.began_s, span.ended_s) for span in step.spans if span.kind != "wire"))
    found["other"] = step.other_s if step.compute_s else max(0.0, step.wall_s - noted)
    return found


def _late_ranks(
    numbers: Sequence[int], made: Sequence[Mapping[int, RankStep]], ranks: Sequence[int], least: tuple[float, float]
) -> list[Late]:
    """Each rank in each phase in which it was late, the most costly first."""
    seconds = [{rank: phases_of(own) for rank, own in each.items()} for each in made]
    phases = list(dict.fromkeys(phase for each in seconds for own in each.values() for phase in own))
    taken = {phase: {r: [each[r].get(phase, 0.0) for each in seconds] for r in ranks} for phase in phases}
    late_s = {phase: {r: _behind(taken[phase], r) for r in ranks} for phase in phases}
    found = []
    for rank in ranks:
        for phase in phases:  # in what is not known for work a rank may have waited
            company = _WORK if phase in _WORK else phases
            net_s = [sum(late_s[other][rank][at] for other in company) for at in range(len(made))]
            own = late_s[phase][rank]
            usual_s = sqrt(2.0) * lower_middle([spread_of(each) for each in taken[phase].values()])
            seen = pattern_in(own, min(spread_of(own), _RESTLESS * usual_s), *least)
            if seen is None:
                continue
            in_sum_s = median(net_s[at] for at in seen.at)  # a first step that sets up, say, is no making up
            in_sum = pattern_in(net_s, spread_of(net_s), *least) if in_sum_s > 0.0 else None
            if in_sum is not None or 2.0 * in_sum_s >= seen.by_s:
                samples = _samples([made[at] for at in seen.at], rank) if phase in _COMPUTING else None
                made_up_s = seen.by_s - in_sum_s if in_sum_s < _MOST_OF_IT * seen.by_s else 0.0
                found.append(_named(rank, phase, seen, numbers, samples, made_up_s))
    return sorted(found, key=lambda each: -each.per_step_s)


def _late_wire(
    numbers: Sequence[int], made: Sequence[Mapping[int, RankStep]], least: tuple[float, float]
) -> Late | None:
    """The steps in which the wire took longer for what it carried in most steps."""
    carried = [_carried(list(each.values())) for each in made]
    usual = Counter(what for what, _ in carried).most_common(1)[0][0]
    usual_s = median(seconds for what, seconds in carried if what == usual)
    more_s = [seconds - usual_s if what == usual else 0.0 for what, seconds in carried]
    seen = pattern_in(more_s, spread_of(more_s), *least)
    return None if seen is None else _named(None, "link", seen, numbers)


def _carried(ranks: Sequence[RankStep]) -> tuple[tuple[str, ...], float]:
    """What was on the wire in a step, and how long: of each, where that was least, since ranks wake up when they do."""
    least: dict[tuple[object, ...], float] = {}
    for own in ranks:
        mine: dict[tuple[object, ...], float] = {}
        for span in own.spans:
            if span.kind == "wire":
                name = span.name, span.fields.get("of"), span.fields.get("pass"), span.fields.get("call")
                mine[name] = mine.get(name, 0.0) + span.seconds
        least |= {name: min(seconds, least.get(name, seconds)) for name, seconds in mine.items()}
    return tuple(sorted(str(name) for name, *_ in least)), sum(least.values())


def _behind(taken: Mapping[int, Sequence[float]], rank: int) -> list[float]:
    """How much longer a rank took than the others, in each step."""
    others = zip(*(seconds for other, seconds in taken.items() if other != rank))
    return [own - lower_middle(each) for own, each in zip(taken[rank], others)]


def lower_middle(values: Sequence[float]) -> float:
    """The middle one; of an even number, the lower of the middle two."""
    return sorted(values)[(len(values) - 1) // 2]


def _samples(made: Sequence[Mapping[int, RankStep]], rank: int) -> tuple[float, float] | None:
    """Of a rank and of the middle one of the others in a step; None where it had no more than that."""
    own = fmean(each[rank].samples for each in made)
    others = fmean(lower_middle([step.samples for other, step in each.items() if other != rank]) for each in made)
    return (own, others) if own > _MORE_SAMPLES * others else None


def _named(
    rank: int | None,
    phase: str,
    seen: Seen,
    numbers: Sequence[int],
    samples: tuple[float, float] | None = None,
    made_up_s: float = 0.0,
) -> Late:
    steps = tuple(numbers[at] for at in seen.at if numbers)
    by_s = seen.by_s, seen.first_s, seen.last_s
    return Late(rank, phase, seen.pattern, steps, len(numbers), *by_s, samples, made_up_s)


def _counted(steps: int) -> str:
    return f"{steps} steps" if steps > 1 else "the only step"


def _ms(seconds: float) -> str:
    if seconds >= 1.0:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"
