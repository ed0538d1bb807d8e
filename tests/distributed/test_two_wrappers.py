"""Two wrappers on one communicator: neither the timing of ranks nor equal plans may mix them up."""

import threading

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, run
from minigrad.errors import CollectiveMismatchError, RankFailedError

TIMEOUT_S = 10.0


class At:
    """A listener that calls functions at the events of a backward."""

    def __init__(self, begin=None, leaf=None):
        self._begin, self._leaf = begin, leaf

    def begin(self, leaves):
        if self._begin is not None:
            self._begin()

    def leaf(self, leaf):
        if self._leaf is not None:
            self._leaf()

    def end(self, error):
        pass


def test_one_loss_over_two_wrappers_of_equal_plans():
    """Rank 1 begins when the second model of rank 0 is over and the first is not: each sees other counts in time."""
    halfway, begun = threading.Event(), threading.Event()

    def body(comm):
        first, second = (DDP(nn.Linear(4, 4, bias=False, dtype="float64"), comm) for _ in range(2))
        weight = first.module.weight
        if comm.rank == 0:
            weight.listeners = (At(leaf=lambda: (halfway.set(), begun.wait(TIMEOUT_S))), *weight.listeners)
        else:
            weight.listeners += (At(begin=begun.set),)
        loss = second(first(minigrad.Tensor(np.eye(4)[: 2 + comm.rank]))).square().mean()
        assert comm.rank == 0 or halfway.wait(TIMEOUT_S)
        loss.backward()
        return [model.module.weight.grad.tolist() for model in (first, second)]

    def start(comm):
        minigrad.manual_seed(0)
        return body(comm)

    first, second = run(start, 2, timeout_s=TIMEOUT_S)
    assert first == second
    minigrad.manual_seed(0)
    alone = [nn.Linear(4, 4, bias=False, dtype="float64") for _ in range(2)]
    x = np.concatenate([np.eye(4)[:2], np.eye(4)[:3]])
    alone[1](alone[0](minigrad.Tensor(x))).square().mean().backward()
    for actual, model in zip(first, alone):
        np.testing.assert_allclose(actual, model.weight.grad.tolist(), rtol=0, atol=1e-12)


def test_another_order_of_wrappers_with_equal_plans_is_an_error():
    def body(comm):
        pair = [DDP(nn.Linear(3, 1), comm) for _ in range(2)]
        assert pair[0].plan == pair[1].plan
        for i in (0, 1) if comm.rank == 0 else (1, 0):
            pair[i](minigrad.ones(2, 3)).sum().backward()

    with pytest.raises((CollectiveMismatchError, RankFailedError), match="expected all ranks to make one call"):
        run(body, 2, timeout_s=TIMEOUT_S)
