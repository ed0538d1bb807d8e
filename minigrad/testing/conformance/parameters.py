"""Checks of parameters that are not simply all used once: unused, frozen, tied, empty, of several dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.testing.conformance.adapter import Adapter, Arrays, Setup
from minigrad.testing.conformance.expect import (
    Backward,
    batch,
    combined,
    expect_end,
    expect_none,
    expect_on_all,
    expect_one_of,
    expect_raised,
    faulty,
    returned,
    scalars,
    values,
)
from minigrad.testing.conformance.outcome import NotOfferedError, Outcome, told

BRANCHES = scalars(east=1.0, west=1.0)
BOTH, EAST, WEST = batch(east=[2], west=[4]), batch(east=[2]), batch(west=[4])


def _left_out(place: Any, adapter: Adapter, setup: Setup, parts: Sequence[Arrays]) -> Any:
    """A step with all parameters, and then one with what this rank has of them."""
    replica = adapter.wrap(place, setup)
    replica.backward(BOTH)
    replica.zero_grad()
    replica.backward(parts[place.rank])
    return replica.gradients()


def _leaving_out(adapter: Adapter, parts: Sequence[Arrays], unused: bool = False) -> list[Outcome]:
    control = {"east": 2.0, "west": 4.0}
    return faulty(adapter, _left_out, 2, Setup(BRANCHES, unused=unused), parts, without=[BOTH] * 2, control=control)


def check_unused_parameter_is_an_error(adapter: Adapter) -> None:
    """A backward that leaves out a parameter, on all ranks, goes on with a gradient that is stale or local."""
    expect_raised(_leaving_out(adapter, [EAST, EAST]), "a parameter without gradient")


def check_unused_parameter_is_named(adapter: Adapter) -> None:
    """The error about a parameter that got no gradient does not say which."""
    found = _leaving_out(adapter, [EAST, EAST])
    said = [one for one in found if one.kind == "raised"]
    if not said:
        raise NotOfferedError(f"nothing was raised that could name it: {told(found)}")
    assert all("west" in one.message for one in said), f"expected the name 'west' in the error, got {told(found)}"


def check_unused_parameter_on_one_rank(adapter: Adapter) -> None:
    """A backward leaves out a parameter on one rank, and the others wait for a bucket that is never full."""
    expect_end(_leaving_out(adapter, [BOTH, EAST]))


def check_unused_parameter_counts_as_zero(adapter: Adapter) -> None:
    """With detection of unused parameters, a rank that has no gradient is left out of the mean.

    Each rank takes another of two branches.
    """
    passes = [[Backward(EAST)], [Backward(WEST)]]
    expect_on_all(combined(adapter, Setup(BRANCHES, unused=True), passes), east=1.0, west=2.0)


def check_rank_that_uses_nothing(adapter: Adapter) -> None:
    """A rank whose loss reaches no parameter at all never announces a bucket, and the others wait.

    Whether such a loss is that of one sample or of none is left open.
    """
    results = combined(adapter, Setup(BRANCHES, unused=True), [[Backward(BOTH)], [Backward({})]])
    expect_one_of(results, {"east": 1.0, "west": 2.0}, {"east": 2.0, "west": 4.0})


def check_parameter_that_no_rank_uses(adapter: Adapter) -> None:
    """A parameter that no rank used gets a gradient of zeros, so that weight decay moves it."""
    setup = Setup(scalars(idle=1.0, w=1.0), unused=True, lr=0.1, weight_decay=0.1)
    results = values(adapter, _stepped, 2, setup, batch(w=[1]))
    expect_none([gradients for gradients, _ in results], "idle")
    expect_on_all([parameters for _, parameters in results], 0.0, idle=1.0)


def check_frozen_parameter(adapter: Adapter) -> None:
    """A frozen parameter travels along, gets a gradient of zeros, and weight decay moves it."""
    setup = Setup(scalars(a=1.0, frozen=1.0, z=1.0), frozen=("frozen",), lr=0.1, weight_decay=0.1)
    results = values(adapter, _stepped, 2, setup, batch(a=[1], frozen=[5], z=[1]))
    expect_none([gradients for gradients, _ in results], "frozen")
    expect_on_all([parameters for _, parameters in results], 0.0, frozen=1.0)


def _stepped(place: Any, adapter: Adapter, setup: Setup, part: Any) -> Any:
    replica = adapter.wrap(place, setup)
    replica.backward(part)
    gradients = replica.gradients()
    replica.step()
    return gradients, replica.values()


def check_unused_after_used(adapter: Adapter) -> None:
    """A rank sends the gradient of an earlier step for a parameter that it does not use in this one."""
    control = {"east": 1.0, "west": 2.0}
    found = faulty(adapter, _by_turns, 2, Setup(BRANCHES, unused=True), True, without=False, control=control)
    expect_on_all(returned(found), **control)


def _by_turns(place: Any, adapter: Adapter, setup: Setup, used: bool) -> Any:
    """Each rank uses one of two branches after a step with both, or as the first step of another replica."""
    replica = adapter.wrap(place, setup)
    replica.backward({name: 100 * array for name, array in BOTH.items()})
    replica.zero_grad()
    if not used:
        replica.backward(BOTH)
        replica = adapter.wrap(place, setup)
    replica.backward(EAST if place.rank == 0 else WEST)
    return replica.gradients()


def check_unused_by_all_after_used(adapter: Adapter) -> None:
    """A parameter that was used in one step and is used by nobody in the next keeps its gradient of before."""
    for rank, result in enumerate(returned(_leaving_out(adapter, [EAST, EAST], unused=True))):
        west = result["west"]
        assert west is None or not west.any(), f"rank {rank}: expected no gradient of 'west', got {west}"


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
