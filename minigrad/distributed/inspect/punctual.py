"""Recorded steps in which no rank is late: what took one longer takes it as long as the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from minigrad.distributed.inspect.late import Late, lower_middle
from minigrad.distributed.inspect.programs import OwnPass, OwnStep, OwnWork, Programs
from minigrad.distributed.inspect.traces import OwnTrace, TracePrograms

_NAMED = 4  # ranks that are named one by one
_PHASES = {"link": "handing buckets in", "other": "what nobody noted"}


def named(late: Iterable[Late]) -> str:
    """What is changed, in words.

    Example:
        >>> named([Late(rank, "data", "constant", (0,), 1, 0.5, 0.5, 0.5) for rank in (1, 2)])
        'ranks 1 and 2 as fast as the others in data'
    """
    phases, alike = dict[int, list[str]](), dict[tuple[str, ...], list[str]]()
    for each in late:
        if each.rank is not None:
            phases.setdefault(each.rank, []).append(_PHASES.get(each.phase, each.phase))
    for rank, own in sorted(phases.items()):
        alike.setdefault(tuple(sorted(own)), []).append(str(rank))
    if len(phases) > _NAMED:
        return f"{len(phases)} ranks, those that were late, as fast as the others"
    said = []
    for kinds, some in alike.items():
        said.append(f"{'ranks' if len(some) > 1 else 'rank'} {_listed(some)} as fast as the others in {_listed(kinds)}")
    return ", and ".join(said)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def punctual(programs: Programs, late: Iterable[Late]) -> Programs:
    """The same where each rank takes, for that in which it was late, what the middle one of the others took.

    Args:
        late: What `explain_ranks` found, with the numbers of the steps.
    """
    steps = {rank: list(own) for rank, own in programs.steps.items()}
    for each in late:
        for at, here in enumerate(zip(*programs.steps.values())):
            if each.rank is not None and here[0].number in each.steps:
                factor = _factor({own: _taken_s(step, each.phase) for own, step in zip(steps, here)}, each.rank)
                steps[each.rank][at] = _scaled(steps[each.rank][at], each.phase, factor)
    return replace(programs, steps={rank: tuple(own) for rank, own in steps.items()})


def punctual_trace(programs: TracePrograms, late: Iterable[Late]) -> TracePrograms:
    """The same of a trace, which knows of computing alone."""
    ranks = list(programs.ranks)
    for each in late:
        for number in each.steps:
            if each.rank is not None:
                taken_s = {rank: _computed_s(own, number) for rank, own in enumerate(programs.ranks)}
                ranks[each.rank] = _computing(ranks[each.rank], number, _factor(taken_s, each.rank))
    return replace(programs, ranks=tuple(ranks))


def _factor(taken_s: Mapping[int, float], rank: int) -> float:
    """How many times as long a rank may take, so that it is no later than the others."""
    others_s = lower_middle([seconds for other, seconds in taken_s.items() if other != rank])
    return min(1.0, others_s / taken_s[rank]) if taken_s[rank] else 1.0


def _computed_s(own: OwnTrace, step: int) -> float:
    return sum(moment.work_s for moment in own.moments if moment.step == step)


def _computing(own: OwnTrace, step: int, factor: float) -> OwnTrace:
    moments = (m._replace(work_s=m.work_s * factor) if m.step == step else m for m in own.moments)
    return replace(own, moments=tuple(moments))


def _kind(phase: str) -> str:
    return "" if phase == "other" else phase


def _taken_s(step: OwnStep, phase: str) -> float:
    """The seconds of a phase; see `Late.phase`."""
    works = [work for each in step.passes for work in each.before] + list(step.after)
    taken_s = sum(work.seconds for work in works if work.kind == _kind(phase))
    if phase == "backward":
        taken_s += sum(seconds for each in step.passes for _, seconds in each.leaves)
    if phase == "link":
        taken_s += sum(h.before_s + h.after_s for each in step.passes for h in each.handings.values())
    return taken_s


def _scaled(step: OwnStep, phase: str, factor: float) -> OwnStep:
    passes = tuple(_scaled_pass(each, phase, factor) for each in step.passes)
    return replace(step, passes=passes, after=_works(step.after, phase, factor))


def _scaled_pass(own: OwnPass, phase: str, factor: float) -> OwnPass:
    leaves, handings = own.leaves, own.handings
    if phase == "backward":
        leaves = tuple((name, seconds * factor) for name, seconds in leaves)
    if phase == "link":
        handings = {
            bucket: each._replace(before_s=each.before_s * factor, after_s=each.after_s * factor)
            for bucket, each in handings.items()
        }
    return replace(own, before=_works(own.before, phase, factor), leaves=leaves, handings=handings)


def _works(works: Sequence[OwnWork], phase: str, factor: float) -> tuple[OwnWork, ...]:
    return tuple(w._replace(seconds=w.seconds * factor) if w.kind == _kind(phase) else w for w in works)
