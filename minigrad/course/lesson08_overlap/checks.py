"""Checks of lesson 8: gradients on models that are hard to overlap; then what a step takes, on three clusters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minigrad import nn
from minigrad.backend.dtypes import Array
from minigrad.backend.random import manual_seed
from minigrad.course.lesson import Student, WrongError, expect
from minigrad.distributed import Communicator, run
from minigrad.distributed.simulate import Cluster, Link
from minigrad.errors import CollectiveMismatchError
from minigrad.recording import no_grad
from minigrad.tensor import Tensor
from minigrad.testing import Workload, grade
from minigrad.testing.conformance import buckets, parameters, replicas

_TIMEOUT_S = 3.0
_GRADE_S = 20.0
_WIDTH = 4
_CAP_BYTES = 160  # of the small models below: one layer
_STEPS = 2


class Chain(nn.Module):
    """Four layers, one after the other, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(_WIDTH, _WIDTH) for _ in range(4)])
        self.seen = nn.Buffer(np.zeros(2))

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 4)"""
        for layer in self.layers:
            x = layer(x).tanh()
        return x


class Shared(nn.Module):
    """A layer that is the first and the last, and a weight of two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, _WIDTH)
        self.tied = nn.Linear(_WIDTH, _WIDTH)
        self.tied.weight = self.inner.weight
        self.outer = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 4)"""
        return self.outer(self.tied(self.inner(self.outer(x).tanh()).tanh()).tanh())


class Roads(nn.Module):
    """Two roads of equal size; which one is taken first is up to the rank."""

    def __init__(self, left_first: bool) -> None:
        super().__init__()
        self.left_first = left_first
        self.left, self.right = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.last = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 4)"""
        if self.left_first:
            left, right = self.left(x), self.right(x)
        else:
            right, left = self.right(x), self.left(x)
        return self.last((left * 2.0 + right).tanh())


class Context(nn.Module):
    """A layer that sees the mean over the batch, which is NaN where there are no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.of_all, self.of_each = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Any:
        """(N, 4) -> (N, 4)"""
        return (self.of_each(x) + self.of_all(x.mean(dim=0, keepdim=True))).tanh()


@dataclass(frozen=True)
class HardModel:
    """A model on ranks with these samples, and what one learns where it is wrong."""

    what: str
    samples: tuple[int, ...]
    make: Callable[[int], nn.Module]
    note: str

    def model(self, rank: int) -> nn.Module:
        """Of a rank, with the values of rank 0."""
        manual_seed(8)
        return self.make(rank).to("float64")

    def loss(self, model: Callable[[Tensor], Tensor], rank: int, step: int) -> Tensor:
        """The mean over a rank's samples in a step; NaN where it has none."""
        x = np.random.default_rng([8, rank, step]).standard_normal((self.samples[rank], _WIDTH))
        output = model(Tensor(x))
        return (output * output).mean()


HARD_MODELS = (
    HardModel(
        "four layers, equal samples",
        (3, 3),
        lambda rank: Chain(),
        "look at what is packed where, and whether all of it comes back",
    ),
    HardModel(
        "four layers, unequal samples", (5, 1, 2), lambda rank: Chain(), "each rank weighs as much as it has samples"
    ),
    HardModel(
        "two roads of equal size, taken in another order on each rank",
        (2, 3),
        lambda rank: Roads(rank % 2 == 0),
        "gradients became ready in another order on each rank, and buckets met that are not the same: launch them in "
        "order of index",
    ),
    HardModel(
        "a layer that is used twice, and a weight with two names",
        (2, 3),
        lambda rank: Shared(),
        "what travels must have the last contribution in it: a gradient is complete when the hook is called, not when "
        "its layer has run backward once",
    ),
    HardModel(
        "a layer that sees the mean over the batch, and a rank without samples",
        (4, 0),
        lambda rank: Context(),
        "a rank with n = 0 counts nothing, and its gradients are NaN: 0 * NaN is NaN",
    ),
)


