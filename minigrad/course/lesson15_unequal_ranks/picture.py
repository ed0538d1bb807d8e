"""Ranks of speeds 3:2:1 before and after a balancer decides."""

from __future__ import annotations

from minigrad.course.drawing import timeline
from minigrad.course.lesson15_unequal_ranks.checks import train
from minigrad.course.lesson15_unequal_ranks.solution import choose_shards
from minigrad.distributed import simulate
from minigrad.distributed.simulate import Cluster

_STEPS, _EQUAL = 5, 2


def picture() -> str:
    """Five steps of a training, of which two have equal shards."""
    trace = simulate.run(train, Cluster.of_speeds([3, 2, 1]), choose_shards, _STEPS, _EQUAL)
    rows = []
    for rank, noted in enumerate(trace.ranks):
        bars = []
        for step in noted.steps:
            begin_ms, done_ms, end_ms = (1e3 * s for s in (step.begin_s, step.begin_s + step.compute_s, step.end_s))
            bars.append((begin_ms, done_ms, "compute so many samples", f"{step.samples:g}"))
            if end_ms - done_ms > 1e-6:
                bars.append((done_ms, end_ms, "waiting", ""))
        rows.append((f"rank {rank}", bars))
    return timeline("Speeds 3:2:1: two steps with equal shards, then the balancer decides", rows)
