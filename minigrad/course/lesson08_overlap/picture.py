"""The picture of lesson 8: the same step three times, and where the wire is at work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.backend.random import manual_seed
from minigrad.course.drawing import Bar, timeline
from minigrad.course.lesson08_overlap.solution import Overlapped, get_ddp_overlapped
from minigrad.distributed import Communicator
from minigrad.distributed.record.spans import TimeSpan
from minigrad.distributed.simulate import Cluster, Link, Trace, run
from minigrad.tensor import Tensor

_CLUSTER = Cluster.of_speeds([1, 1], link=Link(latency_s=4e-4, bandwidth_bytes_s=3e7))
_SAMPLES = (16, 13)
_WIDTH = 64
_CAP_BYTES = 66_560  # two layers


class Bucketed(Overlapped):
    """Sends the same buckets when backward is over, one after the other."""

    def __call__(self, *inputs: Tensor) -> Any:
        """Forward."""
        self.complete: list[int] = []
        return super().__call__(*inputs)

    def _complete(self, index: int, param: Tensor) -> None:
        self.complete.append(index)

    def finish(self) -> None:
        """Send all, and wait."""
        for index in self.complete:
            super()._complete(index, self.buckets[index][0])
        super().finish()


def naive(module: nn.Module, comm: Communicator) -> Any:
    """One bucket for each parameter, after backward."""
    return Bucketed(module, comm, bucket_cap_bytes=1)


def bucketed(module: nn.Module, comm: Communicator) -> Any:
    """Buckets of two layers, after backward."""
    return Bucketed(module, comm, bucket_cap_bytes=_CAP_BYTES)


def overlapped(module: nn.Module, comm: Communicator) -> Any:
    """The same, while backward runs."""
    return get_ddp_overlapped(module, comm, bucket_cap_bytes=_CAP_BYTES)


def traced(get_ddp: Callable[..., Any]) -> Trace:
    """A step with a wrapper of eight layers."""
    return run(_step, _CLUSTER, get_ddp)


def _step(comm: Communicator, get_ddp: Callable[..., Any]) -> None:
    manual_seed(8)
    module = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(8))).to("float64")
    ddp = get_ddp(module, comm)
    ddp(Tensor(np.ones((_SAMPLES[comm.rank], _WIDTH)))).mean().backward()
    ddp.finish()


def picture() -> str:
    """For each wrapper a row for each rank, and one for the wire between them."""
    rows = []
    for get_ddp in (naive, bucketed, overlapped):
        spans = traced(get_ddp).timeline.spans
        for rank in range(len(_SAMPLES)):
            rows.append((f"{get_ddp.__name__}, rank {rank}", _computed(spans, rank)))
        rows.append((f"{get_ddp.__name__}, wire", _carried(spans)))
    return timeline("One step, three times: when ranks compute, and when the wire works", rows)


def _computed(spans: Sequence[TimeSpan], rank: int) -> list[Bar]:
    """What a rank did: forward, backward, and what it waited for in one."""
    mine = [span for span in spans if span.rank == rank and span.step == 0]
    start_s, began_s, turn_s, ended_s = _computing(spans, rank)
    until_s = max(span.ended_s for span in mine if span.kind == "wait")
    bars = [(began_s, turn_s, "forward"), (turn_s, ended_s, "backward"), (ended_s, until_s, "waiting")]
    return [(1e3 * (a - start_s), 1e3 * (b - start_s), kind, "") for a, b, kind in bars]


def _computing(spans: Sequence[TimeSpan], rank: int) -> tuple[float, float, float, float]:
    """When the first rank began, and when this one began, turned from forward to backward, and ended."""
    computing = {span.rank: span for span in spans if span.kind == "compute"}
    own = computing[rank]
    turn_s = own.began_s + (1.0 - _CLUSTER.backward_fraction) * (own.ended_s - own.began_s)
    return min(span.began_s for span in computing.values()), own.began_s, turn_s, own.ended_s


def _carried(spans: Sequence[TimeSpan]) -> list[Bar]:
    """One all-reduce after the other: each begins when all have called it, and the one before is over."""
    calls = [s for s in spans if s.rank == 0 and s.kind == "wire" and s.fields["collective"] == "all_reduce"]
    bars, (start_s, *_) = list[Bar](), _computing(spans, 0)
    for number, call in enumerate(sorted(calls, key=lambda call: call.ended_s)):
        begin_ms = max(1e3 * (call.began_s - start_s), bars[-1][1] if bars else 0.0)
        bars.append((begin_ms, 1e3 * (call.ended_s - start_s), "all_reduce", str(number - 1) if number else "n"))
    return bars