def check_right(get_ddp: Callable[..., Any]) -> int:
    """Compare gradients with those of one device; how many were compared."""
    compared = 0
    for case in HARD_MODELS:
        try:
            found = run(_steps, len(case.samples), get_ddp, case, timeout_s=_TIMEOUT_S)
        except CollectiveMismatchError as error:
            raise WrongError(
                f"{case.what} {case.samples}: {str(error).splitlines()[0]}: "
                "all ranks have to make the same calls in the same order: launch buckets in order of index, in each "
                "hook all that can go then, which may be two, and call nothing in a forward under no_grad(), which "
                "one rank may make alone"
            ) from error
        for step in range(_STEPS):
            own = [_own(case, rank, step) for rank in range(len(case.samples))]
            for name in own[0]:
                right = sum(n * g[name] for n, g in zip(case.samples, own) if n) / sum(case.samples)
                for rank, steps in enumerate(found):
                    _compare(case, name, rank, step, steps[step][name], right, [g[name] for g in own])
                    compared += 1
    return compared


def _steps(comm: Communicator, get_ddp: Callable[..., Any], case: HardModel) -> list[dict[str, Array | None]]:
    """The gradients of each step, on one rank."""
    module = case.model(comm.rank)
    tensors = [*module.parameters(), *module.buffers()]
    for tensor in tensors:
        tensor.data += comm.rank
    arrays = [tensor.data for tensor in tensors]
    ddp = get_ddp(module, comm, bucket_cap_bytes=_CAP_BYTES)
    expect(callable(ddp), f"get_ddp_overlapped: an object to call should come, got {ddp!r:.80}")
    expect(callable(getattr(ddp, "finish", None)), f"get_ddp_overlapped: {type(ddp).__name__} should have finish()")
    first = case.model(comm.rank)
    for what, own, right in (
        ("parameters", module.parameters(), first.parameters()),
        ("buffers", module.buffers(), first.buffers()),
    ):
        expect(
            all(np.array_equal(a.data, b.data) for a, b in zip(own, right)),
            f"get_ddp_overlapped: when it returns, {what} should be those of rank 0 on every rank, got others: ranks "
            "would go different ways from the start. Broadcast each tensor.data, and wait()",
        )
    expect(
        all(tensor.data is array for tensor, array in zip(tensors, arrays)),
        "get_ddp_overlapped: parameters and buffers should stay in the arrays that they are in, got others: what else "
        "has such an array, as an optimizer, would not see the values of rank 0",
    )
    found = []
    for step in range(_STEPS):
        if comm.rank == 0:
            with no_grad():
                case.loss(ddp, 0, step)
        for param in module.parameters():
            param.grad = None
        with np.errstate(invalid="ignore", divide="ignore"):
            case.loss(ddp, comm.rank, step).backward()
            ddp.finish()
        named = module.named_parameters()
        found.append({name: None if param.grad is None else param.grad.data.copy() for name, param in named})
    return found


def _own(case: HardModel, rank: int, step: int) -> dict[str, Array]:
    """The gradients of one rank alone."""
    module = case.model(rank)
    if case.samples[rank]:
        case.loss(module, rank, step).backward()
    named = module.named_parameters()
    return {name: np.zeros_like(param.data) if param.grad is None else param.grad.data for name, param in named}


def _compare(
    case: HardModel, name: str, rank: int, step: int, found: Array | None, right: Array, own: Sequence[Array]
) -> None:
    where = f"{case.what} {case.samples}: the gradient of {name} on rank {rank} after step {step}"
    if found is None or found.shape != right.shape:
        raise WrongError(f"{where} should have shape {right.shape}, got {'none' if found is None else found.shape}")
    at = int(np.argmax(np.where(np.isnan(found), np.inf, np.abs(found - right))))
    expect(
        np.allclose(found, right, rtol=1e-9, atol=1e-12),
        f"{where} should be {right.flat[at]:.6g} at element {at}, got {found.flat[at]:.6g}: "
        + _mistake(case, rank, step, found, own),
    )


