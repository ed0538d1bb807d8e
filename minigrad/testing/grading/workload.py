"""What a wrapper is graded on: a small model, samples of each rank, a few steps; and the gradients that are right."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minigrad.backend.random import manual_seed
from minigrad.arguments import as_integer, as_real, as_sequence, keep_as
from minigrad.backend.dtypes import Array
from minigrad.distributed.simulate.cluster import Cluster
from minigrad.errors import ArgumentError
from minigrad.nn.activation import ReLU
from minigrad.nn.container import Sequential
from minigrad.nn.init import kaiming_normal_
from minigrad.nn.linear import Linear
from minigrad.nn.module import Module
from minigrad.tensor import Tensor

Gradients = dict[str, "Array | None"]
WIDTH, LAYERS = 96, 8
FEW = 16  # elements: arrays of fewer hold counts, and what ranks compare; no errors are planted in them


def default_model() -> Module:
    """Eight layers of 96, with ReLU between them: 298 kB of gradients, none of which is small."""
    layers: list[Module] = []
    for _ in range(LAYERS):
        linear = Linear(WIDTH, WIDTH)
        kaiming_normal_(linear.weight, nonlinearity="relu")
        layers += [linear, ReLU()]
    return Sequential(*layers[:-1])


@dataclass(frozen=True)
class Workload:
    """Training steps to be graded.

    Each rank's loss is the mean over its samples of Σ output². The samples are drawn anew in each grading:
    no figure depends on them, and a wrapper can't know those of other ranks.

    Attributes:
        model: Makes it, from the seed that is set before. It takes each sample by itself: no BatchNorm, no Dropout.
        features: Shape of a sample.
        samples: Of each rank in a step, > 0; by default 8, and more by rank: 8, 9, 10, 11, 8, 9, ...
        steps: That are measured, >= 3; one more comes before them.
        wire_fraction: The part of the gradients' bytes that has to travel: 0.5 where a float32 gradient is declared
            to travel as float16.
        tolerance: Of a gradient, relative to its parameter's largest.

    Example:
        >>> Workload(steps=3).samples_of(2)
        (8, 9)
    """

    model: Callable[[], Module] = default_model
    features: tuple[int, ...] = (WIDTH,)
    samples: tuple[int, ...] = ()
    steps: int = 4
    wire_fraction: float = 1.0
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "steps", least=3)
        keep_as(self, as_real, "wire_fraction", "tolerance", above=0.0, most=1.0)
        if not callable(self.model) or isinstance(self.model, Module):
            raise ArgumentError(f"Workload: expected model as a function that makes one, got {self.model!r:.100}")
        for name, least in (("features", 1), ("samples", 1)):
            sizes = as_sequence("Workload", name, getattr(self, name))
            object.__setattr__(self, name, tuple(as_integer("Workload", name, size, least) for size in sizes))

    def samples_of(self, world_size: int) -> tuple[int, ...]:
        """Samples of each of so many ranks, the first ones of `samples`.

        Raises:
            ArgumentError: there are more ranks, or none.
        """
        world_size = as_integer("Workload.samples_of", "world_size", world_size, 1)
        if not self.samples:
            return tuple(8 + rank % 4 for rank in range(world_size))
        if len(self.samples) < world_size:
            raise ArgumentError(f"Workload: expected samples of {world_size} ranks, got {len(self.samples)}")
        return self.samples[:world_size]

    def build(self) -> Module:
        """The model, the same in each call."""
        manual_seed(0)
        model: Any = self.model()
        if not isinstance(model, Module):
            raise ArgumentError(f"Workload: expected model to make a Module, got a function that makes {model!r:.100}")
        return model


@dataclass(frozen=True)
class Leaf:
    """A parameter as backward completes it, with the bytes of its gradient."""

    name: str
    nbytes: int


class Truth:
    """What is right for a workload on so many ranks, computed on one.

    Attributes:
        leaves: In the order in which backward completes them.
        gradients: For each step, those of the mean over all ranks' samples.
    """

    def __init__(self, workload: Workload, world_size: int) -> None:
        self.workload, self.counts = workload, workload.samples_of(world_size)
        self._secret = secrets.randbits(63)
        self.planted_from = 2 + secrets.randbelow(workload.steps - 1)  # from this step on errors come back
        self.planted_seed = secrets.randbits(63)
        model, self.leaves = workload.build(), list[Leaf]()
        if not any(p.requires_grad for p in model.parameters()):
            raise ArgumentError("Workload: expected a model with something to train, got none")
        self._dtype = next(model.parameters()).dtype
        names = {id(p): name for name, p in model.named_parameters()}
        self.gradients = [self._alone(model, self._joined(step), names) for step in range(workload.steps + 1)]
        self._check_apart(model, names)

    def batch(self, step: int, rank: int) -> Array:
        """Samples of a rank in a step, (n, *features)."""
        rng = np.random.default_rng([self._secret, step, rank])
        return rng.standard_normal((self.counts[rank], *self.workload.features)).astype(self._dtype)

    def _joined(self, step: int) -> Array:
        return np.concatenate([self.batch(step, rank) for rank in range(len(self.counts))])

    def _check_apart(self, model: Module, names: dict[int, str]) -> None:
        """The ranks' gradients, by their samples, have to come to that of the joined batch."""
        whole, leaves = sum(self.counts), self.leaves
        mean: Gradients = dict.fromkeys(names.values())
        for rank, count in enumerate(self.counts):
            for name, value in self._alone(model, self.batch(0, rank), names).items():
                if value is not None:
                    before = mean[name]
                    part = value * value.dtype.type(count / whole)
                    mean[name] = part if before is None else before + part
        self.leaves = leaves
        if wrong := wrong_gradient(mean, self.gradients[0], self.workload.tolerance):
            raise ArgumentError(
                "Workload: expected a model that takes each sample by itself, so that gradients of ranks come to that "
                f"of the joined batch, got another, as with BatchNorm or Dropout: in their mean, {wrong}"
            )

    def _alone(self, model: Module, joined: Array, names: dict[int, str]) -> Gradients:
        self.leaves = []
        for p in model.parameters():
            p.grad = None

        def on_leaf(leaf: Any) -> None:
            self.leaves.append(Leaf(names[id(leaf)], int(leaf.data.nbytes)))

        loss_of(model(Tensor(joined))).backward(on_leaf=on_leaf)
        return gradients_of(model)

    @property
    def gradient_bytes(self) -> int:
        """Of all that is trained."""
        return sum(leaf.nbytes for leaf in self.leaves)

    def error_ratio(self) -> float:
        """By how much at least a planted error makes larger what comes back."""
        return max(1.0 / 32.0, 40.0 * self.workload.tolerance)


