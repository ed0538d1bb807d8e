"""What each tool says of a run: by itself, or beside a run of the right program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from minigrad.distributed import explain, explain_ranks
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import MinigradError
from minigrad.testing.mutants.watch import Program, RunSeen, observe

TOOLS = ("output", "loss", "fingerprint", "twin", "stats", "timeline", "explain")
_NEAR = 1e-6  # relative: what times may be apart that were added up in another order
_SEEN_IN_A_CURVE = 0.01  # relative


def findings(
    program: Program, right: tuple[RunSeen, RunSeen | None], *, seed: int = 0, world_size: int | None = None
) -> dict[str, str]:
    """What the tools find in a run of a program now, in words, by tool; those that find nothing are left out.

    What is printed, errors too, the loss, statistics, the timeline and `explain` are compared with the right run's; the
    fingerprint compares the ranks of one run, and the twin compares them with one process.

    Args:
        right: See `right_runs`.
    """
    now = observe(program, seed=seed, world_size=world_size)
    looks = {"output": _output} if program.refuses else _LOOKS
    found = {tool: next(iter(look(now, right[0])), "") for tool, look in looks.items()}
    if right[1] is not None:
        seen = observe(program, seed=seed, world_size=world_size, twin=True)
        found["twin"] = next((rank.twin for rank in seen.ranks if rank.twin), "")
    return {tool: found[tool] for tool in TOOLS if found.get(tool)}


def right_runs(program: Program, *, seed: int = 0, world_size: int | None = None) -> tuple[RunSeen, RunSeen | None]:
    """The run of the right program, and the same with a twin where one can follow."""
    twin = observe(program, seed=seed, world_size=world_size, twin=True) if program.twins else None
    return observe(program, seed=seed, world_size=world_size), twin


def parted(seen: RunSeen) -> Iterator[str]:
    """Where ranks of one run part: the step, the tensor, and the ranks that do not hold rank 0's bits."""
    for (step, first), *others in zip(*(rank.prints for rank in seen.ranks)):
        for name, value in first.items():
            apart = [rank for rank, (_, prints) in enumerate(others, 1) if prints.get(name) != value]
            if apart:
                listed = ", ".join(map(str, apart))
                yield f"step {step}: {name} of rank {listed} does not have the bits of rank 0"


def _output(now: RunSeen, right: RunSeen) -> Iterator[str]:
    if now.error != right.error:
        yield now.error or "no error, where there should be one"
    for rank, (own, its) in enumerate(zip(now.ranks, right.ranks)):
        for said, expected in zip([*own.said, *[""] * len(its.said)], its.said):
            if said.split(", got")[0] != expected.split(", got")[0]:  # which ranks are compared is chance
                yield f"rank {rank} says: {said or 'nothing'}"


def _loss(now: RunSeen, right: RunSeen) -> Iterator[str]:
    for step, (values, expected) in enumerate(zip(_means(now), _means(right))):
        if not math.isclose(values, expected, rel_tol=_SEEN_IN_A_CURVE):
            yield f"step {step + 1}: the mean loss of the ranks is {values:.4g}; of the right run {expected:.4g}"


def _means(seen: RunSeen) -> Iterator[float]:
    for losses in zip(*(rank.losses for rank in seen.ranks)):
        numbers = [loss for loss in losses if not math.isnan(loss)]
        yield sum(numbers) / max(len(numbers), 1)


def _fingerprint(now: RunSeen, right: RunSeen) -> Iterator[str]:
    yield from parted(now)


def _stats(now: RunSeen, right: RunSeen) -> Iterator[str]:
    for rank, (own, its) in enumerate(zip(now.ranks, right.ranks)):
        for name, expected in its.stats.items():
            value = own.stats.get(name)
            if not _alike(value, expected):
                yield f"rank {rank}: {name} is {value}; of the right run {expected}"


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=_NEAR, abs_tol=1e-9)
    return bool(a == b)


def _timeline(now: RunSeen, right: RunSeen) -> Iterator[str]:
    for own, its in zip(_lines(now.timeline), _lines(right.timeline)):
        if own != its:
            yield f"{_in_words(own)}; of the right run {_in_words(its)}"
    sizes = [len(list(_lines(seen.timeline))) for seen in (now, right)]
    if sizes[0] != sizes[1]:
        yield f"{sizes[0]} spans and events; of the right run {sizes[1]}"


def _lines(timeline: Timeline) -> list[tuple[Any, ...]]:
    spans = [
        (span.rank, round(span.began_s, 8), round(span.ended_s, 8), span.kind, span.name) for span in timeline.spans
    ]
    events = [(e.rank, round(e.at_s, 8), round(e.at_s, 8), e.kind, str(e.fields)) for e in timeline.events]
    return sorted(spans + events)


def _in_words(line: tuple[Any, ...]) -> str:
    rank, began_s, ended_s, kind, name = line
    return f"rank {rank}: {kind} {name} from {1e3 * began_s:.3f} to {1e3 * ended_s:.3f} ms"


def _explain(now: RunSeen, right: RunSeen) -> Iterator[str]:
    for tell in (explain, explain_ranks):
        own, its = (_told(tell, seen.timeline).split("\n") for seen in (now, right))
        for line, expected in zip([*own, *[""] * len(its)], its):
            if line != expected:
                yield f"{line or 'nothing'}; of the right run {expected}"


def _told(tell: Callable[[Timeline], Any], timeline: Timeline) -> str:
    try:
        return str(tell(timeline))
    except MinigradError as error:
        return f"{type(error).__name__}: {error}"


_LOOKS: dict[str, Callable[[RunSeen, RunSeen], Iterator[str]]] = {
    "output": _output,
    "loss": _loss,
    "fingerprint": _fingerprint,
    "stats": _stats,
    "timeline": _timeline,
    "explain": _explain,
}
