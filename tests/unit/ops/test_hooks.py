"""Hooks on tensors see the gradient that a backward adds, and may replace it."""

import gc
import weakref

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, distributed, nn, optim
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
        (x * 3 + x).sum().backward(on_leaf=lambda reached: seen.append(reached.grad.tolist()))
    assert seen == [[8, 8], [8, 8], [8, 8], [8, 8], [16, 16], [16, 16]]
    handle.remove()
    (x * 3).sum().backward()
    assert x.grad.tolist() == [19, 19]


def test_its_gradient_may_be_changed_in_place_but_is_a_copy():
    x, kept = leaf(1.0, 2.0), []
    y = x * 1
    for each in (x, y):
        each.register_hook(lambda grad: [grad.mul_(3), None][1])
        each.register_hook(lambda grad: kept.append(grad))
    y.sum().backward()
    assert x.grad.tolist() == [9, 9]
    kept.pop().zero_()
    assert x.grad.tolist() == [9, 9] and kept[0].tolist() == [3, 3]


@pytest.mark.parametrize("flat", [False, True])
def test_on_a_leaf_what_was_there_before_is_none_of_its_business(flat):
    """Not by a subtraction, which would lose digits, nor in a backward within the backward."""
    x, seen = nn.Parameter(np.ones(1, np.float32)), []
    if flat:
        optim.SGD([x], lr=1.0)
    for scale in (1e8, 1.0, np.inf, 2.0):
        (x * scale).sum().backward()
        if not seen:
            x.register_hook(lambda grad: seen.append(grad.item()))
            seen.append(scale)
    assert seen == [1e8, 1.0, np.inf, 2.0] and x.grad.item() == np.inf
    x.grad = None
    x.register_hook(lambda grad: grad * 10)
    for total in (80, 160):
        y = x * 3
        y.register_hook(lambda grad: (x * 5).sum().backward())
        y.sum().backward()
        assert x.grad.item() == total
    given = x.grad
    loss = (x * given).sum()  # which its hook must not touch before this backward reads it
    loss.backward()
    assert x.grad.item() == 160 + 10 * 160 and given.item() == x.grad.item()


def test_a_gradient_outlives_a_backward_that_fails():
    x = leaf(1.0)
    (x * 3).sum().backward()
    handle = x.register_hook(lambda grad: grad * 10)
    y = x * 1
    y.register_hook(lambda grad: handle.remove() or {}["missing"])
    with pytest.raises(KeyError):
        (y + x).sum().backward()
    assert x.grad.item() == 3
    x.sum().backward()
    assert x.grad.item() == 4


def test_an_output_keeps_its_gradient_where_it_is_told_to():
    x = leaf(1.0, 2.0)
    y = x * 3
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda grad: grad * 2)
    loss = y.sum()
    assert y.grad is None
    loss.backward(retain_graph=True)
    assert y.grad.tolist() == [2, 2] and x.grad.tolist() == [6, 6]
    loss.backward()
    assert y.grad.tolist() == [4, 4]
    assert x.retain_grad() is None
    z = x * 3
    z.retain_grad()
    z.mul_(2)  # now it is another output
    z.sum().backward()
    assert z.grad.tolist() == [1, 1]


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
