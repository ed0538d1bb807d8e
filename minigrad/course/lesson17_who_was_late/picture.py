"""A step in which one of four ranks is late in backward."""

from __future__ import annotations

from minigrad.course.drawing import timeline
from minigrad.course.lesson17_who_was_late.checks import STEPS, cluster_of, record

_KINDS = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "idle": "waiting",
    "exposed": "all_reduce",
    "optimizer": "optimizer",
}


def picture() -> str:
    """One step of a run, as its timeline has it."""
    delays = {(1, "backward"): [0.012] * STEPS} | {(rank, "data"): [0.004] * STEPS for rank in range(4)}
    delays |= {(rank, "optimizer"): [0.002] * STEPS for rank in range(4)}
    spans = [span for span in record(delays, cluster_of(17, bandwidth=2e5)).spans if span.step == 3]
    begin_s = min(span.began_s for span in spans)
    rows = []
    for rank in range(4):
        bars = []
        for span in spans:
            if span.rank == rank and span.kind in _KINDS and span.seconds > 1e-9:
                ends_ms = 1e3 * (span.began_s - begin_s), 1e3 * (span.ended_s - begin_s)
                kind = _KINDS[span.kind]
                bars.append((*ends_ms, kind, span.name if kind == "backward" else ""))
        rows.append((f"rank {rank}", bars))
    return timeline("One step: rank 1 is late in backward, and all steps are equally long", rows)
