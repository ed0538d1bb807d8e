"""Hooks on tensors see the gradient that a backward adds, and may replace it."""

import gc
import weakref

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, distributed, nn
from minigrad.errors import AutogradError, DtypeError, ShapeError


def leaf(*values):
    return Tensor(np.asarray(values, np.float64), requires_grad=True)


def test_between_leaf_and_loss_it_sees_the_whole_gradient_and_what_it_returns_goes_on():
    x, seen = leaf(1.0, 2.0), []
    y = x * 3
    y.register_hook(lambda grad: seen.append(grad.tolist()))
    handle = y.register_hook(lambda grad: grad * 10)
    y.register_hook(lambda grad: seen.append(grad.tolist()))
    loss = (y + y * y).sum()
    loss.backward(retain_graph=True)
    assert seen == [[7, 13], [70, 130]] and x.grad.tolist() == [210, 390]
    handle.remove()
    handle.remove()
    loss.backward()
    assert seen[2:] == [[7, 13], [7, 13]] and x.grad.tolist() == [231, 429]


def test_on_a_leaf_it_gets_what_this_backward_adds_and_comes_before_other_hooks():
    x, seen = leaf(1.0, 2.0), []
    x.register_post_accumulate_grad_hook(lambda reached: seen.append(reached.grad.tolist()))
    handle = x.register_hook(lambda grad: grad * 2)
    x.register_hook(lambda grad: seen.append(grad.tolist()))
    for _ in range(2):
        (x * 3 + x).sum().backward()
    assert seen == [[8, 8], [8, 8], [8, 8], [16, 16]]
    handle.remove()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [19, 19]


def test_what_it_does_to_its_gradient_changes_nothing():
    x = leaf(1.0, 2.0)
    y = x * 1
    for each in (x, y):
        each.register_hook(lambda grad: [grad.mul_(0), None][1])
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_an_output_keeps_its_gradient_where_it_is_told_to():
    x = leaf(1.0, 2.0)
    y = x * 3
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda grad: grad * 2)
    loss = y.sum()
    with pytest.raises(AutogradError, match=r"grad: expected a leaf, .* call retain_grad\(\) on it before"):
        y.grad
    loss.backward(retain_graph=True)
    assert y.grad.tolist() == [2, 2] and x.grad.tolist() == [6, 6]
    loss.backward()
    assert y.grad.tolist() == [4, 4]
    assert x.retain_grad() is None


def test_hooks_make_no_circle():
    gc.collect()
    gc.disable()
    try:
        x = leaf(1.0)
        y = x * 2
        y.retain_grad()
        y.register_hook(lambda grad: None)
        loss = y.sum()
        gone = weakref.ref(y)
        del y, loss
        assert gone() is None
    finally:
        gc.enable()


def test_a_wrapper_sends_what_the_hook_of_a_parameter_made():
    def train(comm):
        layer = nn.Linear(1, 1, bias=False)
        layer.weight.register_hook(lambda grad: grad * (1 + comm.rank))
        ddp = distributed.DDP(layer, comm)
        layer.weight.register_hook(lambda grad: grad + 1)
        ddp(minigrad.ones(1, 1)).sum().backward()
        return layer.weight.grad.item()

    assert distributed.run(train, 2) == [2.5, 2.5]


def test_refused():
    with pytest.raises(AutogradError, match="register_hook: expected a tensor that requires grad, got one of shape"):
        minigrad.ones(2).register_hook(print)
    with pytest.raises(AutogradError, match="retain_grad: expected a tensor that requires grad"):
        minigrad.ones(2).retain_grad()
    x = leaf(1.0, 2.0)
    for wrong, error in [(1.0, DtypeError), (minigrad.ones(2), DtypeError), (leaf(1.0), ShapeError)]:
        for each in (x, x * 2):
            handle = each.register_hook(lambda grad: wrong)
            with pytest.raises(error, match="register_hook: expected a gradient"):
                each.sum().backward()
            handle.remove()