def loss_of(output: Tensor) -> Tensor:
    """The mean over samples of Σ output²."""
    return (output * output).sum() * (1.0 / len(output))


def gradients_of(model: Module) -> Gradients:
    """Copies of a model's gradients, by name."""
    return {name: None if p.grad is None else p.grad.data.copy() for name, p in model.named_parameters()}


def digest_of(gradients: Gradients) -> str:
    """The same for the same bits."""
    digest = hashlib.blake2b(digest_size=8)
    for name, value in gradients.items():
        digest.update(name.encode() + (b"-" if value is None else b"+"))
        if value is not None:
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def wrong_gradient(found: Gradients, right: Gradients, tolerance: float) -> str:
    """Which gradient differs from the right one, in words; empty where none does."""
    for name, expected in right.items():
        actual = found.get(name)
        if expected is None:
            if actual is not None and actual.any():
                return f"the gradient of {name!r}: expected none, got one"
            continue
        if actual is None or actual.shape != expected.shape:
            return f"the gradient of {name!r}: expected one of shape {expected.shape}, got {_shape(actual)}"
        bound = tolerance * max(1e-12, float(np.abs(expected).max(initial=0.0)))
        if not np.all(np.abs(actual - expected) <= bound):
            return f"the gradient of {name!r} is not that of one device on the joined batch"
    return ""


def _shape(found: Array | None) -> str:
    return "none" if found is None else f"shape {found.shape}"


def untouched(found: Gradients, right: Gradients, tolerance: float) -> str:
    """The first gradient that a planted error did not reach; empty where it came to all.

    Of elements that are no small part of their parameter's largest, most have to differ by more than twenty times the
    tolerance.
    """
    for name, expected in right.items():
        actual = found.get(name)
        if expected is None or actual is None or expected.size < FEW:
            continue
        sizes = np.abs(expected)
        large = sizes > 0.1 * sizes.max(initial=0.0)
        if large.any() and np.mean((np.abs(actual - expected) > 20.0 * tolerance * sizes)[large]) < 0.6:
            return name
    return ""


def check_workload(workload: Workload | None) -> Workload:
    """The workload, or that by default; ArgumentError where it is none."""
    if workload is None:
        return Workload()
    if not isinstance(workload, Workload):
        raise ArgumentError(f"grade: expected a Workload, got {workload!r:.100}")
    return workload


def part_of(cluster: Cluster, most: int) -> Cluster:
    """The first ranks of a cluster."""
    return cluster if cluster.world_size <= most else replace(cluster, ranks=cluster.ranks[:most])
