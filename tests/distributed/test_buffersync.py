"""Buffers of the replicas: broadcast, averaged or left alone, at the cadence asked for."""

import numpy as np
import pytest

import minigrad
from minigrad.distributed import DDP, run
from minigrad.nn.parameter import Buffer
from tests.distributed.models import Mlp, data, mean_loss

TIMEOUT_S = 10.0


class Counting(Mlp):
    """A model that keeps a running mean of its inputs and counts its batches."""

    def __init__(self):
        super().__init__(0)
        self.mean = Buffer(np.zeros(3))
        self.batches = Buffer(np.zeros((), np.int64))

    def forward(self, x):
        if self.training:
            self.mean.copy_(minigrad.Tensor(self.mean.data + x.data.mean(axis=0)))
            self.batches.copy_(minigrad.Tensor(self.batches.data + 1))
        return super().forward(x)


def _after(passes, **options):
    def body(comm):
        ddp = DDP(Counting(), comm, **options)
        history = []
        for step in range(passes):
            inputs, targets = data(4, 10 * comm.rank + step)
            mean_loss(ddp(minigrad.Tensor(inputs)), targets).backward()
            history.append((ddp.module.mean.data.copy(), int(ddp.module.batches.data)))
        return history

    return run(body, 2, timeout_s=TIMEOUT_S)


def _own(rank, passes):
    return sum(data(4, 10 * rank + step)[0].mean(axis=0) for step in range(passes))


@pytest.mark.parametrize("policy", ["broadcast", True])
def test_broadcast_lets_rank_0_win(policy):
    for history in _after(3, broadcast_buffers=policy):
        np.testing.assert_allclose(history[2][0], _own(0, 3), atol=1e-12)
        assert history[2][1] == 3


def test_mean_averages_floats_and_keeps_counters():
    for history in _after(3, broadcast_buffers="mean"):
        np.testing.assert_allclose(history[2][0], (_own(0, 3) + _own(1, 3)) / 2, atol=1e-12)
        assert history[2][1] == 3


@pytest.mark.parametrize("policy", ["none", False])
def test_none_leaves_each_rank_its_own(policy):
    for rank, history in enumerate(_after(3, broadcast_buffers=policy)):
        np.testing.assert_allclose(history[2][0], _own(rank, 3), atol=1e-12)


def test_the_cadence_counts_passes():
    first, second = _after(4, broadcast_buffers="broadcast", buffer_cadence=2)
    differ = [not np.array_equal(a[0], b[0]) for a, b in zip(first, second)]
    assert differ == [True, False, True, False]
