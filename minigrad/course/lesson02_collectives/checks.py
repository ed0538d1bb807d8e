"""Checks of lesson 2: the bits of our own collectives, and the contract of communicators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.course.counting import Awaited
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, ReduceOp, run
from minigrad.testing import check_communicator

Array = np.ndarray
SIZES = (1, 2, 3, 4)
SHAPES = [(12,), (5,), (1,), (0,), (3, 3), (2, 1, 7)]
OPS = [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVG]
CONTRACT = [
    "all_reduce-float16",
    "sums_are_added_up_in_the_one_order-float32",
    "several_calls_may_be_under_way_at_once",
    "works_tell_when_they_ran",
    "reduce_scatter_then_all_gather_is_all_reduce",
    "training_equals_one_device_and_has_the_bits_of_threads-float64",
]
DTYPES = [np.float32, np.float64, np.float16, np.int64, np.uint8]
LEFT = "expected a wait() for each collective, got none for {}: until then what it fills may hold anything"
TIMEOUT_S = 2.0


def check_communicator_by_parts(student: Student) -> str:
    """Whether it has the bits of all_reduce, from two collectives and no more bytes than these need."""
    for world_size in SIZES:
        for shape in SHAPES:
            for op in OPS if world_size > 1 else OPS[:1]:
                _all_reduced(student, world_size, shape, op)
        _all_reduced(student, world_size, (5,), ReduceOp.SUM, "float64")

    def world(body: Callable[[Communicator], None], world_size: int, timeout_s: float) -> object:
        return run(lambda comm: body(student.communicator_by_parts(comm)), world_size, timeout_s=timeout_s)

    try:
        check_communicator(world, sizes=[2, 3], cases=CONTRACT)
    except AssertionError as error:
        raise WrongError(f"communicator_by_parts: what every communicator must do: {error}") from error
    return f"the bits of all_reduce, {len(SHAPES)} shapes on 1 to 4 ranks; {len(CONTRACT)} cases of the contract hold"


def _all_reduced(
    student: Student, world_size: int, shape: tuple[int, ...], op: ReduceOp, dtype: str = "float32"
) -> None:
    """Try one array a rank."""
    what = f"communicator_by_parts(comm).all_reduce, {op.name} of {dtype} of shape {shape} on {world_size} ranks"
    rng = np.random.default_rng(2)
    before = [rng.standard_normal(shape).astype(dtype) for _ in range(world_size)]

    def rank(comm: Communicator) -> tuple[Array, Array, list[Any]]:
        recording = Awaited(comm)
        own, array = student.communicator_by_parts(recording), before[comm.rank].copy()
        expect(hasattr(own, "all_reduce"), f"{what}: expected a communicator, got {own!r:.60}")
        work = own.all_reduce(array, op)
        expect(hasattr(work, "wait"), f"{what}: expected a Work, which has wait(), got {work!r:.60}: return the one of "
               "the all_gather")
        work.wait()
        left = recording.not_awaited
        expect(not left, f"{what}: {LEFT.format(left)}")
        wanted = before[comm.rank].copy()
        comm.all_reduce(wanted, op).wait()
        return array, wanted, recording.calls

    for number, (got, wanted, calls) in enumerate(run(rank, world_size, timeout_s=TIMEOUT_S)):
        kinds = [call.kind for call in calls]
        expect("all_reduce" not in kinds, f"{what}: expected reduce_scatter and all_gather, got a call of all_reduce, "
               "the thing that is to be written")
        if not np.array_equal(got, wanted):
            raise WrongError(f"{what}: {_difference(got, wanted, before[number], op, number)}")
        expect(kinds == ["reduce_scatter", "all_gather"],
               f"{what}: expected one reduce_scatter, then one all_gather, got {', '.join(kinds) or 'nothing'}")
        counts, least = [call.count for call in calls], got.size
        expect(counts[0] < least + max(world_size, 1) and counts[1] * world_size == counts[0],
               f"{what}: expected a reduce_scatter of {least} elements, and fewer than {world_size} to fill up, and "
               f"an all_gather of its parts, got {counts[0]} and {counts[1]} elements: these are sent in vain")


def _difference(got: Array, wanted: Array, before: Array, op: ReduceOp, rank: int) -> str:
    """What came, and which mistake does that."""
    if np.array_equal(got, before):
        return (f"expected {_few(wanted)} on rank {rank}, got {_few(got)}, what was there before: overwrite the array "
                "in place; a reshape of an array that is contiguous is a view of it, a[...] = b writes into it")
    differ = np.flatnonzero(got.reshape(-1) != wanted.reshape(-1))
    places = f"element {differ[0]}" if len(differ) == 1 else f"elements {differ[0]} to {differ[-1]}"
    end = differ[-1] == got.size - 1 and len(differ) < got.size
    why = ": a length that the ranks do not divide has to be filled up to the next that they do" if end else ""
    if np.allclose(got, wanted, rtol=1e-5, atol=1e-6):
        why = f": only the last digits differ. Has all that is exchanged the dtype of the array, {wanted.dtype}?"
    if op is not ReduceOp.SUM and len(differ) == got.size:
        why = f": is op passed on? It is {op.name} here"
    return f"expected {_few(wanted)} on rank {rank}, got {_few(got)}, {places} of {got.size} wrong{why}"


def check_broadcast_by_sum(student: Student) -> str:
    """Whether the root's bits are on all ranks, in every dtype."""
    for world_size in SIZES:
        for root in range(world_size):
            for dtype in DTYPES:
                _broadcast(student, world_size, root, dtype)
    return f"the root's bits on 1 to 4 ranks from each root, in {len(DTYPES)} dtypes, NaN and -0.0 among them"