def _mistake(case: HardModel, rank: int, step: int, found: Array, own: Sequence[Array]) -> str:
    """Which mistake makes such a gradient."""
    if step:
        return "after step 0 all were right: what belongs to one step has to be set back for the next"
    weighted = sum(n * gradient for n, gradient in zip(case.samples, own))
    guesses = {
        "that is this rank's own gradient: its bucket was not sent, or what came back was not put in its place": own[
            rank
        ],
        "that is the sum over the ranks: divide by the samples of all": sum(own),
        "that is the sum of n·gradient: divide it by the sum of n": weighted,
        "that is the sum of n·gradient over the number of ranks: divide by the sum of n": weighted / len(own),
        "that is the mean over the ranks, where each counts 1/W: a rank weighs as much as it has samples": sum(own)
        / len(own),
    }
    return next((words for words, value in guesses.items() if np.allclose(found, value, rtol=1e-9)), case.note)


# ------------------------------------------------------------------------------------------------- what it takes


CAP_BYTES = 8_500  # two layers
_CHECKS = (
    parameters.check_frozen_parameter,
    replicas.check_replicas_start_alike,
    buckets.check_all_ranks_have_the_same_bits,
)
_CALLS = 5  # four buckets, and the samples
_MORE_BYTES = 1.1  # of those that the gradients need: more than the samples are


def layers() -> nn.Module:
    """Eight layers of 4.2 kB."""
    return nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(32, 32), nn.Tanh())))


WORKLOAD = Workload(model=layers, features=(32,), steps=3)


class Target(NamedTuple):
    """A cluster, and what part of a step may be exposed there."""

    cluster: Cluster
    exposed_fraction: float


def places() -> dict[str, Target]:
    """Three clusters; the slowest rank computes for 10 ms in a step, and for 4.5 ms where ranks are unequal."""
    equal = [1, 1, 1]
    return {
        "fast link": Target(Cluster.of_speeds(equal, link=Link(2e-5, 5e7)), 0.04),
        "slow link": Target(Cluster.of_speeds(equal, link=Link(1e-4, 1.2e7)), 0.2),
        "unequal ranks": Target(Cluster.of_speeds([3, 2], link=Link(1e-4, 2e7)), 0.25),
    }


def check_get_ddp_overlapped(student: Student) -> str:
    """What is right first, then what it takes."""
    compared, told = check_right(student.get_ddp_overlapped), []
    for number, (name, place) in enumerate(places().items()):
        wrapper = partial(student.get_ddp_overlapped, bucket_cap_bytes=CAP_BYTES)
        checks = _CHECKS if number == 2 else ()  # the last: what is slow is told first
        mark = grade(wrapper, place.cluster, checks=checks, workload=WORKLOAD, timeout_s=_GRADE_S)
        expect(mark.passed, f"get_ddp_overlapped, on the {name}: {'; '.join(mark.failed)}")
        exposed, calls = mark.figures["exposed_fraction"], mark.figures["calls"].value
        expect(
            _CALLS - 1 <= calls <= _CALLS and exposed.value <= place.exposed_fraction,
            f"get_ddp_overlapped(bucket_cap_bytes={CAP_BYTES}), on the {name}, eight layers of 4224 bytes: at most "
            f"{place.exposed_fraction:.1%} of a step should be exposed, in {_CALLS} calls, got {exposed.value:.1%} in "
            f"{calls:.0f} calls: {_slow(calls, mark.ratio('sent_bytes'))}",
        )
        told.append(f"{exposed.value:.1%} on the {name}")
    return f"{compared} gradients; exposed: {', '.join(told)}"


def _slow(calls: float, bytes_ratio: float) -> str:
    """Which mistake makes a wrapper slow that is right."""
    if bytes_ratio > _MORE_BYTES:
        return (
            f"{bytes_ratio:.2g} times the bytes of the gradients were sent: a bucket has their dtype, and each of them "
            "once"
        )
    if calls < _CALLS - 1:
        return "a bucket over its cap has to wait for all the gradients in it, and backward is over by then"
    if calls > _CALLS:
        return "each call pays the latency of the link: gradients that fit into a bucket should travel together"
    return (
        "the wire was idle while backward ran. Launch a bucket in the hook that completes it, do not wait before "
        "finish(), and begin with the parameters that were registered last"
    )
