"""The picture of lesson 1: how far a mean of means is off, for several divisions of one batch."""

from __future__ import annotations

import numpy as np

from minigrad import nn, tensor
from minigrad.course.drawing import columns
from minigrad.course.lesson01_means.solution import combine_gradients
from minigrad.distributed import Communicator, run

DIVISIONS = [(16, 16, 16, 16), (24, 20, 12, 8), (48, 12, 4), (60, 2, 2)]


def gradient_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """That of the mean squared error of a line through 0 with the slopes 1, 1."""
    model = nn.Linear(2, 1, bias=False, dtype=np.float64)
    model.weight.data[...] = 1.0
    nn.functional.mse_loss(model(tensor(x)), tensor(y)).backward()
    assert model.weight.grad is not None
    return np.array(model.weight.grad.data.reshape(-1))


def picture() -> str:
    """For each division: the plain mean over the ranks, and the weighted one."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 2)) + np.linspace(0, 2, 64)[:, np.newaxis]
    y = x @ np.array([[2.0], [-1.0]]) + rng.standard_normal((64, 1))
    whole = gradient_of(x, y)
    return columns(
        "One batch of 64 samples on several ranks: how far the combined gradient is off",
        {" / ".join(map(str, division)): _off(division, x, y, whole) for division in DIVISIONS},
        y="|combined - gradient of the whole batch| / |gradient of the whole batch|, in %",
    )


def _off(division: tuple[int, ...], x: np.ndarray, y: np.ndarray, whole: np.ndarray) -> dict[str, float]:
    """Percents, rounded to a tenth."""
    ends = np.cumsum(division)

    def rank(comm: Communicator) -> tuple[np.ndarray, np.ndarray]:
        samples = division[comm.rank]
        own = slice(ends[comm.rank] - samples, ends[comm.rank])
        plain = gradient_of(x[own], y[own])
        weighted = plain.copy()
        comm.all_reduce(plain).wait()
        combine_gradients(comm, weighted, samples)
        return plain / comm.world_size, weighted

    plain, weighted = run(rank, len(division))[0]
    far = {"mean of the ranks' means": plain, "weighted by samples": weighted}
    norm = np.linalg.norm(whole)
    return {name: round(100 * float(np.linalg.norm(found - whole) / norm), 1) for name, found in far.items()}
