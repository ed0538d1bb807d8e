"""Lesson 12, the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minigrad import nn
from minigrad.backend.dtypes import Array
from minigrad.course.counting import Counting
from minigrad.course.lesson import Student, expect
from minigrad.distributed import DDP, Communicator, GradBucket, run
from minigrad.distributed.comm.wire_bytes import wire_bytes
from minigrad.errors import DistributedError
from minigrad.nn.functional import mse_loss
from minigrad.optim import SGD
from minigrad.tensor import Tensor

TIMEOUT_S = 2.0
STEPS, DRAIN = 16, 16
SMALL, LARGE = 800, 2**20  # caps of buckets, in bytes: of two buckets, and of one
SHARES = 0.55  # of the bytes of float32
SIZES = (120, 360)  # elements of the two parameters


class Prescribed(nn.Module):
    """Two parameters whose gradients are the mean of the rows that a forward gets."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(np.zeros((size, 1), np.float32)) for size in SIZES)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (n, 480) -> (n, 1)"""
        return x[:, : SIZES[0]] @ self.first + x[:, SIZES[0] :] @ self.second


class HookSteps(NamedTuple):
    """What came of the steps of one rank.

    Attributes:
        sums: The combined gradients of each step, (steps, 480).
        sent_bytes, plain_bytes: On a ring, by the hook and by an all-reduce of float32, of the bucket with the largest
            ratio.
        rounded: Whether an all-reduce or a reduce-scatter went in 16 bits.
    """

    sums: Array
    sent_bytes: float
    plain_bytes: float
    rounded: bool


# ------------------------------------------------------------------------------------------------------ feedback_hook


def check_feedback_hook(student: Student) -> str:
    """Bits, bytes, what came out after a while; then another plan of buckets; then a training."""
    hook = student.feedback_hook
    for rows in ((1, 2, 1, 4), (2, 1, 1)):
        found, error = _sums_of(hook, rows, [SMALL])
        _expect_nothing_lost(f"feedback_hook on {len(rows)} ranks", found, error)
    fraction = found[0].sent_bytes / found[0].plain_bytes
    found, error_anew = _sums_of(hook, (1, 2, 1, 4), [SMALL, LARGE])
    expect(
        error_anew <= 1e-4,
        "feedback_hook, wrapped anew with other buckets and the same state after half of the steps: the sums are off "
        f"by {error_anew:.1e} of the largest gradient at the end, more than 1e-4: what was kept by number of a bucket, "
        "or by place in it, is lost or added to others: keep it by parameter",
    )
    plain, compressed = (_trained(each) for each in (None, hook))
    expect(
        compressed <= 1.1 * plain,
        f"feedback_hook: a network that ends with a loss of {plain:.4f} without it ends with {compressed:.4f}, more "
        "than 1.1 times that: does too much come too late?",
    )
    return (
        f"{fraction:.2f} of the bytes; nothing lost after {STEPS} steps, nor with a new plan of buckets; the loss of a "
        f"training is {compressed / plain:.2f} of that without it"
    )


def _expect_nothing_lost(told: str, found: Sequence[HookSteps], error: float) -> None:
    for rank, steps in enumerate(found):
        expect(
            np.array_equal(steps.sums, found[0].sums, equal_nan=True),
            f"{told}: expected the same bits on all ranks, got others on rank {rank} than on rank 0: take the "
            "result from the same messages, in the same order",
        )
        fraction = steps.sent_bytes / steps.plain_bytes
        expect(
            fraction <= SHARES,
            f"{told}: expected at most {SHARES} of the bytes of an all-reduce in float32, got {fraction:.2f}: "
            f"{steps.sent_bytes:.0f} instead of {steps.plain_bytes:.0f} for a bucket, on rank {rank}",
        )
    why = "what a message leaves out, by rounding or by choice, has to be kept, and added before the next message"
    if found[0].rounded:
        why += (
            "; and all_reduce or reduce_scatter in 16 bits rounds the sum once more, which is in nobody's residual: "
            "whoever adds up in float32 can keep what rounding takes from the sum"
        )
    expect(
        error <= 1e-4,
        f"{told}: after {STEPS} steps and {DRAIN} with gradients of zero, what came out is off by {error:.1e} of the "
        f"largest gradient, more than 1e-4: {why}",
    )


