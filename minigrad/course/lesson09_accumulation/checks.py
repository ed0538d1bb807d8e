"""Checks of lesson 9: the gradients of one device from several backwards, and when something was sent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.course.joint import (
    CLOSE,
    RATE,
    Batch,
    Gradients,
    JointNet,
    Sizes,
    JointRun,
    batches_of,
    expect_alike,
    expect_conforms,
    expect_gradients,
    gradient_of,
    joined,
    train,
)
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.course.lesson09_accumulation import solution
from minigrad.distributed import Communicator, Wrapper
from minigrad.distributed.comm.wrappers import Call, Make
from minigrad.nn import Module
from minigrad.optim import SGD
from minigrad.tensor import Tensor
from minigrad.testing.conformance import means

RUNS = [
    [[[2, 2], [2, 2]], [[2, 2], [2, 2]]],
    [[[3, 1], [1, 5]], [[1, 2], [4, 1]]],
    [[[1, 3, 2], [4], []], [[], [2, 2], [1, 0]]],
    [[[2, 3, 1]], [[4, 1]]],
]  # of each run its steps: for each rank the sizes of its micro-batches


CHECKS = (
    means.check_unsynchronised_backward_is_local,
    means.check_accumulation,
    means.check_accumulation_of_unequal_batches,
    means.check_backwards_add_up,
    means.check_zero_grad,
    means.check_clipping,
    means.check_norm_of_clipping,
    means.check_training,
)


class _Counting(Wrapper):
    """Counts the collectives of a rank."""

    calls = 0

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """One more."""
        self.calls += 1
        return make()


class _Seen:
    """A wrapper of the student's beside its communicator."""

    def __init__(self, get_ddp: Any, module: Module, comm: Communicator, what: str) -> None:
        self.comm, self.what, self.module = _Counting(comm), what, module
        self.ddp = get_ddp(module, self.comm)
        expect(
            callable(self.ddp) and hasattr(self.ddp, "no_sync"),
            f"{what}: expected an object that is called as the module is and has no_sync(), got {self.ddp!r:.100}",
        )
        found = getattr(self.ddp, "module", None)
        expect(found is module, f"{what}: expected ddp.module to be the module, got {found!r:.100}")

    def __call__(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.ddp(inputs)
        return outputs

    def finish(self) -> None:
        """Let it combine, where it does that after backward."""
        getattr(self.ddp, "finish", lambda: None)()


def _backward(seen: _Seen, batches: Sequence[Batch]) -> None:
    """All micro-batches but the last under no_sync, each scaled to its part of the rank's samples."""
    samples, before = sum(map(len, batches)), seen.comm.calls
    for number, batch in enumerate(batches[:-1]):
        with seen.ddp.no_sync():
            (batch.loss(seen) * (len(batch) / max(1, samples))).backward()
            if number % 2 == 0:
                seen.finish()
        expect(
            seen.comm.calls == before,
            f"{seen.what}: expected no collective under no_sync(), got {seen.comm.calls - before} in micro-batch "
            f"{number} of {len(batches)}: ranks exchange what they throw away or exchange once more",
        )
    for batch in batches[-1:]:
        (batch.loss(seen) * (len(batch) / max(1, samples))).backward()
    seen.finish()


def check_get_ddp_accumulating(student: Student) -> str:
    """Gradients of the joint batch from several backwards; none sent under no_sync; nothing left behind."""
    get_ddp, calls = student.get_ddp_accumulating, []
    what = getattr(get_ddp, "__name__", "get_ddp")
    for steps in RUNS:
        one = train(lambda module, comm: _Seen(get_ddp, module, comm, what), steps, _backward, what)
        expect_alike(one)
        expect_gradients(one, _guesses)
        calls.append(len(one.calls()[0]) / len(steps))
    once = train(lambda module, comm: _Seen(get_ddp, module, comm, what), [[[4], [4]]], _backward, what)
    wanted = len(once.calls()[0])
    expect(
        calls == [wanted] * len(calls),
        f"{what}: expected {wanted} all_reduces a step, as without accumulation, got {calls}",
    )
    _expect_restored(get_ddp, what)
    expect_conforms(get_ddp, CHECKS)
    return (
        f"{len(RUNS)} runs of micro-batches: nothing sent under no_sync, {wanted} all_reduces a step; "
        f"{len(CHECKS)} conformance checks"
    )


def _expect_restored(get_ddp: Any, what: str) -> None:
    """Require that no_sync ends as it should: within another one, and by an exception."""

    def nested(seen: _Seen, batches: Sequence[Batch]) -> None:
        before = seen.comm.calls
        with seen.ddp.no_sync():
            with seen.ddp.no_sync():
                pass
            (batches[0].loss(seen) / len(batches)).backward()
            seen.finish()
        expect(
            seen.comm.calls == before,
            f"{what}: expected no collective in no_sync() after an inner no_sync() has ended, got "
            f"{seen.comm.calls - before}: put back what was there before, not True",
        )
        (batches[1].loss(seen) / len(batches)).backward()
        seen.finish()

    def failing(seen: _Seen, batches: Sequence[Batch]) -> None:
        came = False
        try:
            with seen.ddp.no_sync():
                raise KeyError("a batch that cannot be read")
        except KeyError:
            came = True
        expect(came, f"{what}: expected an exception in no_sync() to come out of it, got none: it was swallowed")
        _backward(seen, batches)

    for backward, why in ((nested, "an inner no_sync()"), (failing, "a no_sync() that was left by an exception")):
        named = f"{what}, after {why},"
        one = train(lambda module, comm: _Seen(get_ddp, module, comm, named), [[[2, 2], [2, 2]]], backward, what)
        try:
            expect_gradients(one)
        except WrongError as error:
            raise WrongError(f"{what}: after {why} gradients are not combined as before it: {error}") from error


def _guesses(model: JointNet, parts: Sequence[Sequence[Batch]], steps: Sequence[Sizes]) -> Mapping[str, Gradients]:
    """What wrappers come to that take the wrong micro-batch, or count the wrong samples."""
    means = [gradient_of(model, joined(part)) if part else {} for part in parts]
    counted = [len(part[-1]) if part else 0 for part in parts]
    return {
        "the ranks are weighted by the samples of their last micro-batch alone: count all since the last finish": (
            _weighted(means, counted)
        ),
        "this is of the last micro-batches alone: the others are lost": _of_one(model, parts, -1),
        "this is of the first micro-batches alone": _of_one(model, parts, 0),
        "the ranks are weighted by all samples that they ever had: begin to count anew after each finish": (
            _weighted(means, [sum(sum(step[rank]) for step in steps) for rank in range(len(parts))])
        ),
        "this is the mean of the ranks' means: count the samples of each": _weighted(means, [1] * len(parts)),
    }


def _of_one(model: JointNet, parts: Sequence[Sequence[Batch]], which: int) -> Gradients:
    """The combined gradient of one micro-batch of each rank, with the scale that it got."""
    chosen = [part[which] if part else batches_of([0], [0])[0] for part in parts]
    totals = [max(1, sum(map(len, part))) for part in parts]
    scaled = [
        {name: value * len(batch) / total for name, value in gradient_of(model, batch).items()}
        for batch, total in zip(chosen, totals)
    ]
    return _weighted(scaled, [sum(map(len, part)) for part in parts])


def _weighted(gradients: Sequence[Gradients], counts: Sequence[int]) -> Gradients:
    names = next((found for found in gradients if found), {})
    total = max(1, sum(counts))
    return {
        name: np.sum([n / total * found[name] for n, found in zip(counts, gradients) if found], axis=0)
        for name in names
    }


# --------------------------------------------------------------------------------------------------- the whole step

STEPS = [
    ([[[3, 1], [1, 3]]], 1e9),
    ([[[5, 1], [1, 2]]], 1e9),
    ([[[4, 2, 1], [3]], [[2, 2], [1, 5]]], 1e9),
    ([[[4, 2, 1], [3]], [[2, 2], [1, 5]]], 0.05),
    ([[[2, 0], [0, 3]], [[0, 0], [4]]], 0.05),
    ([[[2], []], [[], [1, 1]]], 0.05),
]  # steps of two ranks, and the norm to which they clip
STALE = 7.0  # what gradients are before a step


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 2).sum() / max(1, len(outputs))


