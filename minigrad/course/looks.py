"""What each tool shows of a run in a hunt, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from minigrad.distributed import explain, explain_ranks
from minigrad.distributed.ddp.stats import Stats
from minigrad.errors import MinigradError
from minigrad.testing.mutants import Program, RunSeen, observe, parted

_SHOWN = ("weighted", "wire", "idle", "exposed", "pass")  # spans of a timeline that are shown
_MOST_LINES = 60


def look_at(program: Program, tool: str, *, seed: int = 0) -> str:
    """Run a program, and what a tool shows of it."""
    return "\n".join(LOOKS[tool](observe(program, seed=seed, twin=tool == "twin")))


def _output(seen: RunSeen) -> Iterator[str]:
    for number, rank in enumerate(seen.ranks):
        yield from (f"rank {number}: {said}" for said in rank.said)
    yield f"It ended by {seen.error}" if seen.error else "It ended without an error."


def _loss(seen: RunSeen) -> Iterator[str]:
    yield "step  " + "  ".join(f"{f'rank {rank}':>9}" for rank in range(len(seen.ranks)))
    for step in range(max((len(rank.losses) for rank in seen.ranks), default=0)):
        values = [rank.losses[step] if step < len(rank.losses) else None for rank in seen.ranks]
        yield f"{step + 1:4d}  " + "  ".join(f"{'' if value is None else f'{value:.6f}':>9}" for value in values)
    yield from _ended(seen)


def _fingerprint(seen: RunSeen) -> Iterator[str]:
    found = list(parted(seen))
    steps = min(len(rank.prints) for rank in seen.ranks)
    if not found:
        yield f"after {steps} steps: the ranks hold the same bits in every parameter and buffer"
    yield from found[:_MOST_LINES]
    yield from _ended(seen)


def _twin(seen: RunSeen) -> Iterator[str]:
    found = next((rank.twin for rank in seen.ranks if rank.twin), "")
    steps = min(len(rank.losses) for rank in seen.ranks)
    yield found or f"{steps} steps: as on one process"
    yield from _ended(seen)


def _stats(seen: RunSeen) -> Iterator[str]:
    for number, rank in enumerate(seen.ranks):
        yield f"rank {number}: {Stats(**rank.stats)}" if rank.stats else f"rank {number}: no wrapper"
    yield from _ended(seen)


def _timeline(seen: RunSeen) -> Iterator[str]:
    spans = [span for span in seen.timeline.spans if span.kind in _SHOWN]
    for span in sorted(spans, key=lambda span: (span.step, span.began_s, span.rank))[:_MOST_LINES]:
        times = f"{1e3 * span.began_s:8.3f} to {1e3 * span.ended_s:8.3f} ms"
        yield f"step {span.step + 1}  {times}  rank {span.rank}  {span.kind} {span.name}"
    yield from _ended(seen)


def _explain(seen: RunSeen) -> Iterator[str]:
    for tell in (explain, explain_ranks):
        try:
            yield str(tell(seen.timeline))
        except MinigradError as error:
            yield str(error)
    yield from _ended(seen)


def _ended(seen: RunSeen) -> Iterator[str]:
    if seen.error:
        yield f"It ended by {seen.error}"


LOOKS: dict[str, Callable[[RunSeen], Iterator[str]]] = {
    "output": _output,
    "loss": _loss,
    "fingerprint": _fingerprint,
    "twin": _twin,
    "stats": _stats,
    "timeline": _timeline,
    "explain": _explain,
}
