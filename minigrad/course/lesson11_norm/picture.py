"""Lesson 11, the picture: how wrong the variance of a batch over four ranks is, by its mean."""

from __future__ import annotations

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.course.drawing import curves
from minigrad.course.lesson11_norm.solution import sync_norm_forward
from minigrad.distributed import Communicator, run

EPS = 1e-5
_LEAST = 1e-17  # where an error of nothing is drawn


def found_variances(mean: float) -> dict[str, float]:
    """The relative error of a variance of about 1 over the rows of 4 ranks, by the way in which it was found.

    Args:
        mean: Of the rows, which are float32.
    """
    rng = np.random.default_rng(0)
    parts = [(rng.standard_normal((256, 1)) + mean).astype(np.float32) for _ in range(4)]
    rows = np.concatenate(parts).astype(np.longdouble)
    true = float(((rows - rows.mean()) ** 2).mean())

    def body(comm: Communicator) -> dict[str, float]:
        x = parts[comm.rank]
        _, inverse, _ = sync_norm_forward(comm, x, EPS)
        return {
            "E[x²] - E[x]² in float32": _of_squares(comm, x),
            "E[x²] - E[x]² in float64": _of_squares(comm, x.astype(np.float64)),
            "count, mean and variance, combined": float(inverse[0] ** -2 - EPS),
        }

    found = run(body, 4)[0]
    return {name: abs(variance - true) / true for name, variance in found.items()}


def _of_squares(comm: Communicator, x: Array) -> float:
    sums = np.array([len(x), x.sum(), (x * x).sum()], x.dtype)
    comm.all_reduce(sums).wait()
    return float(sums[2] / sums[0] - (sums[1] / sums[0]) ** 2)


def picture() -> str:
    """A line for each way."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for mean in 10.0 ** np.arange(0.0, 6.5, 0.5):
        for name, error in found_variances(mean).items():
            lines.setdefault(name, []).append((mean, max(error, _LEAST)))
    title = "Error of the variance of 1024 rows on 4 ranks; it is about 1"
    return curves(title, lines, x="mean of the rows", y="relative error", log_x=True, log_y=True)
