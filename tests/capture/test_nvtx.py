"""Ranges for a profiler: they lie in each other as calls do, end by errors, and are told only where they are wanted."""

import pytest

import minigrad
from minigrad import nn, optim
from minigrad.autograd.profiler import emit_nvtx
from minigrad.distributed import DDP, SoloCommunicator
from minigrad.errors import ArgumentError, AutogradError
from tests.capture.models import Scaled, batch, train_step
from tests.strict_cupy import nvtx


@pytest.fixture(autouse=True)
def nothing_is_open():
    yield
    nvtx.forget()


def test_modules_nodes_buckets_and_steps(cuda):
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 2))).to(cuda)
    ddp = DDP(model, SoloCommunicator(cuda), bucket_cap_bytes=64)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = batch(cuda, 0)
    with emit_nvtx():
        ddp(x).mean().backward()
        optimizer.step()
    forward = [(0, "DistributedDataParallel"), (1, "Sequential"), (2, "Linear"), (2, "ReLU")]
    forward += [(2, "Sequential"), (3, "Linear")]
    told = nvtx.forget()
    assert told[: len(forward)] == forward
    names = [name for depth, name in told[len(forward) :]]
    assert [name for name in names if "bucket" in name] == [f"bucket {i}" for i in range(4)]
    assert [name for name in names if "backward" in name] == [
        "mean backward", "linear backward", "relu backward", "linear backward"
    ]
    assert names.index("bucket 0") > names.index("linear backward") and names[-1] == "SGD.step"
    assert all(depth == 0 for depth, _ in told[len(forward) :])


def test_nothing_is_told_outside(cuda):
    model = Scaled().to(cuda)
    step = train_step(model, optim.Adam(model.parameters(), lr=0.1))
    step(batch(cuda, 0))
    with emit_nvtx(enabled=False):
        step(batch(cuda, 0))
    with emit_nvtx():
        pass
    step(batch(cuda, 0))
    assert nvtx.forget() == []
    with pytest.raises(ArgumentError, match="enabled"), emit_nvtx(3):
        pass


def test_an_error_ends_ranges(cuda):
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    with emit_nvtx():
        with pytest.raises(KeyError):
            nn.Sequential(nn.ReLU(), Failing())(batch(cuda, 0))
        assert nvtx.forget() == [(0, "Sequential"), (1, "ReLU"), (1, "Failing")]
        x = batch(cuda, 0).requires_grad_()
        y = x * x
        loss = y.sum()
        with minigrad.no_grad():
            x.add_(1.0)
        with pytest.raises(AutogradError, match="that mul saved, got data changed in place"):
            loss.backward()
    assert nvtx.forget() == [(0, "sum backward")]


def test_a_graph_that_is_kept_is_named_once(cuda):
    x = batch(cuda, 0).requires_grad_()
    loss = (x * x).sum()
    with emit_nvtx():
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    assert [name for _, name in nvtx.forget()] == ["sum backward", "mul backward"] * 2
    loss.backward()
    assert nvtx.forget() == []


def test_a_captured_step_is_a_range(cuda):
    model = Scaled().to(cuda)
    step = minigrad.capture(train_step(model, optim.Adam(model.parameters(), lr=0.1)), batch(cuda, 0))
    with emit_nvtx():
        step(batch(cuda, 1))
    assert nvtx.forget() == [(0, "captured step")]


def test_who_charges_calls_hears_of_them_as_before(cuda):
    from contextlib import nullcontext

    from minigrad.nn.watch import watching_calls

    class Charging:
        def __init__(self):
            self.heard = []

        def call(self, samples):
            self.heard.append(samples)
            return nullcontext()

    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)).to(cuda)
    charging = Charging()
    with watching_calls(charging), emit_nvtx():
        model(batch(cuda, 0))
    assert charging.heard == [4.0]
    assert nvtx.forget() == [(0, "Sequential"), (1, "Linear"), (1, "Linear")]
