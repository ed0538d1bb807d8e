"""A small model trained on shards, beside the same model on one device: what a wrapper must come to, and what it did.

Lessons that ask for a wrapper of a model check its gradients here, and guess what it did where they are wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.course.lesson import WrongError, expect
from minigrad.distributed import Communicator, simulate
from minigrad.errors import CollectiveMismatchError, CollectiveTimeoutError, RankFailedError
from minigrad.nn import Buffer, Linear, Module, Parameter
from minigrad.ops import tanh
from minigrad.tensor import Tensor
from minigrad.testing import WrapperAdapter
from minigrad.testing.conformance import Check

Gradients = dict[str, Array]
Sizes = Sequence[Sequence[int]]  # of one step: for each rank its batches, each of so many samples
RATE = 0.5
CLOSE = 1e-10
ALONE = "this is this rank's own gradient: nothing was combined"
SHARE = (
    "this is this rank's own gradient times n_r / Σ n_r: nothing was added up. Is the array that was all-reduced that "
    "of the gradient? `p.grad.data = array` copies"
)
TIMEOUT_S = 2.0


class JointNet(Module):
    """Two layers, a frozen scale and a buffer, in float64; other values for each seed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first, self.last = Linear(3, 4), Linear(4, 2)
        self.scale, self.seen = Parameter(np.zeros(2), False), Buffer(np.zeros(3))
        self.to("float64")
        rng = np.random.default_rng(seed)
        for tensor in [*self.parameters(), *self.buffers()]:
            tensor.data[...] = rng.normal(size=tensor.shape)

    def forward(self, inputs: Tensor) -> Tensor:
        """Shapes: (n, 3) -> (n, 2)"""
        outputs: Tensor = self.last(tanh(self.first(inputs))) * self.scale
        return outputs


@dataclass(frozen=True)
class Batch:
    """Samples: (n, 3) inputs and (n, 2) targets."""

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def loss(self, model: Callable[[Tensor], Tensor]) -> Tensor:
        """The mean over the samples of their squared error; 0 where there are none."""
        return ((model(Tensor(self.inputs)) - Tensor(self.targets)) ** 2).sum() / max(1, len(self))


def batches_of(sizes: Sequence[int], seed: Sequence[int]) -> list[Batch]:
    """Batches of so many samples."""
    rng = np.random.default_rng(seed)
    return [Batch(rng.normal(size=(n, 3)), rng.normal(size=(n, 2))) for n in sizes]


def joined(batches: Sequence[Batch]) -> Batch:
    """All samples of some batches."""
    return Batch(np.concatenate([b.inputs for b in batches]), np.concatenate([b.targets for b in batches]))


def gradients_of(model: Module) -> dict[str, Array | None]:
    """A copy of each gradient, by the parameter's name."""
    return {name: None if p.grad is None else p.grad.data.copy() for name, p in model.named_parameters()}


