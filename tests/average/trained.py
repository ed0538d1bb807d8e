"""A model and its loops, by a DDP and by each way of averaging, for the tests of these."""

import numpy as np

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, ParameterAverager
from minigrad.distributed.average import Sync

STEPS = 6


def make_model(dtype="float64"):
    minigrad.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)


def batch(rank, step, dtype="float64"):
    """Of unequal sizes, and in each third step of rank 1 without a sample."""
    rng = np.random.default_rng([rank, step])
    n = 0 if rank == 1 and step % 3 == 2 else 3 + 2 * rank
    x = rng.standard_normal((n, 6)).astype(dtype)
    return minigrad.Tensor(x), minigrad.Tensor(x[:, :1] * x[:, 1:2])


def values_of(model):
    return np.concatenate([p.detach().numpy().reshape(-1) for p in model.parameters()])


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y) if len(x) else (model(x) * 0.0).sum()


def by_ddp(comm, make=optim.SGD, dtype="float64", **options):
    ddp = DDP(make_model(dtype), comm)
    optimizer = make(ddp.parameters(), lr=0.05, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(ddp, *batch(comm.rank, step, dtype)).backward()
        optimizer.step()
    return values_of(ddp.module)


def by_gradients(comm, make=optim.SGD, dtype="float64", policy=Sync(), **options):
    model = make_model(dtype)
    averager = ParameterAverager(model, comm, policy, average="gradients")
    optimizer = make(model.parameters(), lr=0.05, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(comm.rank, step, dtype)
        loss_of(model, x, y).backward()
        averager.step(len(x))
        optimizer.step()
    return values_of(model)


def by_parameters(comm, make=optim.SGD, policy=Sync(), averaging=(), **options):
    model = make_model()
    optimizer = make(model.parameters(), lr=0.05, **options)
    averager = ParameterAverager(model, comm, policy, optimizer=optimizer, **dict(averaging))
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(comm.rank, step)
        loss_of(model, x, y).backward()
        optimizer.step()
        averager.step(len(x))
    return values_of(model)


def single(value, dtype="float64"):
    model = nn.Linear(1, 1, bias=False).to(dtype)
    model.weight.data[...] = value
    return model
