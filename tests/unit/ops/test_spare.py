"""Operations that write over the gradient that came to them do so only where nobody else sees it."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.autograd import grad

RNG = np.random.default_rng(0)
SHAPE = (4, 3, 5, 5)
OPERATIONS = {
    "relu": ops.relu,
    "batch_norm": lambda x: ops.batch_norm(x, None, None, Tensor(np.arange(1.0, 4.0)), training=True),
    "group_norm": lambda x: ops.group_norm(x, 3),
}


@pytest.fixture(params=OPERATIONS.values(), ids=OPERATIONS)
def operation(request):
    return request.param


def leaf():
    return Tensor(RNG.standard_normal(SHAPE), True)


def alone(operation, x, g):
    """The gradient of x where the operation has that of its output for itself alone, and nobody else asks."""
    fresh = Tensor(x.data.copy(), True)
    operation(fresh).backward(Tensor(g.copy()))
    return fresh.grad.numpy()


def test_a_gradient_that_two_operations_share_stays(operation):
    x, y, g = leaf(), leaf(), RNG.standard_normal(SHAPE)
    given = Tensor(g.copy())
    (operation(x) + operation(y)).backward(given)
    np.testing.assert_array_equal(given.numpy(), g)
    for one in (x, y):
        np.testing.assert_array_equal(one.grad.numpy(), alone(operation, one, g))


def test_backward_may_be_repeated(operation):
    x, g = leaf(), RNG.standard_normal(SHAPE)
    loss = (operation(x) * Tensor(g)).sum()
    loss.backward(retain_graph=True)
    first = x.grad.numpy().copy()
    x.grad = None
    loss.backward()
    np.testing.assert_array_equal(x.grad.numpy(), first)
    np.testing.assert_array_equal(first, alone(operation, x, g))


def test_what_hooks_saw_and_what_was_retained_stays(operation):
    x, g, seen = leaf(), RNG.standard_normal(SHAPE), []
    y = operation(x)
    y.retain_grad()
    y.register_hook(seen.append)
    loss = (y * Tensor(g)).sum()
    loss.backward(retain_graph=True)
    np.testing.assert_array_equal(y.grad.numpy(), g)
    found = grad(loss, [y, x])
    for one in (*seen, found[0]):
        np.testing.assert_array_equal(one.numpy(), g)
    np.testing.assert_array_equal(found[1].numpy(), alone(operation, x, g))
    np.testing.assert_array_equal(x.grad.numpy(), found[1].numpy())


def test_a_gradient_for_itself_is_written_over():
    """As it is meant; the product's backward makes the gradient, and gives it away."""
    x, held = leaf(), []
    y = ops.relu(x)
    backward = y.node.backward

    def watched(node, gradient):
        held.append((gradient, gradient.copy()))
        backward(node, gradient)

    y.node.backward = watched
    (y * Tensor(np.ones(SHAPE))).sum().backward()
    (gradient, before), = held
    assert (x.data < 0).any() and not gradient[x.data < 0].any() and before.all()
