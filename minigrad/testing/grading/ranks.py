"""The steps on ranks of each kind: processes over shared memory, a virtual cluster, threads that take turns."""

from __future__ import annotations

import contextlib
import gc
import os
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from threadpoolctl import threadpool_limits

from minigrad.distributed import init, run, simulate
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.distributed.simulate.trace import Trace
from minigrad.testing.conformance.adapter import Setup
from minigrad.testing.conformance.outcome import Outcome, outcomes
from minigrad.testing.conformance.processes import Processes
from minigrad.testing.grading.adapter import MakeWrapper
from minigrad.testing.grading.steps import GradedRank, GradedSteps
from minigrad.testing.grading.turns import RankTurns
from minigrad.testing.grading.workload import Truth


def _rank_s(timeout_s: float) -> float:
    """How long a rank is waited for in so long a run, so that there is time to tell."""
    return min(10.0, timeout_s / 3)


class _Starter:
    """What `outcomes` starts ranks by; it wraps nothing."""

    def __init__(self, run: Callable[..., Any], timeout_s: float) -> None:
        self.run, self.timeout_s = run, timeout_s

    def wrap(self, place: Any, setup: Setup) -> Any:
        """Nothing is wrapped: the steps do that."""
        raise NotImplementedError("only steps are run")


def _body(place: Any, adapter: Any, steps: GradedSteps) -> GradedRank:
    return steps(place)


@contextlib.contextmanager
def _shared_memory(timeout_s: float) -> Iterator[Communicator]:
    """A process of this host that talks to the others over shared memory."""
    threads = max(1, (os.cpu_count() or 1) // int(os.environ["WORLD_SIZE"]))  # as `run` gives each of its ranks
    with threadpool_limits(threads, user_api="blas"), contextlib.closing(init(backend="shm", timeout_s=timeout_s)) as c:
        yield c


def on_processes(steps: GradedSteps, timeout_s: float) -> list[Outcome]:
    """The steps on forked processes over shared memory, whose ranks share nothing but what they send."""
    run_processes = Processes(lambda: _shared_memory(_rank_s(timeout_s)), timeout_s, "fork")

    def start(body: Callable[..., Any], world_size: int, *args: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads of BLAS, which hold nothing
            return run_processes(body, world_size, *args)

    return outcomes(_Starter(start, 2 * timeout_s), _body, steps.cluster.world_size, steps)


def on_virtual(steps: GradedSteps, timeout_s: float) -> tuple[list[Outcome], int]:
    """The steps on a virtual cluster, and how many bytes its network was handed, by its own books."""
    traces: list[Trace] = []

    def start(body: Callable[..., Any], world_size: int, *args: Any) -> None:
        traces.append(simulate.run(body, steps.cluster, *args, timeout_s=_rank_s(timeout_s)))

    found = outcomes(_Starter(start, timeout_s), _body, steps.cluster.world_size, steps)
    return found, sum(map(_carried_bytes, traces))


def _carried_bytes(trace: Trace) -> int:
    wire = (int(span.fields.get("sent_bytes", 0)) for span in trace.timeline.spans if span.kind == "wire")
    return sum(wire) + sum(int(event.fields["nbytes"]) for event in trace.timeline.events if event.kind == "sent")


def peak_bytes(
    truth: Truth, wrapper: MakeWrapper | None, cluster: Cluster, timeout_s: float
) -> tuple[int, list[Outcome]]:
    """The most that all ranks hold together in the steps after the first; and what became of each."""
    turns = RankTurns(cluster.world_size, _rank_s(timeout_s))
    steps = GradedSteps(truth, wrapper, cluster, turns=turns)
    was_tracing = tracemalloc.is_tracing()
    gc.collect()
    if not was_tracing:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        found = _in_turn(steps, turns, timeout_s)
        return tracemalloc.get_traced_memory()[1] - before, found
    finally:
        if not was_tracing:
            tracemalloc.stop()


def _in_turn(steps: GradedSteps, turns: RankTurns, timeout_s: float) -> list[Outcome]:
    def one(comm: Communicator) -> GradedRank:
        turns.begin(comm.rank)
        try:
            return steps(comm)
        finally:
            turns.end(comm.rank)

    def start(body: Callable[..., Any], world_size: int, *args: Any) -> None:
        run(body, world_size, *args, timeout_s=_rank_s(timeout_s))

    return outcomes(_Starter(start, timeout_s), lambda place, adapter: one(place), steps.cluster.world_size)


def told_of(found: Sequence[Outcome]) -> str:
    """Which ranks did not come to their end, and how it was; empty where all did."""
    ends = [one for one in found if one.kind != "value"]
    first = next((one for one in ends if one.kind == "raised" and one.error != "RankFailedError"), None)
    return "; ".join(str(one).splitlines()[0] for one in ([first] if first else ends))
