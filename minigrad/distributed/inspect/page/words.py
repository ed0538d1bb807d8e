"""A run in sentences, each with figures of its record. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minigrad.distributed.inspect.explain import Explanation
from minigrad.distributed.inspect.late import explain_ranks
from minigrad.distributed.inspect.replay import Replayed
from minigrad.distributed.inspect.steps import RankStep, length_in_words, paces_s
from minigrad.distributed.inspect.units import time_text
from minigrad.distributed.record.timeline import Timeline

_KINDS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "compute": "forward and backward",
    "optimizer": "the optimizer",
    "checkpoint": "checkpoints",
    "idle": "waiting for ranks",
    "exposed": "waiting for the wire",
    "own": "spans of its own",
    "other": "what nobody noted",
}
Steps = Mapping[int, Mapping[int, RankStep]]


def sentences_of(timeline: Timeline, steps: Steps) -> list[str]:
    """What a reader should know first.

    Args:
        timeline: The record.
        steps: What it comes to: the figures of each rank in each step; see `steps_of`.
    """
    every = [step for ranks in steps.values() for step in ranks.values()]
    if not every:
        return ["Nothing was recorded."]
    ranks = sorted({step.rank for step in every})
    long_s = dict(zip(steps, paces_s(steps.values())))
    slowest = max(long_s, key=lambda number: long_s[number])
    said = [f"{_count(len(ranks), 'rank')}, {_count(len(steps), 'step')}."]
    if len(steps) > 1:
        said.append(
            f"{length_in_words(list(long_s.values()))} The longest, step {slowest}, took {time_text(long_s[slowest])}."
        )
    whole_s = sum(step.wall_s for step in every)
    if whole_s > 0.0:
        parts = [(kind, sum(seconds_of(step, kind) for step in every) / whole_s) for kind in _KINDS]
        named = [f"{part:.0%} {_KINDS[kind]}" for kind, part in parts if part >= 0.005]
        said.append(f"Of the ranks' time: {', '.join(named)}.")
    wire_s, hidden_s = sum(step.communication_s for step in every), sum(step.hidden_s for step in every)
    if wire_s > 0.0:
        said.append(f"Of the time that the wire worked, {hidden_s / wire_s:.0%} was hidden behind what the ranks did.")
    return said + [*_waited(every, ranks), *_late(timeline, steps, ranks)]


def seconds_of(step: RankStep, kind: str) -> float:
    """What a rank spent on a kind of thing in a step."""
    return sum(step.own.values()) if kind == "own" else float(getattr(step, f"{kind}_s"))


def _waited(every: Sequence[RankStep], ranks: Sequence[int]) -> Iterable[str]:
    """Who waited most for the others, and who least."""
    if len(ranks) < 2:
        return
    idle_s = {rank: sum(step.idle_s for step in every if step.rank == rank) for rank in ranks}
    most, least = max(ranks, key=lambda rank: idle_s[rank]), min(ranks, key=lambda rank: idle_s[rank])
    if idle_s[most] > 1e-9 * sum(step.wall_s for step in every):  # less is rounding
        yield (
            f"Rank {most} waited longest for other ranks, {time_text(idle_s[most])} in all, "
            f"and rank {least} least, {time_text(idle_s[least])}."
        )
    else:
        yield "No rank was seen to wait for another."


def _late(timeline: Timeline, steps: Steps, ranks: Sequence[int]) -> Iterable[str]:
    """Who was late, and in what."""
    if len(ranks) < 2 or all(len(own) < len(ranks) for own in steps.values()):
        return
    report = explain_ranks(timeline)
    yield from map(str, report.late or str(report).splitlines()[:1])  # that says that nobody was
    if report.wire is not None:
        yield str(report.wire)


def help_of(explanation: Explanation) -> str:
    """What would help most."""
    best = explanation.best
    if explanation.unknown:
        return f"What would help is not known: {explanation.unknown}."
    if best is None:
        return "Nothing that was tried would save 1% of a step."
    said, option = f"What would help most is {_saved(best)}.", explanation.best_option
    return said if option is None or option is best else f"{said} Of options of the training it is {_saved(option)}."


def _saved(choice: Replayed) -> str:
    times = f"{time_text(choice.step_s)} in place of {time_text(choice.before_s)}"
    return f"{choice.choice}: on average a step of {times}, {choice.saved_fraction:.0%} less"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("s" if number != 1 else "")
