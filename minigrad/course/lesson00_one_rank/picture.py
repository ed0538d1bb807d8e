"""The picture of lesson 0: the loss on one rank, on three, and on three that do not talk."""

from __future__ import annotations

import numpy as np

from minigrad import nn, tensor
from minigrad.course.drawing import curves
from minigrad.course.lesson00_one_rank.checks import LR, WatchedModel, step
from minigrad.course.lesson00_one_rank.solution import train
from minigrad.distributed import SoloCommunicator, run

STEPS, EVERY = 80, 4


def samples() -> tuple[np.ndarray, np.ndarray]:
    """60 of them; those of a rank are not like those of another, since every third is of one kind."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 3)) + np.tile([[-1.0], [0.0], [1.5]], (20, 1))
    return x, np.stack([np.sin(x.sum(axis=1)), x[:, 0]], axis=1)


def alone(rank: int) -> list[tuple[float, float]]:
    """The loss over all samples while one rank trains on its part, and nothing travels."""
    x, y = samples()
    model, found = WatchedModel(0), []
    for number in range(STEPS):
        found.append((float(number), nn.functional.mse_loss(model(tensor(x)), tensor(y)).item()))
        step(model, x[rank::3], y[rank::3])
    return found


def picture() -> str:
    """Three lines; those of one rank and of three lie on each other."""
    x, y = samples()
    one = train(SoloCommunicator(), WatchedModel(0), x, y, LR, STEPS)
    three = run(lambda comm: train(comm, WatchedModel(comm.rank), x, y, LR, STEPS), 3)[0]
    lines = {
        "one rank": [(float(number), loss) for number, loss in enumerate(one)],
        "three ranks": [(float(number), three[number]) for number in range(0, STEPS, EVERY)],
        "rank 2 of three that exchange nothing": alone(2),
    }
    return curves("Loss over all samples", lines, x="step", y="mean squared error", dots=["three ranks"])
