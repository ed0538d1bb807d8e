"""What an operation does not pick gets the gradient 0, also where that of what it picks is infinite."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, ops

PICKS = {
    "where": lambda x: ops.where(x > 0, x, 0.0),
    "where the others": lambda x: ops.where(x <= 0, 0.0, x),
    "masked_fill": lambda x: x.masked_fill(x <= 0, 0.0),
    "clamp": lambda x: x.clamp(min=0.0),
    "relu": lambda x: x.relu(),
    "maximum": lambda x: x.maximum(0.0),
    "minimum": lambda x: -(-x).minimum(0.0),
}


@pytest.mark.parametrize("pick", PICKS.values(), ids=PICKS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_gradient_of_what_is_not_picked_is_zero_below_an_infinite_one(pick, dtype):
    x = Tensor(np.array([-1.0, 4.0])).to(dtype).requires_grad_()
    pick(x).backward(Tensor(np.array([np.inf, 2.0])).to(dtype))
    assert x.grad.tolist() == [0.0, 2.0]


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_square_root_behind_a_choice_is_safe():
    x = minigrad.tensor([[-1.0, 4.0]], requires_grad=True)
    ops.where(x > 0, x, 0.0).sqrt().sum().backward()
    assert x.grad.tolist() == [[0.0, 0.25]]


def test_the_winner_gets_all_of_an_infinite_gradient():
    infinite = Tensor(np.array([[[np.inf]]]))
    for pick in (lambda x: x.amax((1, 2), keepdim=True), lambda x: ops.max_pool2d(x, 2)):
        x = Tensor(np.array([[[1.0, 2.0], [0.0, -1.0]]]), requires_grad=True)
        pick(x).backward(infinite)
        assert x.grad.tolist() == [[[0.0, np.inf], [0.0, 0.0]]]
    x = Tensor(np.zeros((1, 3, 3)), requires_grad=True)
    ops.max_pool2d(x, 2, 1).backward(Tensor(np.full((1, 2, 2), np.inf)))
    assert x.grad.tolist() == [[[np.inf, np.inf, 0.0], [np.inf, np.inf, 0.0], [0.0, 0.0, 0.0]]]


def test_equal_elements_share_an_infinite_gradient():
    x, y = (Tensor(np.array(3.0), requires_grad=True) for _ in range(2))
    x.maximum(y).backward(Tensor(np.array(np.inf)))
    assert x.grad.item() == y.grad.item() == np.inf


def test_the_padding_row_of_a_table_gets_no_infinite_gradient():
    layer = nn.Embedding(2, 1, padding_idx=0)
    layer(minigrad.tensor([0, 1])).backward(minigrad.tensor([[np.inf], [1.0]]))
    assert layer.weight.grad.tolist() == [[0.0], [1.0]]
