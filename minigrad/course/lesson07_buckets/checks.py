"""Checks of lesson 7: plans of drawn parameters, and the cap on four clusters against all caps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.course.lesson import Student, expect
from minigrad.course.lesson08_overlap.solution import get_ddp_overlapped
from minigrad.distributed import Communicator
from minigrad.distributed.simulate import Cluster, Link, run
from minigrad.tensor import Tensor

_DRAWS = 150
_ALLOWED = 1.02  # of the step of the best cap
_NEAR = 1.1  # a cap that was computed, and with something left out


@dataclass(frozen=True)
class StandIn:
    """What stands for a parameter: it has what the specification names."""

    elements: int
    dtype: np.dtype[Any]
    device: str
    requires_grad: bool

    def numel(self) -> int:
        """Its elements."""
        return self.elements

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.elements * self.dtype.itemsize

    def __str__(self) -> str:
        frozen = "" if self.requires_grad else " frozen"
        return f"{self.nbytes} {self.dtype.name} {self.device}{frozen}"


def check_get_bucket_plan(student: Student) -> str:
    """Rule after rule on drawn parameters, then the whole plan, then the same again."""
    buckets = 0
    for draw in range(_DRAWS):
        params, cap, first_cap = drawn(draw)
        given = list(params)
        plan = student.get_bucket_plan(given, cap, first_cap)
        what = (
            f"get_bucket_plan([{', '.join(map(str, params))}], {cap}, {first_cap})"
            if len(params) <= 8
            else (f"get_bucket_plan({len(params)} parameters, {cap}, {first_cap})")
        )
        expect(given == params, f"{what}: the list that was given should stay as it is, got it changed")
        _check_plan(what, plan, params, cap, first_cap)
        again = [replace(param) for param in params]
        expect(
            student.get_bucket_plan(again, cap, first_cap) == plan,
            f"{what}: the same should come in each call and on each rank, got another plan for equal parameters",
        )
        buckets += len(plan)
    return f"{_DRAWS} draws, {buckets} buckets, each as it has to be"


def drawn(draw: int) -> tuple[list[StandIn], int, int]:
    """Parameters and caps; the first draws are of one kind, without frozen ones."""
    rng = np.random.default_rng([7, draw])
    count = int(rng.integers(0 if draw > 20 else 1, 24 if draw > 60 else 9))
    dtypes = [np.dtype(name) for name in (["float32", "float16"] if draw > 40 else ["float32"])]
    devices = ["cuda:0", "cuda:1"] if draw > 80 else ["cpu"]
    params = [
        StandIn(
            int(rng.integers(1, 60)),
            dtypes[int(rng.integers(len(dtypes)))],
            devices[int(rng.integers(len(devices)))],
            draw <= 20 or bool(rng.random() < 0.8),
        )
        for _ in range(count)
    ]
    cap = int(rng.integers(40, 500))
    return params, cap, int(rng.integers(20, cap + 1))


def _check_plan(what: str, plan: Any, params: list[StandIn], cap: int, first_cap: int) -> None:
    expect(
        isinstance(plan, list) and all(isinstance(bucket, list) for bucket in plan),
        f"{what}: a list of lists of indices should come, got {plan!r:.80}",
    )
    expect(all(plan), f"{what}: each bucket should hold something, got {plan}")
    placed, wanted = [i for bucket in plan for i in bucket], [i for i, p in enumerate(params) if p.requires_grad]
    frozen = [i for i in placed if i in range(len(params)) and i not in wanted]
    expect(
        not frozen,
        f"{what}: a parameter that requires no grad should be in no bucket, got {frozen[:5]} in {plan}: "
        "it never becomes complete, and its bucket never goes out",
    )
    missing = [i for i in wanted if i not in placed]
    expect(
        not missing,
        f"{what}: each parameter should be in a bucket, got none for {missing[:5]} in {plan}: "
        "its gradient would stay that of one rank",
    )
    expect(sorted(placed) == wanted, f"{what}: each parameter should be in one bucket, once, got {plan}")
    _check_kinds(what, plan, params)
    _check_caps(what, plan, params, cap, first_cap)
    lasts = [min(bucket) for bucket in plan]
    expect(
        lasts == sorted(lasts, reverse=True),
        f"{what}: buckets should come in the order in which they are complete, "
        f"which is when their lowest index is: those are {lasts} in {plan}: a bucket in front would hold up others "
        "that are complete",
    )


def _check_kinds(what: str, plan: list[list[int]], params: list[StandIn]) -> None:
    for bucket in plan:
        kinds = sorted({f"{params[i].dtype.name} on {params[i].device}" for i in bucket})
        expect(
            len(kinds) == 1,
            f"{what}: a bucket should hold one dtype on one device, got {bucket} with "
            f"{', '.join(kinds)}: they can't lie in one array",
        )
    for kind in {_kind(param) for param in params}:
        indices = [i for bucket in plan for i in bucket if _kind(params[i]) == kind]
        expect(
            indices == sorted(indices, reverse=True),
            f"{what}: indices of one dtype and device should go down, got "
            f"{indices}: backward completes the last registered first, so the first bucket would wait for the last",
        )


def _check_caps(what: str, plan: list[list[int]], params: list[StandIn], cap: int, first_cap: int) -> None:
    for kind in {_kind(param) for param in params}:
        mine = [bucket for bucket in plan if _kind(params[bucket[0]]) == kind]
        sizes = [sum(params[i].nbytes for i in bucket) for bucket in mine]
        for number, (bucket, size) in enumerate(zip(mine, sizes)):
            most, name = (cap, "cap_bytes") if number else (first_cap, "first_cap_bytes")
            expect(
                len(bucket) == 1 or size <= most,
                f"{what}: bucket {bucket}, {'number ' + str(number) if number else 'the first'} "
                f"of its kind, should have at most {name} = {most} bytes, got {size}",
            )
            if number + 1 < len(mine):
                room = size + params[mine[number + 1][0]].nbytes
                expect(
                    room > most,
                    f"{what}: bucket {bucket} should be closed only when the next gradient of its kind does "
                    f"not fit in, got it closed at {size} bytes, where {room} would have been within {name} = {most}: "
                    "each bucket costs a latency; buckets of several kinds are open at the same time",
                )


def _kind(param: StandIn) -> tuple[str, str]:
    return param.dtype.name, param.device


# --------------------------------------------------------------------------------------------- the size of a bucket

SAMPLES = 16


class Layers(nn.Module):
    """A parameter of each of these sizes, used in order of registration."""

    def __init__(self, elements: Sequence[int]) -> None:
        super().__init__()
        self.params = nn.ParameterList([nn.Parameter(Tensor(np.ones(n))) for n in elements])

    def forward(self, x: Tensor) -> Any:
        """(N, 1) -> (N, 1)"""
        for param in self.params:
            x = x * param.mean()
        return x


def clusters() -> dict[str, tuple[list[int], Cluster]]:
    """Elements of float64 parameters, and a cluster, where one big bucket, many small ones, and neither are best."""
    even, growing = [1000] * 8, [700 * (i + 1) for i in range(6)]
    uneven = [200, 4000, 100, 6000, 50, 4500, 1500]
    return {
        "fast link": (uneven, Cluster.of_speeds([1, 1], link=Link(3e-6, 1.3e7))),
        "long latency": (even, Cluster.of_speeds([1, 1], link=Link(6e-3, 7e8))),
        "slow link": (growing, Cluster.of_speeds([1, 1], link=Link(7e-4, 2.9e7))),
        "unequal ranks": (even, Cluster.of_speeds([4, 2, 1], link=Link(3e-4, 3e7))),
    }


def step_s(elements: Sequence[int], cap_bytes: int, cluster: Cluster) -> float:
    """Seconds of a step with buckets of this cap, on the virtual clock."""

    def body(comm: Communicator) -> None:
        ddp = get_ddp_overlapped(Layers(elements), comm, bucket_cap_bytes=cap_bytes)
        ddp(Tensor(np.ones((SAMPLES, 1)))).mean().backward()
        ddp.finish()

    return run(body, cluster).step_times_s()[0]


def caps_of(nbytes: Sequence[int]) -> list[int]:
    """One cap for each plan that there is, from the smallest to the one that holds everything."""
    sums = sorted({sum(nbytes[i:j]) for j in range(len(nbytes) + 1) for i in range(j)})
    plans = [(_cut(nbytes, cap), cap) for cap in sums]
    return [next(group)[1] for _, group in groupby(plans, key=lambda pair: pair[0])]


def _cut(nbytes: Sequence[int], cap: int) -> list[int]:
    counts, room = list[int](), -1
    for size in reversed(nbytes):
        if size > room:
            counts.append(0)
            room = cap
        counts[-1] += 1
        room -= size
    return counts


def check_best_cap_bytes(student: Student) -> str:
    """The step with the student's cap, and with one cap for each plan."""
    told = []
    for name, (elements, cluster) in clusters().items():
        nbytes = [8 * n for n in elements]
        cap = student.best_cap_bytes(list(nbytes), cluster, SAMPLES)
        seconds = [cluster.compute_s(rank, SAMPLES, 0) for rank in range(cluster.world_size)]
        what = (
            f"best_cap_bytes({nbytes}, <{name}>, {SAMPLES}), with {cluster.link.latency_s:g} s a message, "
            f"{cluster.link.bandwidth_bytes_s:g} bytes/s, and ranks that compute for {seconds} s"
        )
        expect(
            isinstance(cap, (int, np.integer)) and cap > 0,
            f"{what}: a number of bytes > 0 should come, got {cap!r:.80}",
        )
        times = {each: step_s(elements, each, cluster) for each in caps_of(nbytes)}
        best = min(times, key=lambda each: times[each])
        took_s = step_s(elements, int(cap), cluster)
        buckets = len(_cut(nbytes, int(cap)))
        expect(
            took_s <= _ALLOWED * times[best],
            f"{what}: with a cap of {cap} bytes, so {buckets} buckets, a step takes {1e3 * took_s:.3g} ms; with {best} "
            f"bytes, {len(_cut(nbytes, best))} buckets, {1e3 * times[best]:.3g} ms; at most {_ALLOWED} times that is "
            "allowed: " + _why(buckets, len(_cut(nbytes, best)), took_s / times[best]),
        )
        told.append(f"{took_s / times[best]:.3f} on the {name} ({len(times)} plans)")
    return "step over that of the best cap: " + ", ".join(told)


def _why(buckets: int, best: int, ratio: float) -> str:
    if ratio < _NEAR:
        return (
            "that is near. Does the step that you compute with this cap take as long? A forward comes before the first "
            "gradient, and a bucket waits for the slowest rank and for the wire"
        )
    if buckets > best:
        return "each bucket pays the latency of the link again"
    return "a bucket can't leave before its last gradient is complete, so too much travels after backward is over"
