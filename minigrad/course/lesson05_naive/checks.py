"""Checks of lesson 5: the gradients of one device, the calls that they took, and the bill."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.course.joint import Batch, JointNet, JointRun, expect_alike, expect_conforms, expect_gradients, train
from minigrad.course.lesson import Student, expect
from minigrad.course.lesson05_naive import solution
from minigrad.distributed import Communicator, simulate
from minigrad.nn import Linear, Module, Sequential
from minigrad.tensor import Tensor
from minigrad.testing import Limits, grade
from minigrad.testing.conformance import means, parameters, replicas

SHARDS = [
    [[[2], [2]], [[2], [2]]],
    [[[4], [1]], [[1], [3]]],
    [[[5], [0], [2]], [[0], [3], [3]]],
    [[[3], [2], [1], [6]], [[2], [], [], [1]]],
    [[[6]], [[2]]],
]  # of each run its steps: for each rank a batch of so many samples, or none


CHECKS = (
    means.check_one_rank,
    means.check_unequal_batches,
    means.check_empty_batch,
    means.check_nan_is_seen_by_all,
    means.check_backwards_add_up,
    means.check_zero_grad,
    means.check_clipping,
    means.check_norm_of_clipping,
    means.check_training,
    parameters.check_frozen_parameter,
    parameters.check_tied_parameter,
    parameters.check_empty_parameter,
    parameters.check_dtypes_in_turn,
    parameters.check_float16_sum_in_range,
    parameters.check_float16_sum_of_small_parts,
    replicas.check_replicas_start_alike,
    replicas.check_optimizer_made_before,
)
CLUSTER = simulate.Cluster.of_speeds([1.0] * 2, link=simulate.Link(100e-6, 1e9))
LIMITS = Limits(step_ratio=1.5, bytes_ratio=1.01)  # loose: lesson 8 is about time


def backward(ddp: Any, batches: Sequence[Batch]) -> None:
    """Forward and backward of a rank's batch, where it has one, as a script writes it."""
    for batch in batches:
        batch.loss(ddp).backward()
    finish(ddp)


def finish(ddp: Any) -> None:
    """Let a wrapper combine gradients, where it does that after backward."""
    getattr(ddp, "finish", lambda: None)()


def check_get_ddp_naive(student: Student) -> str:
    """Gradients of the joint batch for equal, unequal and empty shards, and how many all_reduces they took."""
    for steps in SHARDS:
        one = train(student.get_ddp_naive, steps, backward)
        expect_alike(one)
        expect_gradients(one)
        _expect_calls(one)
    expect_conforms(student.get_ddp_naive, CHECKS)
    graded = grade(student.get_ddp_naive, CLUSTER, LIMITS, checks=())
    expect(graded.passed, f"get_ddp_naive, graded: {'; '.join(graded.failed)}")
    exposed = graded.figures["exposed_fraction"]
    return (
        f"{len(SHARDS)} divisions of a batch, also to ranks without samples; {len(CHECKS)} conformance checks; "
        f"{graded.ratio('sent_bytes'):.2f} of the least bytes; {exposed.value:.0%} of a step is waiting for the wire, "
        f"where {exposed.best:.0%} would do"
    )


def _sizes() -> list[int]:
    """Bytes of each trainable parameter of the model."""
    return [parameter.data.nbytes for parameter in JointNet(0).parameters() if parameter.requires_grad]


def _expect_calls(one: JointRun) -> None:
    wanted = [*_sizes(), 8]
    for rank, found in enumerate(one.calls()):
        expect(
            Counter(found) == Counter(wanted * len(one.steps)),
            f"{one.what}: expected {len(wanted)} all_reduces a step of rank {rank}, one of each of the {len(_sizes())} "
            f"trainable parameters and one of a float64, of {wanted} bytes, got {len(found)} in {len(one.steps)} "
            f"steps, of {found} bytes",
        )


def bill_of(
    world_size: int, layers: int, link: simulate.Link, get_ddp: Any = solution.get_ddp_naive, width: int = 8
) -> tuple[float, float]:
    """What a step of some layers takes a rank on a virtual cluster: seconds of computing, and of waiting for the wire.

    Args:
        layers: Of width² weights and as many biases as it is wide, in float32; each rank has 8 samples of 1 ms.
    """

    def body(comm: Communicator) -> None:
        module: Module = Sequential(*[Linear(width, width) for _ in range(layers)])
        ddp = get_ddp(module, comm)
        ddp(Tensor(np.ones((8, width), np.float32))).mean().backward()
        finish(ddp)

    cluster = simulate.Cluster.of_speeds([1.0] * world_size, link=link)
    (step,) = simulate.run(body, cluster, timeout_s=30.0).ranks[0].steps
    return step.compute_s, step.exposed_s


def check_latency_bill_s(student: Student) -> str:
    """Both parts of the bill against the virtual clock: on a link where bytes cost nothing, and without latency."""
    alpha_s, bandwidth, told = 25e-6, 1e9, ""
    for world_size, layers in ((4, 3), (1, 2), (2, 1), (16, 3)):
        parameters, nbytes = 2 * layers, 4 * layers * 8 * 9
        call = f"latency_bill_s({parameters}, {nbytes}, {alpha_s:g}, {bandwidth:g}, {world_size})"
        got = student.latency_bill_s(parameters, nbytes, alpha_s, bandwidth, world_size)
        pair = "a pair of seconds, for messages and for bytes"
        expect(isinstance(got, tuple) and len(got) == 2, f"{call}: expected {pair}, got {got!r:.100}")
        for part, link, value in (
            ("messages", simulate.Link(alpha_s), got[0]),
            ("bytes", simulate.Link(0.0, bandwidth), got[1]),
        ):
            wanted = bill_of(world_size, layers, link)[1]
            expect(
                math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-15),
                f"{call}: expected {wanted:.9f} s for {part}, as a step of {layers} Linear layers takes on the virtual "
                f"clock, got {value:.9f} s{_why(part, value, wanted, parameters, nbytes, world_size)}",
            )
        told = f"{got[0] * 1e3:.2f} ms for messages, {got[1] * 1e3:.4f} ms for {nbytes} bytes, on {world_size} ranks"
    return f"4 bills as the virtual clock has them; the last: {told}"


def _why(part: str, value: float, wanted: float, parameters: int, nbytes: int, world_size: int) -> str:
    if world_size == 1:
        return ": one rank has nobody to send to"
    ratio, messages = value / wanted, 2 * (world_size - 1)
    reasons = {
        parameters / (parameters + 1): "that is without the call for the number of samples",
        1 / messages: "that is one message a call, or one chunk: round a ring there are 2 (W - 1)",
        1 / (messages * (parameters + 1)): "that is one message: there are 2 (W - 1) in each call",
        1 / (parameters + 1): "that is one call",
        nbytes / (nbytes + 8): "that is without the 8 bytes for the number of samples",
        world_size / messages: "that is all bytes once: round a ring it is 2 (W - 1) / W of them",
        float(world_size): "a message has n / W bytes, not n",
        float(parameters): "nbytes are those of all parameters together",
        1 / 2: "the ring goes round twice: to add up, and to tell",
    }
    for factor, reason in reasons.items():
        if math.isclose(ratio, factor, rel_tol=1e-9) or (
            part == "bytes" and math.isclose(ratio, factor * nbytes / (nbytes + 8), rel_tol=1e-9)
        ):
            return f": {reason}"
    return ""