def _broadcast(student: Student, world_size: int, root: int, dtype: Any) -> None:
    """Try one array a rank."""
    what = f"broadcast_by_sum, {np.dtype(dtype).name}, root {root} of {world_size} ranks"
    special = [-0.0, np.inf, np.nan] if np.dtype(dtype).kind == "f" else [0, 1, min(np.iinfo(dtype).max, 2**53 + 1)]
    before = [np.array([rank + 1, 200 - rank, *special], dtype) for rank in range(world_size)]

    def rank(comm: Communicator) -> tuple[Array, list[Any]]:
        recording, array = Awaited(comm), before[comm.rank].copy()
        student.broadcast_by_sum(recording, array, root)
        left = recording.not_awaited
        expect(not left, f"{what}: {LEFT.format(left)}")
        return array, recording.calls

    for number, (got, calls) in enumerate(run(rank, world_size, timeout_s=TIMEOUT_S)):
        others = sorted({call.kind for call in calls} - {"all_reduce"})
        expect(not others, f"{what}: expected calls of all_reduce alone, got {', '.join(others)}")
        if got.tobytes() != before[root].tobytes():
            raise WrongError(f"{what}: expected {before[root]}, got {got} on rank {number}{_reason(got, before, root)}")


def _reason(got: Array, before: list[Array], root: int) -> str:
    """Which mistake gives what came, in words to be put behind it."""
    wanted = before[root]
    if np.array_equal(got, wanted, equal_nan=True):
        return ": only the sign of a zero differs, since -0.0 + 0.0 is 0.0. Integers have one zero: look at the bytes"
    if np.isnan(got.astype(np.float64)).sum() > np.isnan(wanted.astype(np.float64)).sum():
        return ": 0 · NaN and 0 · inf are NaN; set what is not the root's to 0, do not weight it"
    with np.errstate(all="ignore"):
        if np.array_equal(got, sum(before[1:], before[0].copy()), equal_nan=True):
            return ": that is the sum of all ranks' arrays; the others have to add nothing"
    if np.allclose(got.astype(np.float64), wanted.astype(np.float64), equal_nan=True):
        return f": is all that is exchanged of the array's dtype? Floats don't hold each {wanted.dtype}"
    if any(np.array_equal(got, other, equal_nan=True) for other in before):
        return ": that is the array of another rank"
    return ""


def _few(array: Array) -> str:
    shown = ", ".join(f"{value:.4g}" for value in array.reshape(-1)[:5])
    return f"[{shown}{', ...' if array.size > 5 else ''}]"
