"""Small models and data for the tests of data parallelism."""

from __future__ import annotations

import numpy as np

import minigrad
from minigrad import ops
from minigrad.distributed import collectives
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer, Parameter


class Mlp(Module):
    """Two affine maps with a square in between: smooth, so that float64 comparisons have no kinks."""

    def __init__(self, seed: int, sizes: tuple[int, int, int] = (3, 5, 2), dtype=np.float64) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        inputs, hidden, outputs = sizes
        self.w1 = Parameter((0.3 * rng.standard_normal((hidden, inputs))).astype(dtype))
        self.b1 = Parameter(rng.standard_normal(hidden).astype(dtype))
        self.w2 = Parameter((0.3 * rng.standard_normal((outputs, hidden))).astype(dtype))

    def forward(self, x):
        hidden = ops.linear(x, self.w1, self.b1)
        return ops.linear(hidden * hidden, self.w2)


class Odd(Mlp):
    """A replica that differs from its peers in one way."""

    def __init__(self, rank: int, how: str) -> None:
        super().__init__(0)
        if rank == 1 and how == "shape":
            self.w2 = Parameter(np.zeros((4, 5)))
        if rank == 1 and how == "dtype":
            self.w2 = Parameter(np.zeros((2, 5), np.float32))
        if rank == 1 and how == "frozen":
            self.w2.requires_grad_(False)
        if rank == 1 and how == "extra":
            self.w3 = Parameter(np.zeros(1))
        if rank == 1 and how == "buffer":
            self.running = Buffer(np.zeros(1))


class Counting:
    """Collectives of replicas in memory; notes which arrays each call got."""

    def __init__(self) -> None:
        self.reduced, self.broadcasts = [], []

    def all_reduce(self, arrays, op=collectives.ReduceOp.SUM):
        self.reduced.append(arrays)
        collectives.all_reduce(arrays, op)

    def broadcast(self, arrays, root):
        self.broadcasts.append(arrays)
        collectives.broadcast(arrays, root)


def data(samples: int, seed: int, inputs: int = 3, outputs: int = 2, dtype=np.float64):
    """Inputs (samples, inputs) and targets (samples, outputs)."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((samples, inputs)).astype(dtype), rng.standard_normal((samples, outputs)).astype(dtype)


def cuts_of(shards):
    """The slice of each rank for these shard sizes."""
    ends = np.cumsum([0, *shards])
    return [slice(int(a), int(b)) for a, b in zip(ends[:-1], ends[1:])]


def mean_loss(output, target):
    """The mean over samples of the summed squared error; 0 · sum for an empty shard, whose mean is undefined."""
    error = output - minigrad.Tensor(target)
    total = (error * error).sum()
    return total / len(target) if len(target) else total


def gradients(module) -> dict[str, np.ndarray]:
    """A copy of each gradient by name; None where there is none."""
    return {
        name: None if p.grad_array is None else p.grad_array.copy() for name, p in module.named_parameters()
    }


def values(module) -> dict[str, np.ndarray]:
    """A copy of each parameter by name."""
    return {name: p.data.copy() for name, p in module.named_parameters()}


def assert_gradients_close(actual, expected, tolerance=1e-12):
    """Every gradient within tolerance · max(1, max|g|)."""
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        bound = tolerance * max(1.0, float(np.abs(gradient).max()))
        assert float(np.abs(actual[name] - gradient).max()) <= bound, name
