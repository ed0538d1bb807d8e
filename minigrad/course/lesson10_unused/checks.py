"""Lesson 10, the checks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minigrad.course.counting import Counting
from minigrad.course.lesson import Student, expect
from minigrad.distributed import Communicator, run
from minigrad.errors import DistributedError
from minigrad.nn import Module, Parameter
from minigrad.tensor import Tensor
from minigrad.testing import WrapperAdapter
from minigrad.testing.conformance import VerdictError, means, parameters, replicas

TIMEOUT_S = 0.6
_CHECKS = (
    parameters.check_unused_parameter_is_an_error,
    parameters.check_unused_parameter_is_named,
    parameters.check_unused_parameter_on_one_rank,
    parameters.check_frozen_parameter,
    parameters.check_tied_parameter,
    parameters.check_empty_parameter,
    parameters.check_unused_parameter_counts_as_zero,
    parameters.check_parameter_that_no_rank_uses,
    parameters.check_unused_after_used,
    parameters.check_unused_by_all_after_used,
    parameters.check_rank_that_uses_nothing,
    replicas.check_replicas_start_alike,
    means.check_unequal_batches,
)


# ------------------------------------------------------------------------------------------------------ used_anywhere


def check_used_anywhere(student: Student) -> str:
    """Random flags on 1 to 5 ranks, against `any` over the columns; then how much it sent."""
    rng = np.random.default_rng(10)
    most = 0
    tables = [[[True, True], [False, True]]]
    shapes = (2, 4), (3, 7), (5, 12), (2, 0), (1, 3)
    tables += [(rng.random(shape) < 0.3).tolist() for shape in shapes]
    for table in tables:
        count = len(table[0])
        expected = [any(column) for column in zip(*table)]
        calls = _calls_of(student.used_anywhere, table, expected)
        kinds = calls.kinds
        expect(
            len(table) == 1 or kinds == ["all_reduce"] * bool(count),
            f"used_anywhere with {count} entries: expected {'one all_reduce' if count else 'no collective'}, got "
            f"{', '.join(kinds) or 'none'}: it runs in each step, and each call costs the latency of the network",
        )
        sent = calls.handed_in_bytes
        expect(sent <= 8 * count, f"used_anywhere with {count} entries: expected at most {8 * count} bytes, got {sent}")
        most = max(most, sent // count if count else 0)
    return f"right on 1 to 5 ranks; one all_reduce of {most} bytes an entry"


def _calls_of(
    used_anywhere: Callable[..., Any], table: list[list[bool]], expected: list[bool]
) -> Counting:
    def body(comm: Communicator) -> tuple[Any, Counting]:
        counting = Counting(comm)
        return used_anywhere(counting, list(table[comm.rank])), counting

    try:
        found = run(body, len(table), timeout_s=TIMEOUT_S)
    except DistributedError as error:
        expect(False, f"used_anywhere on {len(table)} ranks: the ranks did not make the same calls: {error}")
        raise
    for rank, (answer, _) in enumerate(found):
        got = [bool(entry) for entry in answer]
        expect(
            got == expected,
            f"used_anywhere on {len(table)} ranks that say {table}: expected {expected} on all, got {got} on rank "
            f"{rank}: one rank that says True is enough, and all ranks have to go on with the same answer",
        )
    return found[0][1]


# ----------------------------------------------------------------------------------------------------- get_ddp_unused


class EastAndWest(Module):
    """Two parameters; what a forward is given decides which of them it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.east, self.west = Parameter(np.ones(1)), Parameter(np.ones(1))

    def forward(self, east: Tensor, west: Tensor | None = None) -> Tensor:
        """Shapes: (n, 1) -> (n, 1)"""
        return east * self.east if west is None else east * self.east + west * self.west