@dataclass
class _Stepped:
    """What a rank came to in each step: the norm that it was told, the values then, its collectives and losses."""

    norms: list[Any] = field(default_factory=list)
    values: list[Gradients] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    rows: list[list[int]] = field(default_factory=list)


def check_accumulated_step(student: Student) -> str:
    """Steps and norms of one device on the joint batch, with our wrapper."""
    for steps, max_norm in STEPS:
        ranks = [_Stepped(), _Stepped()]
        one = train(_ours, steps, partial(_step, student, max_norm, ranks), "accumulated_step")
        _expect_steps(one, max_norm, ranks)
    return f"{len(STEPS)} runs, with unequal and empty micro-batches, clipped and not: the steps of one device"


def _ours(module: Module, comm: Communicator) -> _Seen:
    return _Seen(solution.get_ddp_accumulating, module, comm, "get_ddp_accumulating")


def _step(student: Student, max_norm: float, ranks: Sequence[_Stepped], seen: _Seen, batches: Sequence[Batch]) -> None:
    """The student's step of a rank, noted down."""
    model, noted, before = seen.module, ranks[seen.comm.rank], seen.comm.calls
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        parameter.grad = Tensor(np.full_like(parameter.data, STALE))
    pairs = [(Tensor(batch.inputs), Tensor(batch.targets)) for batch in batches]
    rows: list[int] = []

    def loss_fn(outputs: Tensor, targets: Tensor) -> Tensor:
        rows.append(len(outputs))
        return _loss(outputs, targets)

    noted.rows.append(rows)
    noted.norms.append(student.accumulated_step(seen.ddp, SGD(parameters, lr=RATE), loss_fn, pairs, max_norm))
    noted.values.append({name: p.data.copy() for name, p in model.named_parameters()})
    noted.calls.append(seen.comm.calls - before)
    model.zero_grad()  # the step was made: nothing is left to do with them


