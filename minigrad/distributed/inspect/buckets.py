"""The plans of buckets of a record, and others for the same parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from minigrad.arguments import as_integer, as_sequence, is_integer
from minigrad.distributed.ddp.buckets import (
    DEFAULT_FIRST_CAP_BYTES,
    BucketPlan,
    Entry,
    check_plan,
    plan_buckets,
    plan_id_of,
)
from minigrad.distributed.inspect.programs import Programs
from minigrad.errors import ArgumentError

_WHO = "replay"
_NO_CAP = 2**62


def plan_for(
    programs: Programs,
    name: str,
    caps: tuple[int | None, int | None],
    plan: BucketPlan | None,
    order: Sequence[int] | Literal["ready"] | None,
) -> BucketPlan:
    """The buckets of a wrapper.

    Args:
        caps: Of a bucket, and of the first one; None for what they were.
        plan, order: See `replay`.

    Raises:
        ArgumentError: an argument out of its range; ReplicaMismatchError: a plan for other parameters.
    """
    about = programs.about[name]
    entries = [Entry(**entry) for entry in about["entries"]]
    recorded = recorded_plan(about)
    cap, first = caps
    if plan is not None:
        if cap is not None or first is not None:
            raise ArgumentError(f"{_WHO}: expected bucket_plan or caps, got both")
        check_plan(plan, entries)
    elif cap is None and first is None:
        plan = recorded
    else:
        was_cut = about["first_cap_bytes"] == about["cap_bytes"] < DEFAULT_FIRST_CAP_BYTES
        default = DEFAULT_FIRST_CAP_BYTES if was_cut and cap is not None else about["first_cap_bytes"]
        cap = about["cap_bytes"] if cap is None else as_integer(_WHO, "bucket_cap_bytes", cap, 1)
        first = default if first is None else as_integer(_WHO, "first_bucket_bytes", first, 1)
        plan = plan_buckets(entries, cap, min(first, cap))
    return plan if order is None else in_order(plan, _ready_order(programs, name, plan) if order == "ready" else order)


def recorded_plan(about: Mapping[str, Any]) -> BucketPlan:
    """The buckets that a wrapper had."""
    entries = [Entry(**entry) for entry in about["entries"]]
    groups = [tuple(group) for group in about["buckets"]]
    buckets = []
    for index, group in enumerate(groups):
        alone = [replace(entry, trainable=i in group) for i, entry in enumerate(entries)]
        (bucket,) = plan_buckets(alone, _NO_CAP, _NO_CAP).buckets
        buckets.append(replace(bucket, index=index))
    names = tuple(entry.name for entry in entries)
    return BucketPlan(names, tuple(buckets), plan_id_of(names, tuple(buckets)))


def in_order(plan: BucketPlan, order: Sequence[int]) -> BucketPlan:
    """The same buckets, which go out in another order.

    Args:
        order: Their numbers in `plan`, each once.

    Raises:
        ArgumentError: it is no such order.
    """
    if isinstance(order, str):
        raise ArgumentError(f"{_WHO}: expected order as a list of the buckets' numbers, or 'ready', got {order!r:.100}")
    numbers = list(as_sequence(_WHO, "order", order))
    if not all(map(is_integer, numbers)) or sorted(numbers) != list(range(len(plan.buckets))):
        raise ArgumentError(f"{_WHO}: expected order as the numbers 0 to {len(plan.buckets) - 1}, got {order!r:.100}")
    buckets = tuple(replace(plan.buckets[number], index=index) for index, number in enumerate(numbers))
    return BucketPlan(plan.names, buckets, plan_id_of(plan.names, buckets))


def _ready_order(programs: Programs, name: str, plan: BucketPlan) -> list[int]:
    """The buckets in the order in which their last gradients were complete, of the first pass that tells it."""
    for steps in programs.steps.values():
        for own in (each for step in steps for each in step.passes if each.key[0] == name and each.leaves):
            at = {leaf: number for number, (leaf, _) in enumerate(own.leaves)}
            last = [max(at.get(plan.names[i], -1) for i in bucket.entries) for bucket in plan.buckets]
            return sorted(range(len(last)), key=lambda number: last[number])
    return list(range(len(plan.buckets)))