def check_get_ddp_unused(student: Student) -> str:
    """A rank that leaves a parameter out, in the words of this lesson; then the suite that any wrapper is put to."""
    _refuses_on_all_ranks(student.get_ddp_unused)
    _goes_on_after_refusal(student.get_ddp_unused)
    adapter = WrapperAdapter(partial(Flushing, student.get_ddp_unused), timeout_s=2 * TIMEOUT_S)
    for check in _CHECKS:
        try:
            check(adapter)
        except (AssertionError, VerdictError) as error:
            doc = (check.__doc__ or "").strip().splitlines()[0]
            expect(False, f"get_ddp_unused has this fault: {doc} {error}")
    return f"an unused parameter is an error on both ranks, without a timeout; {len(_CHECKS)} checks of conformance"


def _refuses_on_all_ranks(make: Callable[..., Any]) -> None:
    """Rank 1 leaves west out: both have to say so, and neither may wait for the timeout."""

    def body(comm: Communicator) -> BaseException | None:
        try:
            _step(make(EastAndWest(), comm), comm.rank, both=comm.rank == 0)
        except Exception as error:
            return error
        return None

    try:
        found = run(body, 2, timeout_s=TIMEOUT_S)
    except DistributedError as error:
        found = [error, error]
    fault = "get_ddp_unused: rank 0 uses west in its backward, and rank 1 does not"
    for rank, end in enumerate(found):
        said = f"rank {rank}, which {'used' if rank == 0 else 'did not use'} west"
        expect(
            not isinstance(end, DistributedError) or "west" in str(end),
            f"{fault}: {said}, waited for a call that never came, where training hangs, until the communicator ended "
            f"it: {end}. Rank {1 - rank} ended with {_told(found[1 - rank])}. Each rank has to make the same calls: "
            "let them agree first on who has what",
        )
        expect(
            end is not None,
            f"{fault}: expected an error on both ranks, got none on {said}: it trains on with a gradient of its own, "
            "or a missing one",
        )
        expect(
            "west" in str(end),
            f"{fault}: expected an error on both ranks that names 'west', got {_told(end)} on {said}: who reads one "
            "log wants to know which parameter it is; tell all ranks, then raise on each",
        )
        expect(isinstance(end, RuntimeError), f"{fault}: expected a RuntimeError, got {_told(end)} on {said}")


def _goes_on_after_refusal(make: Callable[..., Any]) -> None:
    """The same ranks take a whole step after the refused one."""

    def body(comm: Communicator) -> list[float]:
        ddp, module = make(module := EastAndWest(), comm), module
        try:
            _step(ddp, comm.rank, both=comm.rank == 0)
        except RuntimeError:
            module.zero_grad()
        _step(ddp, comm.rank, both=True)
        return [float(p.grad.item()) if p.grad is not None else 0.0 for p in module.parameters()]

    try:
        found = run(body, 2, timeout_s=TIMEOUT_S)
    except DistributedError as error:
        expect(False, f"get_ddp_unused: expected a step on the same communicator to follow a refused one, got {error}")
        raise
    for rank, gradients in enumerate(found):
        expect(
            gradients == [3.0, 30.0],
            f"get_ddp_unused: after a refused step and zero_grad, a step with both parameters: expected the gradients "
            f"3.0 and 30.0, got {gradients} on rank {rank}: what the refused step left over was counted",
        )


def _told(error: BaseException | None) -> str:
    return "no error" if error is None else f"{type(error).__name__}: {error}"


def _step(ddp: Any, rank: int, both: bool) -> None:
    """Two samples; their gradients are 2 and 20 on rank 0, 4 and 40 on rank 1."""
    east, west = (Tensor(np.full((2, 1), slope * (rank + 1))) for slope in (2.0, 20.0))
    loss = ddp(east, west).mean() if both else ddp(east).mean()
    loss.backward()
    if hasattr(ddp, "finish"):
        ddp.finish()


class Flushing:
    """A student's wrapper, in which a rank without a loss calls `finish` by the name of `flush`."""

    def __init__(
        self, make: Callable[..., Any], module: Module, comm: Communicator, find_unused_parameters: bool = False
    ) -> None:
        self.inner = make(module, comm, find_unused_parameters=True) if find_unused_parameters else make(module, comm)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The student's."""
        return self.inner(*inputs)  # type: ignore[no-any-return]

    def finish(self) -> None:
        """The student's, where there is one."""
        if hasattr(self.inner, "finish"):
            self.inner.finish()

    flush = finish
