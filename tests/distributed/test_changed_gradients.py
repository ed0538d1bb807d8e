"""Gradients and parameters that a user changes in place, between what a wrapper does with them."""

import numpy as np
import pytest

import minigrad
from minigrad.distributed import DDP, run
from minigrad.errors import AutogradError
from tests.distributed.models import Mlp, assert_gradients_close, data, gradients, mean_loss, values

TIMEOUT_S = 10.0
INPUTS, TARGETS = data(6, 0)
CUTS = [slice(0, 2), slice(2, 6)]


def change(module):
    """Halve each gradient and add one, by what Python makes of it: getattr, the operator, setattr."""
    for param in module.parameters():
        param.grad *= 0.5
        param.grad += 1


def backward(ddp, rank):
    mean_loss(ddp(minigrad.Tensor(INPUTS[CUTS[rank]])), TARGETS[CUTS[rank]]).backward()


def whole():
    module = Mlp(0)
    mean_loss(module(minigrad.Tensor(INPUTS)), TARGETS).backward()
    return gradients(module)


def test_before_they_are_combined_they_keep_their_weight():
    def body(comm):
        ddp = DDP(Mlp(0), comm, sync="manual")
        backward(ddp, comm.rank)
        change(ddp.module)
        ddp.sync_gradients()
        return gradients(ddp.module)

    for found in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(found, {name: 0.5 * gradient + 1 for name, gradient in whole().items()})


def test_combined_ones_stay_combined():
    """A second synchronisation leaves them, and with reduce='sum' no backward may add to them."""

    def mean(comm):
        ddp = DDP(Mlp(0), comm, sync="manual")
        backward(ddp, comm.rank)
        ddp.sync_gradients()
        change(ddp.module)
        ddp.sync_gradients()
        return gradients(ddp.module)

    def total(comm):
        ddp = DDP(Mlp(0), comm, reduce="sum")
        backward(ddp, comm.rank)
        change(ddp.module)
        with pytest.raises(AutogradError, match="expected no combined gradients before a backward with reduce='sum'"):
            backward(ddp, comm.rank)

    for found in run(mean, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(found, {name: 0.5 * gradient + 1 for name, gradient in whole().items()})
    run(total, 2, timeout_s=TIMEOUT_S)


def test_a_hook_may_change_them_by_an_operator():
    def body(comm):
        ddp = DDP(Mlp(0), comm)
        for param in ddp.module.parameters():
            param.register_post_accumulate_grad_hook(lambda leaf: leaf.grad.mul_(0.5))
        backward(ddp, comm.rank)
        return gradients(ddp.module)

    for found in run(body, 2, timeout_s=TIMEOUT_S):
        assert_gradients_close(found, {name: 0.5 * gradient for name, gradient in whole().items()})


def test_training_by_hand_is_training_on_all_samples():
    """`p -= lr * p.grad` under no_grad changed nothing: Python gave a name to a new tensor."""

    def body(comm):
        module = Mlp(0)
        ddp = module if comm is None else DDP(module, comm)
        for _ in range(3):
            part = slice(0, 6) if comm is None else CUTS[comm.rank]
            mean_loss(ddp(minigrad.Tensor(INPUTS[part])), TARGETS[part]).backward()
            with minigrad.no_grad():
                for p in module.parameters():
                    p -= 0.1 * p.grad
                    p.grad.zero_()
        return values(module)

    alone, start = body(None), values(Mlp(0))
    assert all(not np.array_equal(alone[name], start[name]) for name in start)
    ranks = run(body, 2, timeout_s=TIMEOUT_S)
    assert all(ranks[0][name].tobytes() == ranks[1][name].tobytes() for name in alone)
    assert_gradients_close(ranks[0], alone)
