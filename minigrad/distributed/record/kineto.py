"""Spans as the traces of PyTorch's profiler, one a rank, which HolisticTraceAnalysis reads (Meta, 0.5.0). Pure.

That reader takes as kernels what has a stream, as communication those called nccl...Kernel, as computing the others,
and each by the launch of the same correlation, within a step called ProfilerStep#n. So here what a rank computes is a
kernel on one stream, without the stretches in which it stands still; each collective is one on another stream. Moments
are whole microseconds, as that reader has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from minigrad.distributed.record.spans import WAITING, TimeSpan
from minigrad.distributed.record.stretches import Stretch, merged

_COMPUTING, _WIRE = 7, 20  # streams, as PyTorch numbers them
_FIRST = 1 << 20  # correlation: of small ones alone, that reader keeps the numbers of all events in one byte
_COMPUTES = ("forward", "backward", "compute", "optimizer")
_ON_HOST = ("data", "checkpoint")
_STILL = (*WAITING, "wait", "weighted")
_NOT_COMPUTING = ("Memcpy", "Memset", "Sync")  # of a name, that reader takes them for something else
_KERNELS = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
_KERNELS |= {"broadcast": "Broadcast", "reduce": "Reduce", "send": "SendRecv", "recv": "SendRecv"}
Entry = tuple[str, str, "int | None", Stretch, dict[str, Any]]  # category, name, stream, when, arguments


def rank_trace(rank: int, world_size: int, spans: Sequence[TimeSpan], zero_s: float) -> dict[str, Any]:
    """The trace of one rank.

    Args:
        spans: Of the rank, in order; setting up is left out.
        zero_s: What is moment 0.
    """
    own = [span for span in spans if span.rank == rank and span.step >= 0]
    made: list[Entry] = [*_steps(own), *_host(own)]
    correlation = count(_FIRST)
    for name, stream, called_s, stretch in sorted(_kernels(own), key=lambda kernel: kernel[3]):
        link = {"correlation": next(correlation)}
        made.append(("cuda_runtime", "cudaLaunchKernel", None, (called_s, called_s), link))
        made.append(("kernel", name, stream, stretch, {"stream": stream, "device": rank, **link}))
    events = [_event(rank, zero_s, *each) for each in made]
    facts = {"rank": rank, "world_size": world_size, "backend": "minigrad"}
    return {"schemaVersion": 1, "distributedInfo": facts, "traceEvents": events}


def _event(rank: int, zero_s: float, cat: str, name: str, row: int | None, span: Stretch, args: Any) -> dict[str, Any]:
    begin_us, end_us = (round((moment_s - zero_s) * 1e6) for moment_s in span)
    entry = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": row or 0, "args": args}
    return {**entry, "ts": begin_us, "dur": max(0, end_us - begin_us)}


def _steps(spans: Sequence[TimeSpan]) -> Iterator[Entry]:
    """Each step, until the next one begins."""
    begins: dict[int, float] = {}
    for span in spans:
        if span.kind != "wire":
            begins[span.step] = min(span.began_s, begins.get(span.step, span.began_s))
    last_s = max((span.ended_s for span in spans), default=0.0)
    for number, began_s, ended_s in zip(begins, begins.values(), [*list(begins.values())[1:], last_s]):
        yield "user_annotation", f"ProfilerStep#{number}", None, (began_s, max(began_s, ended_s)), {}


def _host(spans: Sequence[TimeSpan]) -> Iterator[Entry]:
    for span in spans:
        if span.kind in _ON_HOST:
            yield "cpu_op", span.kind, None, (span.began_s, span.ended_s), {}


def _kernels(spans: Sequence[TimeSpan]) -> Iterator[tuple[str, int, float, Stretch]]:
    """Name and stream of each kernel, when it was launched, and when it ran."""
    reached = dict[str, float]()
    still = merged((span.began_s, span.ended_s) for span in spans if span.kind in _STILL)
    for span in spans:
        if span.kind == "wire":
            kind = str(span.fields.get("collective", ""))
            name = f"ncclDevKernel_{_KERNELS.get(kind, kind)}({span.name})"
            yield name, _WIRE, span.began_s - span.fields.get("queued_s", 0.0), (span.began_s, span.ended_s)
        elif span.kind in _COMPUTES and span.ended_s > reached.get(span.kind, span.began_s):  # else a part of the whole
            reached[span.kind] = span.ended_s
            for stretch in _without((span.began_s, span.ended_s), still):
                yield _name(span), _COMPUTING, stretch[0], stretch


def _name(span: TimeSpan) -> str:
    name = f"{span.kind} {span.name}".strip()
    for word in _NOT_COMPUTING:
        name = name.replace(word, word.lower())
    return name


def _without(stretch: Stretch, still: Sequence[Stretch]) -> Iterator[Stretch]:
    """What is left of a stretch outside of others, which are disjoint and in order."""
    begin_s, end_s = stretch
    for began_s, ended_s in still:
        if ended_s > begin_s and began_s < end_s:
            if began_s > begin_s:
                yield begin_s, began_s
            begin_s = max(begin_s, ended_s)
    if end_s > begin_s:
        yield begin_s, end_s
