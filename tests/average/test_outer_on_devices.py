"""Outer optimizers, moments and buffers on the stand-ins for CuPy and NCCL: the values of the CPU, and nobody waits."""

import numpy as np
import pytest

import minigrad
from minigrad import Device, nn, optim
from minigrad.distributed import ParameterAverager, SoloCommunicator, run
from minigrad.distributed.average import EASGD, DiLoCo, EveryK, Mean, SlowMo, StreamingDiLoCo
from tests.distributed.worlds import run_nccl

SECOND = Device("cuda:1")


def trained(comm, outer, optimizer_state="keep", steps=8):
    """Values and buffers after some steps, in the last of which no rank has samples."""
    minigrad.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).to(comm.device)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    averager = ParameterAverager(model, comm, EveryK(2), outer, optimizer=optimizer, optimizer_state=optimizer_state)
    for step in range(steps):
        x = np.random.default_rng([comm.rank, step]).standard_normal((4 + comm.rank, 3)).astype(np.float32)
        optimizer.zero_grad()
        model(minigrad.Tensor(x).to(comm.device)).square().mean().backward()
        optimizer.step()
        averager.step(0 if step >= steps - 2 else len(x))
    return [tensor.detach().to("cpu").numpy() for tensor in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize(
    "outer, optimizer_state",
    [
        (Mean(), "average"),
        (SlowMo(), "reset"),
        (DiLoCo(), "keep"),
        (EASGD(0.25), "keep"),
        (StreamingDiLoCo(fragments=2, alpha=0.5), "average"),
        (StreamingDiLoCo(fragments=1, delay=1), "keep"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_values_are_those_of_a_cpu(outer, optimizer_state, strict_cupy):
    wanted = run(lambda comm: trained(comm, outer, optimizer_state), 2)
    found = run_nccl(lambda comm: trained(comm, outer, optimizer_state), 2, device=SECOND)
    for mine, theirs in zip(found, wanted):
        for value, other in zip(mine, theirs):
            np.testing.assert_allclose(value, other, rtol=0, atol=2e-5)


@pytest.mark.parametrize("optimizer_state", ["keep", "average", "reset"])
def test_nothing_waits_for_the_device(optimizer_state, cuda, strict_cupy):
    model = nn.Sequential(nn.Linear(3, 4, device=cuda), nn.BatchNorm1d(4, device=cuda))
    optimizer, x = optim.Adam(model.parameters()), minigrad.ones(4, 3, device=cuda)
    outer = StreamingDiLoCo(fragments=2, alpha=0.5)
    averager = ParameterAverager(
        model, SoloCommunicator(cuda), EveryK(2), outer, optimizer=optimizer, optimizer_state=optimizer_state
    )
    before = strict_cupy.syncs.count
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        averager.step(4)
    assert strict_cupy.syncs.count == before
