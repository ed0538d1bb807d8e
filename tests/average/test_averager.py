"""ParameterAverager on ranks: where it is data-parallel training, and where and by how much it is something else."""

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, ParameterAverager, average_parameters, run, simulate
from minigrad.distributed.average import EveryK, Sync
from minigrad.distributed.simulate import Cluster
from tests.distributed.worlds import run_ranks

TIMEOUT_S = 20.0
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
    averager = ParameterAverager(model, comm, policy, **dict(averaging))
    optimizer = make(model.parameters(), lr=0.05, **options)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(comm.rank, step)
        loss_of(model, x, y).backward()
        optimizer.step()
        averager.step(len(x))
    return values_of(model)


def on(kind, world_size, body):
    if kind == "simulated":
        return simulate.run(body, Cluster.of_speeds([3, 2, 1, 1][:world_size])).results
    return run_ranks(kind, body, world_size, TIMEOUT_S)


@pytest.mark.parametrize(
    "kind, world_size", [("threads", 1), ("threads", 3), ("threads", 4), ("shm", 2), ("simulated", 3)]
)
def test_gradients_after_each_step_are_a_ddp_bit_for_bit(kind, world_size):
    """With an optimizer that has a past, and a rank without samples now and then."""

    def body(comm):
        return [
            (by_ddp(comm, make, dtype), by_gradients(comm, make, dtype, policy))
            for make, dtype, policy in ((optim.Adam, "float32", Sync()), (optim.SGD, "float64", EveryK(1)))
        ]

    for pairs in on(kind, world_size, body):
        for ddp, averaged in pairs:
            assert (ddp == averaged).all()


@pytest.mark.parametrize("kind, world_size", [("threads", 1), ("threads", 4), ("shm", 2), ("simulated", 3)])
def test_parameters_after_each_step_of_plain_sgd_are_a_ddp_to_rounding(kind, world_size):
    results = on(kind, world_size, lambda comm: (by_ddp(comm), by_parameters(comm)))
    for ddp, averaged in results:
        np.testing.assert_allclose(averaged, ddp, rtol=0, atol=1e-12)
        assert (averaged == results[0][1]).all()


def test_parameters_are_averaged_by_samples_and_not_by_ranks():
    """1 after 20 batches, 4 after 10: 2, on both ranks and by both calls."""

    def train(comm):
        model = nn.Linear(1, 1, bias=False)
        averager = ParameterAverager(model, comm)
        model.weight.data[...] = (1.0, 4.0)[comm.rank]
        report = averager.step((20, 10)[comm.rank])
        plain = nn.Linear(1, 1, bias=False)
        plain.weight.data[...] = (1.0, 4.0)[comm.rank]
        average_parameters(plain, comm, (20, 10)[comm.rank])
        return model.weight.item(), plain.weight.item(), report.samples, report.nbytes

    assert run(train, 2, timeout_s=TIMEOUT_S) == [(2.0, 2.0, 30.0, 64)] * 2
