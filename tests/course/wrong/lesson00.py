"""Wrong solutions of lesson 0."""

import numpy as np

from minigrad import nn, optim, tensor
from minigrad.distributed import DDP
from tests.course.wrong import Wrong


def loop(comm, model, x, y, lr, steps, *, part=None, wrap=DDP, zero=True, own_loss=False, plain=False):
    """Right, but for what is asked for."""
    inputs, targets = (tensor(each[part or slice(comm.rank, None, comm.world_size)]) for each in (x, y))
    ddp = wrap(model, comm) if wrap else model
    optimizer = optim.SGD(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(ddp(inputs), targets)
        if zero:
            optimizer.zero_grad()
        loss.backward()
        if plain:
            for parameter in model.parameters():
                comm.all_reduce(parameter.grad.data).wait()
                parameter.grad.data[...] /= comm.world_size
        optimizer.step()
        n = len(inputs)
        total = np.array([loss.item() * n, n])
        comm.all_reduce(total).wait()
        losses.append(loss.item() if own_loss else float(total[0] / total[1]))
    return losses


def drops_the_rest(comm, model, x, y, lr, steps):
    many = len(x) // comm.world_size
    return loop(comm, model, x, y, lr, steps, part=slice(comm.rank * many, (comm.rank + 1) * many))


def on_everything(comm, model, x, y, lr, steps):
    return loop(comm, model, x, y, lr, steps, part=slice(None))


def without_ddp(comm, model, x, y, lr, steps):
    return loop(comm, model, x, y, lr, steps, wrap=None)


def adds_up(comm, model, x, y, lr, steps):
    return loop(comm, model, x, y, lr, steps, zero=False)


def scaled_rate(comm, model, x, y, lr, steps):
    return loop(comm, model, x, y, lr * comm.world_size, steps)


def own_loss(comm, model, x, y, lr, steps):
    return loop(comm, model, x, y, lr, steps, own_loss=True)


def mean_of_means(comm, model, x, y, lr, steps):
    for parameter in model.parameters():
        comm.broadcast(parameter.data).wait()
    return loop(comm, model, x, y, lr, steps, wrap=None, plain=True)


WRONG = {
    "train": [
        Wrong(drops_the_rest, "a division drops the rest"),
        Wrong(on_everything, "each rank works on its own part"),
        Wrong(without_ddp, "do gradients travel"),
        Wrong(adds_up, "does it start from 0 in each step"),
        Wrong(scaled_rate, "is lr what was given"),
        Wrong(own_loss, "a rank's own loss is over its part"),
        Wrong(mean_of_means, "weighted by its samples"),
    ],
}