def gradient_of(model: JointNet, batch: Batch) -> Gradients:
    """The gradient of the mean over a batch on one device; zeros where it is empty."""
    model.zero_grad()
    if len(batch):
        batch.loss(model).backward()
    found = {
        name: np.zeros_like(p.data) if p.grad is None else p.grad.data.copy()
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    model.zero_grad()
    return found


def descend(model: Module) -> None:
    """A step of plain gradient descent."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data -= RATE * parameter.grad.data


@dataclass(frozen=True)
class JointRun:
    """What became of the replicas.

    Attributes:
        what: The run in words.
        steps: Of each step the sizes; see Sizes.
        started: The values of each rank's parameters and buffers after it was wrapped.
        moved: The names of parameters and buffers that are other arrays than before, of any rank.
        gradients: Of each step and rank.
        trace: Of the simulation.
    """

    what: str
    steps: Sequence[Sizes]
    started: list[Mapping[str, Array]]
    moved: set[str]
    gradients: list[list[dict[str, Array | None]]]
    trace: simulate.Trace

    def calls(self) -> list[list[int]]:
        """Of each rank the bytes of its all_reduces, in order, but for those before the first step."""
        found: list[list[int]] = [[] for _ in self.started]
        for span in self.trace.timeline.spans:
            if span.kind == "wire" and span.step >= 0 and span.fields["collective"] == "all_reduce":
                found[span.rank].append(int(span.fields["sent_bytes"]))
        return found


def train(
    wrap: Callable[[Module, Communicator], Any],
    steps: Sequence[Sizes],
    backward: Callable[[Any, Sequence[Batch]], Any],
    name: str | None = None,
) -> JointRun:
    """Train a replica on each rank of a virtual cluster, each with initial values of its own.

    Args:
        wrap: Makes the wrapper.
        steps: Of each step the sizes; see Sizes.
        backward: Gets the wrapper and this rank's batches, and leaves combined gradients.
        name: What is said of the wrapper; by default its own name.
    """
    sizes = "; ".join(", ".join(_told(batches) for batches in step) for step in steps)
    world_size = len(steps[0])
    name = name or getattr(wrap, "__name__", "get_ddp")
    what = f"{name} on {world_size} rank{'s' if world_size > 1 else ''} with {sizes} samples"

    def body(comm: Communicator) -> Any:
        model = JointNet(comm.rank)
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        arrays = {name: tensor.data for name, tensor in state.items()}
        ddp = wrap(model, comm)
        expect(callable(ddp), f"{what}: expected an object that is called as the module is, got {ddp!r:.100}")
        now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        moved = {name for name, new in now.items() if new is not state[name] or new.data is not arrays[name]}
        started, found = {name: tensor.data.copy() for name, tensor in now.items()}, []
        for number, step in enumerate(steps):
            model.zero_grad()
            backward(ddp, batches_of(step[comm.rank], (number, comm.rank)))
            found.append(gradients_of(model))
            descend(model)
        return started, moved, found

    cluster = simulate.Cluster.of_speeds([1.0] * world_size)
    try:
        trace = simulate.run(body, cluster, timeout_s=TIMEOUT_S)
    except (CollectiveMismatchError, CollectiveTimeoutError, RankFailedError) as error:
        raise WrongError(
            f"{what}: the ranks do not make the same collectives in the same order. All take part in each, also those "
            f"that have no samples, or no gradients: {error}"
        ) from error
    started, moved, found = zip(*trace.results)
    return JointRun(what, steps, list(started), set().union(*moved), [list(step) for step in zip(*found)], trace)


def _told(batches: Sequence[int]) -> str:
    return "+".join(map(str, batches)) or "0"


def expect_alike(one: JointRun) -> None:
    """Require that all ranks began with the values of rank 0, in the arrays that they had.

    Raises:
        WrongError: it names rank and tensor.
    """
    first = {**dict(JointNet(0).named_parameters()), **dict(JointNet(0).named_buffers())}
    for rank, started in enumerate(one.started):
        for name, value in started.items():
            kind = "buffer" if name == "seen" else "parameter"
            expect(
                np.array_equal(value, first[name].data),
                f"{one.what}: expected the {kind} {name!r} of rank {rank} to begin with rank 0's values, got others: "
                "replicas that start apart stay apart, and the mean of their gradients belongs to neither. Broadcast "
                "parameters, frozen ones too, and buffers",
            )
    expect(
        not one.moved,
        f"{one.what}: expected {', '.join(sorted(one.moved))} to be overwritten in place, got new tensors or arrays: "
        "an optimizer that was made before holds the old ones",
    )


def expect_conforms(wrap: Callable[..., Any], checks: Sequence[Check]) -> None:
    """Require that a wrapper passes conformance checks, one after the other.

    Raises:
        WrongError: it names the check, what came, and the fault that the check is about.
    """
    adapter = WrapperAdapter(wrap, timeout_s=2 * TIMEOUT_S)
    for check in checks:
        name = check.__name__.removeprefix("check_")
        cause = " ".join((inspect.getdoc(check) or "").split("\n\n")[0].split())
        try:
            check(adapter)
        except (AssertionError, NotImplementedError) as error:
            raise WrongError(f"conformance check {name!r}: {error}. What it looks for: {cause}") from error


Guess = Callable[[JointNet, Sequence[Sequence[Batch]], Sequence[Sizes]], Mapping[str, Gradients]]


def expect_gradients(one: JointRun, guess: Guess | None = None) -> None:
    """Require the gradients of the joint batch on all ranks, in all steps.

    Args:
        guess: More of what a wrong one comes to, by what is then said: from the model, the batches of each rank, and
            the sizes of all steps so far.

    Raises:
        WrongError: it names step, rank and parameter, and what was done instead, where that is known.
    """
    model = JointNet(0)
    for number, sizes in enumerate(one.steps):
        parts = [batches_of(size, (number, rank)) for rank, size in enumerate(sizes)]
        wanted = gradient_of(model, joined([batch for part in parts for batch in part]))
        told = dict(_guesses(model, parts))
        if guess is not None:
            told = {**guess(model, parts, one.steps[: number + 1]), **told}
        for rank, found in enumerate(one.gradients[number]):
            local = gradient_of(model, joined(parts[rank])) if parts[rank] else {}
            for why in (ALONE, SHARE):
                told.pop(why, None)
            if len(parts) > 1:
                share = sum(map(len, parts[rank])) / max(1, sum(len(batch) for part in parts for batch in part))
                told[ALONE], told[SHARE] = local, {name: share * value for name, value in local.items()}
            _compare(f"{one.what}: step {number}", rank, found, wanted, told)
        for name, parameter in model.named_parameters():
            parameter.data -= RATE * wanted[name] if name in wanted else 0.0


def _guesses(model: JointNet, parts: Sequence[Sequence[Batch]]) -> Mapping[str, Gradients]:
    """What wrappers come to that combine in another way."""
    shards = [joined(part) if part else batches_of([0], [0])[0] for part in parts]
    means = [gradient_of(model, shard) for shard in shards]
    total = sum(map(len, shards))
    by_rank = {name: sum(mean[name] for mean in means) for name in means[0]}
    by_sample = {name: sum(len(s) * mean[name] for s, mean in zip(shards, means)) for name in means[0]}
    some = sum(1 for shard in shards if len(shard))
    alike = "this is the mean of the ranks' means, in which each rank counts alike, whatever samples it has"
    return {
        alike: {name: value / len(parts) for name, value in by_rank.items()},
        f"{alike}, of those that have some": {name: value / some for name, value in by_rank.items()},
        "this is the sum of the ranks' gradients, not their mean": by_rank,
        "this is the sum over samples: divide by how many there are": by_sample,
        "this is W times too small: it was weighted, and then averaged as well": {
            name: value / total / len(parts) for name, value in by_sample.items()
        },
    }


def _compare(
    where: str,
    rank: int,
    found: Mapping[str, Array | None],
    wanted: Gradients,
    guesses: Mapping[str, Gradients],
) -> None:
    for name, value in found.items():
        if name not in wanted:
            expect(
                value is None or not value.any(),
                f"{where}: expected no gradient of {name!r}, which is frozen, on rank {rank}, got {value}",
            )
            continue
        expect(value is not None, f"{where}: expected a gradient of {name!r} on rank {rank}, got None")
        assert value is not None
        if np.allclose(value, wanted[name], rtol=0.0, atol=CLOSE):
            continue
        why = next((why for why, other in guesses.items() if _is(value, other.get(name))), "")
        why = why or _factor(value, wanted[name])
        raise WrongError(
            f"{where}: expected the gradient of the mean over all samples of all ranks, {_few(wanted[name])} for "
            f"{name!r} on rank {rank}, got {_few(value)}{': ' if why else ''}{why}"
        )


def _factor(value: Array, wanted: Array) -> str:
    """What is said of a gradient that has only the wrong length."""
    if np.isnan(value).any():
        return "is there a division by a number of samples that may be 0?"
    factor = float((value * wanted).sum() / (wanted * wanted).sum())
    if not factor or not _is(value, factor * wanted):
        return ""
    return (
        f"this is {factor:.4g} times as much: the weights of the ranks, n_r / Σ n_r, do not add up to 1. Is n that of "
        "this step, also on a rank that did not call ddp in it?"
    )


def _is(value: Array, other: Array | None) -> bool:
    return other is not None and np.allclose(value, other, rtol=0.0, atol=CLOSE)


def _few(value: Array) -> str:
    numbers = ", ".join(f"{x:.4g}" for x in value.flat[:3])
    return f"[{numbers}{', ...' if value.size > 3 else ''}]"
