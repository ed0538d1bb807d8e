"""Lesson 7, our own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.distributed.simulate import Cluster


def get_bucket_plan(params: Sequence[Any], cap_bytes: int, first_cap_bytes: int) -> list[list[int]]:
    """Cut the gradients of a model into buckets: lists of indices into params."""
    buckets: list[list[int]] = []
    under_way: dict[Any, tuple[list[int], int, int]] = {}  # kind -> its open bucket, what still fits in, the next cap
    for index in reversed(range(len(params))):
        param = params[index]
        if not param.requires_grad:
            continue
        kind, nbytes = (param.dtype, param.device), param.numel() * param.dtype.itemsize
        bucket, room, cap = under_way.get(kind, ([], -1, first_cap_bytes))
        if nbytes > room:
            bucket, room, cap = [], cap, cap_bytes
            buckets.append(bucket)
        bucket.append(index)
        under_way[kind] = bucket, room - nbytes, cap
    return sorted(buckets, key=min, reverse=True)  # the bucket whose last gradient comes first


def best_cap_bytes(nbytes: Sequence[int], cluster: Cluster, samples: int) -> int:
    """Choose the size of buckets with which a step of overlapped data-parallel training is fastest on a cluster."""
    ends = [sum(nbytes[i:j]) for j in range(len(nbytes) + 1) for i in range(j)]  # at no other cap the plan changes
    return min(sorted(set(ends)), key=lambda cap: _step_s(nbytes, cap, cluster, samples))


def _step_s(nbytes: Sequence[int], cap_bytes: int, cluster: Cluster, samples: int) -> float:
    """Seconds of a step with this cap."""

    def wire_s(size: int) -> float:
        return cluster.link.cost_s("all_reduce", size, cluster.world_size)

    compute_s = max(cluster.compute_s(rank, samples, 0) for rank in range(cluster.world_size))
    free_s, done = wire_s(8), 0
    for size in _cut(nbytes, cap_bytes):
        done += size
        left_s = compute_s * cluster.backward_fraction * (1.0 - done / sum(nbytes))
        free_s = max(free_s, compute_s - left_s) + wire_s(size)
    return free_s


def _cut(nbytes: Sequence[int], cap_bytes: int) -> list[int]:
    """Bytes of each bucket, as `get_bucket_plan` cuts parameters of one kind."""
    sizes: list[int] = []
    for size in reversed(nbytes):
        if sizes and sizes[-1] + size <= cap_bytes:
            sizes[-1] += size
        else:
            sizes.append(size)
    return sizes
