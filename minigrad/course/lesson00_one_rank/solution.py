"""Ours: the loop of one device, with a slice, a wrapper and a sum."""

from __future__ import annotations

import numpy as np

from minigrad import nn, optim, tensor
from minigrad.distributed import Communicator, DistributedDataParallel


def train(
    comm: Communicator, model: nn.Module, x: np.ndarray, y: np.ndarray, lr: float, steps: int
) -> list[float]:
    """Train a model on all samples in each step, by plain gradient descent, and return the losses."""
    ddp = DistributedDataParallel(model, comm)  # gives all ranks the parameters of rank 0
    optimizer = optim.SGD(model.parameters(), lr=lr)
    own = slice(comm.rank, None, comm.world_size)
    inputs, targets = tensor(x[own]), tensor(y[own])
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(ddp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()  # the gradients are combined when it returns
        optimizer.step()
        total = np.array([loss.item() * len(inputs), len(inputs)])
        comm.all_reduce(total).wait()
        losses.append(float(total[0] / total[1]))
    return losses
