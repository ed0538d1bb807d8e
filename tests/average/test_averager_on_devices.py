"""ParameterAverager over the stand-in for NCCL, on cuda:1: what is sent, and that no host waits inside a step."""

import pytest

import minigrad
from minigrad import Device, nn, optim
from minigrad.distributed import DDP, ParameterAverager
from minigrad.distributed.average import DiLoCo, EveryK, Mean, StreamingDiLoCo, Sync
from tests.distributed.test_no_waiting import TIMEOUT_S, Counted, counts_of
from tests.distributed.worlds import run_nccl

SECOND = Device("cuda:1")


class Rank:
    """What one rank trains with, on its GPU."""

    def __init__(self, comm, policy=Sync(), outer=Mean(), **options):
        minigrad.manual_seed(3)
        self.x = minigrad.ones(2, 3, device=comm.device) * (comm.rank + 1.0)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)).to(comm.device)
        self.averager = ParameterAverager(self.model, comm, policy, outer, **options)
        self.optimizer = optim.Adam(self.model.parameters(), lr=0.25)

    def step(self):
        self.model(self.x).square().mean().backward()
        if self.averager.options.average == "gradients":
            self.averager.step(2)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.averager.options.average == "parameters":
            self.averager.step(2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"outer": DiLoCo()},
        {"policy": EveryK(4), "outer": StreamingDiLoCo(fragments=2, delay=1, alpha=0.5)},
        {"average": "gradients"},
        {"policy": EveryK(2), "average": "gradients"},
    ],
    ids=str,
)
def test_a_step_waits_for_nobody_and_sends_nothing(strict_cupy, monkeypatch, options):
    counted = Counted(monkeypatch, strict_cupy)

    def work(rank):
        for _ in range(4):
            rank.step()

    assert counts_of(2, counted, work, lambda comm: Rank(comm, **options)) == ({}, {})


def test_gradients_after_each_step_are_a_ddp_bit_for_bit(strict_cupy):
    def body(comm):
        minigrad.manual_seed(3)
        x = minigrad.ones(2 + comm.rank, 3, device=comm.device) * (comm.rank + 1.0)
        found = []
        for wrapped in (True, False):
            minigrad.manual_seed(3)
            model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)).to(comm.device)
            ddp = DDP(model, comm) if wrapped else model
            averager = None if wrapped else ParameterAverager(model, comm, average="gradients")
            optimizer = optim.Adam(model.parameters(), lr=0.25)
            for _ in range(3):
                ddp(x).square().mean().backward()
                if averager is not None:
                    averager.step(len(x))
                optimizer.step()
                optimizer.zero_grad()
            found.append([p.tolist() for p in model.parameters()])
        return found

    for ddp, averaged in run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S):
        assert ddp == averaged


def test_a_divergence_of_the_past_is_not_there_any_more(strict_cupy):
    """Reading it waits for the device; it is not read for who does not ask."""

    def body(comm):
        rank = Rank(comm)
        reports = [rank.averager.step(2) for _ in range(2)]
        with pytest.raises(minigrad.errors.ArgumentError, match="expected to be read before the next combination"):
            reports[0].divergence
        return reports[1].divergence.relative, reports[1].samples

    assert run_nccl(body, 2, device=SECOND, timeout_s=TIMEOUT_S) == [((0.0, 0.0), 4.0)] * 2
