"""Checks of parameters that are not simply all used once: unused, frozen, tied, empty, of several dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.testing.conformance.adapter import Adapter, Setup
from minigrad.testing.conformance.expect import (
    Backward,
    batch,
    combined,
    expect_error,
    expect_none,
    expect_on_all,
    scalars,
)

BRANCHES = scalars(left=1.0, right=1.0)
BY_RANK = [[Backward(batch(left=[2]))], [Backward(batch(right=[4]))]]


def check_unused_parameter_is_an_error(adapter: Adapter) -> None:
    """A backward that leaves out a parameter hangs, or its stale or local gradient is used; its name isn't told."""
    passes = [[Backward(batch(left=[2], right=[4]))], [Backward(batch(left=[2]))]]
    expect_error(lambda: combined(adapter, Setup(BRANCHES), passes), "a parameter without gradient", "right")


def check_unused_parameter_counts_as_zero(adapter: Adapter) -> None:
    """With detection of unused parameters, a rank that has no gradient is left out of the mean.

    Each rank takes another of two branches.
    """
    expect_on_all(combined(adapter, Setup(BRANCHES, unused=True), BY_RANK), left=1.0, right=2.0)


def check_rank_that_uses_nothing(adapter: Adapter) -> None:
    """A rank whose loss reaches no parameter at all never announces a bucket, and the others wait."""
    passes = [[Backward(batch(left=[2], right=[4]))], [Backward({}, samples=1)]]
    expect_on_all(combined(adapter, Setup(BRANCHES, unused=True), passes), left=1.0, right=2.0)


def check_parameter_that_no_rank_uses(adapter: Adapter) -> None:
    """A parameter that no rank used gets a gradient of zeros, so that weight decay moves it."""
    setup = Setup(scalars(idle=1.0, w=1.0), unused=True, lr=0.1, weight_decay=0.1)
    results = adapter.run(_stepped, 2, adapter, setup, batch(w=[1]))
    expect_none([gradients for gradients, _ in results], "idle")
    expect_on_all([values for _, values in results], 0.0, idle=1.0)


def check_frozen_parameter(adapter: Adapter) -> None:
    """A frozen parameter travels along, gets a gradient of zeros, and weight decay moves it."""
    setup = Setup(scalars(a=1.0, frozen=1.0, z=1.0), frozen=("frozen",), lr=0.1, weight_decay=0.1)
    results = adapter.run(_stepped, 2, adapter, setup, batch(a=[1], frozen=[5], z=[1]))
    expect_none([gradients for gradients, _ in results], "frozen")
    expect_on_all([values for _, values in results], 0.0, frozen=1.0)
    expect_on_all([values for _, values in results], a=1.0 - 0.1 * 1.1, z=1.0 - 0.1 * 1.1)


def _stepped(place: Any, adapter: Adapter, setup: Setup, part: Any) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(part)
    gradients = replica.gradients()
    replica.step()
    return gradients, replica.values()


def check_unused_after_used(adapter: Adapter) -> None:
    """A parameter that is used in one step and in the next by nobody, or by others, keeps its gradient of before."""
    setup = Setup(BRANCHES, unused=True)
    for rank, result in enumerate(adapter.run(_used_then_not, 2, adapter, setup)):
        expect_on_all([result[0]], left=2.0, right=4.0)
        expect_on_all([result[1]], left=1.0)
        assert result[1]["right"] is None, f"rank {rank}: expected no gradient of right, got {result[1]['right']}"


def _used_then_not(place: Any, adapter: Adapter, setup: Setup) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(batch(left=[2], right=[4]))
    first = replica.gradients()
    replica.zero_grad()
    replica.backward(batch(left=[2]) if place.rank == 0 else {}, samples=1)
    return first, replica.gradients()


def check_tied_parameter(adapter: Adapter) -> None:
    """A parameter of two names lies in two buckets: it is reduced twice, or once too few, or becomes two."""
    setup = Setup(scalars(first=1.0, other=1.0), tied={"second": "first"}, bucket_bytes=1)
    passes = [[Backward(batch(first=[r], other=[r], second=[10 * r]))] for r in (1, 3)]
    expect_on_all(combined(adapter, setup, passes), first=22.0, other=2.0)


def check_empty_parameter(adapter: Adapter) -> None:
    """A parameter without elements makes a bucket that is never ready, or of which the other side has another idea."""
    setup = Setup({"w": np.ones(1), "none": np.ones((0, 3)), "v": np.ones(1)}, bucket_bytes=1)
    passes = [[Backward({**batch(w=[r], v=[r]), "none": np.ones((1, 0, 3))})] for r in (1, 3)]
    expect_on_all(combined(adapter, setup, passes), w=2.0, v=2.0)


def check_dtypes_in_turn(adapter: Adapter) -> None:
    """Parameters of several dtypes that alternate are cast to one, or one bucket holds two of them.

    1 + 2^-40 shows a float64 that was cast; 16777217 in float32 would be off by one.
    """
    dtypes = {"a": np.float64, "b": np.float32, "c": np.float16, "d": np.float64, "e": np.float32}
    setup = Setup({name: np.ones(2, dtype) for name, dtype in dtypes.items()})
    value = {"a": 1 + 2.0**-40, "b": 3.5, "c": 0.25, "d": 16777217.0, "e": -7.0}
    passes = [[Backward({n: np.full((1, 2), f * value[n], dtypes[n]) for n in dtypes})] for f in (1, 3)]
    results = combined(adapter, setup, [[one[0]] for one in passes])
    expect_on_all(results, 0.0, **{name: 2 * v for name, v in value.items()})
    for rank, result in enumerate(results):
        for name, dtype in dtypes.items():
            found = result[name]
            assert found is not None and found.dtype == dtype, f"rank {rank}: {name!r}: expected {dtype}, got {found}"


def check_float16_sum_in_range(adapter: Adapter) -> None:
    """Gradients are added up before they are divided: 40000 + 40000 is infinite in float16, the mean is 40000."""
    passes = [[Backward({"w": np.full((1, 2), 40000, np.float16)})] for _ in range(2)]
    expect_on_all(combined(adapter, Setup({"w": np.zeros(2, np.float16)}), passes), w=40000.0)


def check_float16_sum_of_small_parts(adapter: Adapter) -> None:
    """A running sum in 16 bits loses what is small beside it.

    The mean of 2048, 1, 1 and 1 is 512.75, in float16 513, not 512.
    """
    passes = [[Backward({"w": np.full((1, 1), g, np.float16)})] for g in (2048, 1, 1, 1)]
    expect_on_all(combined(adapter, Setup({"w": np.zeros(1, np.float16)}), passes), 0.0, w=513.0)