def _expect_steps(one: JointRun, max_norm: float, ranks: Sequence[_Stepped]) -> None:
    model = JointNet(0)
    calls = 1 + sum(1 for p in model.parameters() if p.requires_grad)
    for number, sizes in enumerate(one.steps):
        where = f"accumulated_step, micro-batches of {_told(sizes)}, max_norm {max_norm:g}: step {number}"
        parts = [batches_of(size, (number, rank)) for rank, size in enumerate(sizes)]
        mean = gradient_of(model, joined([batch for part in parts for batch in part]))
        norm = _norm(mean)
        for rank, noted in enumerate(ranks):
            found, got = noted.calls[number], noted.norms[number]
            largest, most = max(noted.rows[number], default=0), max(sizes[rank], default=0)
            expect(
                largest <= most,
                f"{where}: expected a loss of at most {most} samples at a time on rank {rank}, got {largest}: pass "
                "micro-batches through ddp one by one; all at once may be too much for the memory",
            )
            expect(
                found <= calls,
                f"{where}: expected gradients to be exchanged once, by {calls} all_reduces, got {found} of rank "
                f"{rank}: all micro-batches but the last belong into ddp.no_sync()",
            )
            moved = {name: (p.data - noted.values[number][name]) / RATE for name, p in model.named_parameters()}
            if not _alike(moved, mean, _factor(norm, max_norm)):
                raise WrongError(
                    f"{where}: expected rank {rank} to step by the gradient of the mean over all samples of all "
                    f"ranks, of norm {min(norm, max_norm):.6g}, got a step of norm {_norm(moved):.6g}"
                    f"{_why(moved, model, parts, rank, max_norm)}"
                )
            expect(
                isinstance(got, (int, float)),
                f"{where}: expected the norm before clipping as a Python float, got {got!r:.100} on rank {rank}",
            )
            expect(
                math.isclose(got, norm, rel_tol=1e-9),
                f"{where}: expected the norm before clipping, {norm:.6g}, on rank {rank}, got {got!r:.100}",
            )
        for name, parameter in model.named_parameters():
            if name in mean:
                parameter.data -= RATE * _factor(norm, max_norm) * mean[name]