def _sums_of(hook: Callable[..., Any], rows: Sequence[int], caps: Sequence[int]) -> tuple[list[HookSteps], float]:
    """What the ranks got, and how far its sum is from the exact one, as a fraction of the largest gradient.

    Args:
        rows: Of each rank.
        caps: Bytes of a bucket in each part of the steps.
    """
    rng = np.random.default_rng(12)
    batches = [(rng.standard_normal(480) * 0.1 + rng.standard_normal((n, 480))).astype(np.float32) for n in rows]

    def body(comm: Communicator) -> HookSteps:
        module, state, seen = Prescribed(), dict[Any, Any](), list[Counting]()
        sums, ratio = [], [0.0, 1.0, 0.0]

        def counted(state: dict[Any, Any], bucket: GradBucket, comm: Communicator) -> Any:
            counting = Counting(comm)
            seen.append(counting)
            plain = float(wire_bytes("all_reduce", 4 * bucket.count, comm.world_size))
            work = hook(state, bucket, counting)
            expect(
                callable(getattr(work, "wait", None)),
                f"feedback_hook: expected an object with wait(), got {type(work).__name__}",
            )
            return _Counted(work, counting, plain, ratio)

        for part, cap in enumerate(caps):
            ddp = DDP(module, comm, bucket_cap_bytes=cap)
            ddp.register_comm_hook(state, counted)
            drain = DRAIN if part == len(caps) - 1 else 0
            for step in range(STEPS // len(caps) + drain):
                batch = batches[comm.rank] * np.float32(step < STEPS // len(caps))
                module.zero_grad()
                ddp(Tensor(batch)).mean().backward()
                sums.append(np.concatenate([_gradient(param) for param in module.parameters()]))
            ddp.unwrap()
        sent, plain, rounded = ratio
        return HookSteps(np.array(sums), sent, plain, bool(rounded))

    try:
        found = run(body, len(rows), timeout_s=TIMEOUT_S)
    except DistributedError as error:
        expect(False, f"feedback_hook: the ranks did not make the same calls: {error}")
        raise
    exact = STEPS * sum(batch.sum(axis=0, dtype=np.float64) for batch in batches) / sum(rows)
    total, largest = found[0].sums.sum(axis=0, dtype=np.float64), np.max(np.abs(exact)) / STEPS
    _expect_undivided(total, exact, 0.01 * largest, len(rows))
    off = np.max(np.abs(total - exact))
    return found, float(off / largest) if np.isfinite(off) else np.inf


def _expect_undivided(total: Array, exact: Array, near: float, ranks: int) -> None:
    for factor, why in ((1 / ranks, "add up, and don't divide"), (ranks, "they were added up twice")):
        expect(
            not np.all(np.abs(total - factor * exact) <= factor * near),
            f"feedback_hook on {ranks} ranks: what came out is {factor:.4g} times the sum of the gradients: gradients "
            f"come in times n_r / Σ n already: {why}",
        )


def _gradient(param: nn.Parameter) -> Array:
    assert param.grad is not None
    return param.grad.data.reshape(-1).copy()


class _Counted:
    """The student's work; counts when it is over, as the hook may send while it waits."""

    def __init__(self, work: Any, counting: Counting, plain: float, ratio: list[float]) -> None:
        self._work, self._counting, self._plain, self._ratio = work, counting, plain, ratio

    def wait(self) -> None:
        """Wait as the student does."""
        self._work.wait()
        sent = float(self._counting.wire_bytes)
        if sent / self._plain > self._ratio[0] / self._ratio[1]:
            self._ratio[:2] = [sent, self._plain]
        sums = [call for call in self._counting.calls if call.kind in ("all_reduce", "reduce_scatter")]
        in_16_bits = [call.nbytes == 2 * call.count for call in sums]
        self._ratio[2] = max(self._ratio[2], float(any(in_16_bits)))


def _trained(hook: Callable[..., Any] | None) -> float:
    """The last loss of a small network on three ranks."""

    def body(comm: Communicator) -> float:
        rng = np.random.default_rng(3)
        weights = [(rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32) for shape in ((24, 3), (1, 24))]
        model = nn.Sequential(nn.Linear(3, 24, bias=False), nn.Tanh(), nn.Linear(24, 1, bias=False))
        for param, weight in zip(model.parameters(), weights):
            param.data[...] = weight
        x = rng.standard_normal((36, 3)).astype(np.float32)
        target = np.sin(x.sum(axis=1, keepdims=True))
        mine = slice(12 * comm.rank, 12 * comm.rank + 12)
        ddp, optimizer = DDP(model, comm), SGD(model.parameters(), lr=0.2)
        if hook is not None:
            ddp.register_comm_hook({}, hook)
        for _ in range(40):
            optimizer.zero_grad()
            mse_loss(ddp(Tensor(x[mine])), Tensor(target[mine])).backward()
            optimizer.step()
        return float(mse_loss(model(Tensor(x)), Tensor(target)).item())

    return run(body, 3, timeout_s=TIMEOUT_S)[0]


# -------------------------------------------------------------------------------------------------------- scaled_step


def check_scaled_step(student: Student) -> str:
    """Parts of three ranks, of which none, one or all overflow."""
    fine, infinite = np.array([1.0, -2.0, 0.5]), np.array([1.0, np.inf, 0.5])
    cases = {
        "rank 1 has an infinite gradient": [fine, infinite, fine],
        "all gradients are finite": [fine, fine, fine],
        "rank 2 has a NaN": [fine, fine, np.array([np.nan, 1.0, 1.0])],
        "rank 0 has inf, and rank 1 -inf": [infinite, -infinite, fine],
        "all overflow": [infinite, infinite, infinite],
        "all gradients are 60,000, which is finite": [np.full(3, 60000.0)] * 3,
        "rank 2 owns no parameter": [fine, fine, np.zeros(0)],
        "gradients are 2**-10, which is 2**-26 without the scale of 2**16": [np.full(3, 2.0**-10)] * 3,
    }
    for told, gradients in cases.items():
        _check_step(student.scaled_step, told, [gradient.astype(np.float16) for gradient in gradients])
    return f"{len(cases)} cases on 3 ranks, with one all_reduce each"


def _check_step(step: Callable[..., Any], told: str, gradients: list[Array]) -> None:
    scale, lr = 2.0**16, 2.0**14
    told = f"scaled_step where {told}"

    def body(comm: Communicator) -> tuple[Array, Array, Any, Counting]:
        counting, param = Counting(comm), np.ones(len(gradients[comm.rank]), np.float32)
        gradient = gradients[comm.rank].copy()
        next_scale = step(counting, param, gradient, scale, lr)
        return param, gradient, next_scale, counting

    try:
        with np.errstate(all="ignore"):
            found = run(body, 3, timeout_s=TIMEOUT_S)
    except DistributedError as error:
        expect(False, f"{told}: the ranks did not make the same calls: all ask, whatever they have seen: {error}")
        raise
    skips = not all(np.isfinite(gradient).all() for gradient in gradients)
    for rank, (param, gradient, next_scale, counting) in enumerate(found):
        expect(
            np.array_equal(gradient, gradients[rank], equal_nan=True),
            f"{told}: expected gradient to stay as it is on rank {rank}, got it changed, to {gradient}",
        )
        moved = np.any(param != 1.0)
        expect(
            not (skips and moved),
            f"{told}: expected no rank to make the step, got one on rank {rank}, parameters {param}: the ranks decide "
            "together, before the first writes; else the parts of one model are of different steps",
        )
        right = np.ones_like(param) - (lr / scale) * gradients[rank].astype(np.float32)
        expect(
            skips or np.allclose(param, right, rtol=1e-6, atol=0.0),
            f"{told}: expected the parameters {right} on rank {rank}, got {param}"
            + ("" if moved else ": no step was made") + ". Is the scale taken out in float32, and exactly once?",
        )
        after = scale / 2 if skips else scale
        expect(next_scale == after, f"{told}: expected the scale {after} on rank {rank} afterwards, got {next_scale}")
        expect(
            counting.kinds == ["all_reduce"] and counting.handed_in_bytes <= 8,
            f"{told}: expected one all_reduce of at most 8 bytes, got {', '.join(counting.kinds) or 'none'} of "
            f"{counting.handed_in_bytes} bytes on rank {rank}",
        )
