"""Plain values of another kind than an operation, a layer or a loader expects are refused by name."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, nn, ops, optim
from minigrad.arguments import as_integer, as_real
from minigrad.errors import ArgumentError, IndexRangeError
from minigrad.nn import init

X = Tensor(np.ones((2, 3), np.float32))

# Every value stands for the mistakes of its kind: a text, nothing, a list, an array where a number or a word is meant.
NOT_NUMBERS = ["0.5", None, [0.5], np.ones((2, 2)), Tensor(np.ones(())), True, float("nan")]
TAKES_A_NUMBER = {
    "negative_slope": lambda value: ops.leaky_relu(X, value),
    "alpha": lambda value: ops.elu(X, value),
    "beta": lambda value: ops.softplus(X, beta=value),
    "threshold": lambda value: ops.softplus(X, threshold=value),
    "delta": lambda value: ops.huber_loss(X, X, delta=value),
    "beta of smooth_l1_loss": lambda value: ops.smooth_l1_loss(X, X, beta=value),
    "p": lambda value: ops.dropout(X, value),
    "eps": lambda value: ops.layer_norm(X, 3, eps=value),
    "momentum": lambda value: ops.batch_norm(X, None, None, training=True, momentum=value),
    "label_smoothing": lambda value: ops.cross_entropy(X, minigrad.tensor([0, 1]), label_smoothing=value),
    "p of norm": lambda value: X.norm(value),
    "factor of add_": lambda value: X.add_(X, alpha=value),
    "a": lambda value: init.uniform_(X, value, 2.0),
    "val": lambda value: init.constant_(X, value),
    "std": lambda value: init.normal_(X, 0.0, value),
    "gain": lambda value: init.orthogonal_(X, value),
    "lr": lambda value: optim.SGD([nn.Parameter(np.ones(2))], lr=value),
    "max_norm": lambda value: optim.clip_grad_norm_([nn.Parameter(np.ones(2))], value),
}


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: f"{type(value).__name__}-{value!r:.12}")
@pytest.mark.parametrize("call", TAKES_A_NUMBER.values(), ids=TAKES_A_NUMBER)
def test_what_is_no_number_is_refused(call, value):
    with pytest.raises(ArgumentError, match="got"):
        call(value)


def test_a_scalar_takes_axis_0_where_a_vector_does():
    x = minigrad.tensor(3.0, requires_grad=True)
    zero = minigrad.tensor(0)
    y = x.flip(0) + x.roll(1, 0) + x.gather(0, zero) + x.take_along_dim(zero, 0)
    y.backward()
    assert (y.item(), x.grad.item()) == (12.0, 4.0)
    with pytest.raises(IndexRangeError, match=r"gather: expected indexes in \[0, 1\)"):
        x.gather(0, minigrad.tensor(1))


def test_numbers_of_numpy_count_as_numbers():
    assert as_real("who", "x", np.float32(0.5)) == 0.5 and type(as_real("who", "x", np.float64(2))) is float
    assert as_real("who", "x", 3) == 3.0 and as_real("who", "x", float("inf")) == float("inf")
    assert type(as_integer("who", "n", np.int32(4), 4)) is int
