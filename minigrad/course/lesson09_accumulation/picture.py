"""The picture of lesson 9: four micro-batches, exchanged after each, and once."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from minigrad.course.drawing import Bar, timeline
from minigrad.course.lesson09_accumulation.solution import AccumulatingDdp
from minigrad.distributed import Communicator, simulate
from minigrad.nn import Linear, Sequential
from minigrad.tensor import Tensor

CLUSTER = simulate.Cluster.of_speeds([1.0] * 8, link=simulate.Link(latency_s=50e-6, bandwidth_bytes_s=1e9))
MICRO_BATCHES, SAMPLES = 4, 4


def step_of(uses_no_sync: bool) -> simulate.Trace:
    """One step of four micro-batches of 4 ms, on a virtual cluster of 8 ranks."""

    def body(comm: Communicator) -> None:
        ddp = AccumulatingDdp(Sequential(Linear(16, 16), Linear(16, 16)), comm)
        for number in range(MICRO_BATCHES):
            waits = uses_no_sync and number < MICRO_BATCHES - 1
            with ddp.no_sync() if waits else nullcontext():
                (ddp(Tensor(np.ones((SAMPLES, 16), np.float32))).mean() / MICRO_BATCHES).backward()
                ddp.finish()

    return simulate.run(body, CLUSTER, timeout_s=30.0)


def bars_of(trace: simulate.Trace) -> list[Bar]:
    """What rank 0 did, in ms from when it began to compute."""
    spans = [span for span in trace.timeline.spans if span.rank == 0 and span.step >= 0]
    began_s = min(span.began_s for span in spans)
    kinds = {"compute": "forward and backward", "wire": "all_reduce"}
    return [
        (1e3 * (span.began_s - began_s), 1e3 * (span.ended_s - began_s), kinds[span.kind], "")
        for span in spans
        if span.kind in kinds
    ]


def picture() -> str:
    """A row for each way."""
    rows = [("exchanged after each", bars_of(step_of(False))), ("no_sync() but for the last", bars_of(step_of(True)))]
    return timeline("Four micro-batches of 4 ms on each of 8 ranks, 50 us a message", rows)
