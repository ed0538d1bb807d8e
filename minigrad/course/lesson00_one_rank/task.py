"""What you write: a training loop that does not know how many ranks there are."""

from __future__ import annotations

import numpy as np

from minigrad import nn
from minigrad.distributed import Communicator


def train(
    comm: Communicator, model: nn.Module, x: np.ndarray, y: np.ndarray, lr: float, steps: int
) -> list[float]:
    """Train a model on all samples in each step, by plain gradient descent, and return the losses.

    Every rank calls it, with the same samples and a model of its own. With any number of ranks, one among them, the
    model ends with the weights that one device would give it, to 1e-9, and all ranks end with the same bits. Each rank
    runs forward and backward of its own part of the samples and of no others; the parts differ by one sample at most.
    There is no branch for one rank.

    Args:
        comm: Which rank this is, of how many: `comm.rank`, `comm.world_size`.
        model: Of float64 parameters. Those of rank 0 are where training begins.
        x: (n, inputs), float64; at least as many samples as ranks, and not always a multiple of them.
        y: (n, outputs), float64.
        lr: The learning rate of `minigrad.optim.SGD`.
        steps: How many.

    Returns:
        For each step the mean squared error (`nn.functional.mse_loss`) over *all* samples, before the step: the same
        Python floats on all ranks.

    Example:
        >>> from minigrad.distributed import SoloCommunicator
        >>> model = nn.Linear(1, 1, bias=False, dtype=np.float64)
        >>> model.weight.data[...] = 0.0
        >>> x = np.array([[1.0], [2.0]])
        >>> [round(loss, 6) for loss in train(SoloCommunicator(), model, x, 3 * x, lr=0.1, steps=3)]
        [22.5, 5.625, 1.40625]
    """
    raise NotImplementedError