def _why(moved: Gradients, model: JointNet, parts: Sequence[Sequence[Batch]], rank: int, max_norm: float) -> str:
    """What a wrong step was, where that is known."""
    samples = [sum(map(len, part)) for part in parts]
    by_part = [[gradient_of(model, batch) for batch in part] for part in parts]
    shares = [[len(batch) / max(1, n) for batch in part] for part, n in zip(parts, samples)]
    means = [_sum(found, share) for found, share in zip(by_part, shares)]
    mean = _weighted(means, samples)
    alike = _weighted([_sum(found, [1 / max(1, len(found))] * len(found)) for found in by_part], samples)
    summed = _weighted([_sum(found, [1.0] * len(found)) for found in by_part], samples)
    last = _weighted([_sum(found[-1:], share[-1:]) for found, share in zip(by_part, shares)], samples)
    clipped = _weighted([_sum([g], [_factor(_norm(g), max_norm)]) for g in means], samples)
    stale = {name: value + STALE for name, value in mean.items()}
    known = {
        "each micro-batch counts alike, whatever its size: weight its loss by its part of the rank's samples": alike,
        "this is the sum of the micro-batches' means: weight each by its part of the rank's samples": summed,
        "only the last micro-batch is left: gradients are set to zero once a step, before the first": last,
        "the gradients of before are still in it: zero_grad() comes first": stale,
        "each rank clipped its own gradient: clip after finish(), when all have the same one": clipped,
        "this is this rank's own gradient: is finish() called where the last micro-batch is empty, or there is none?": (
            means[rank]
        ),
    }
    for reason, gradient in known.items():
        if any(_alike(moved, gradient, factor) for factor in (1.0, _factor(_norm(gradient), max_norm))):
            return f": {reason}"
    if not all(parts):
        return ": a rank without micro-batches calls finish() too, and then has the gradient of the others"
    if not any(value.any() for value in moved.values()):
        return ": the optimizer made no step"
    if _alike(moved, mean, 1.0):
        return ": it is not clipped"
    return ": it is NaN" if any(np.isnan(value).any() for value in moved.values()) else ""


def _sum(gradients: Sequence[Gradients], weights: Sequence[float]) -> Gradients:
    names = gradients[0] if gradients else gradient_of(JointNet(0), batches_of([0], [0])[0])
    return {
        name: np.sum([w * found[name] for w, found in zip(weights, gradients)], axis=0) + np.zeros_like(value)
        for name, value in ((name, JointNet(0).get_parameter(name).data) for name in names)
    }


def _factor(norm: float, max_norm: float) -> float:
    """What clipping multiplies by; see `minigrad.optim.clip_grad_norm_`."""
    return min(1.0, max_norm / (norm + 1e-6))


def _norm(gradients: Gradients) -> float:
    return math.sqrt(sum(float((value**2).sum()) for value in gradients.values()))


def _alike(moved: Gradients, gradient: Gradients, factor: float) -> bool:
    return all(np.allclose(moved[name], factor * value, rtol=0.0, atol=CLOSE) for name, value in gradient.items())


def _told(sizes: Sequence[Sequence[int]]) -> str:
    return " and ".join("+".join(map(str, size)) or "none" for size in sizes)
