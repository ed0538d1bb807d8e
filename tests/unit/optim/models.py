"""A few parameters with gradients, for the tests of this folder."""

import numpy as np

from minigrad import Tensor
from minigrad.nn import Parameter
from minigrad.optim import LAMB, SGD, Adadelta, Adagrad, Adam, AdamW, RMSprop

OPTIMIZERS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    (Adam, {"lr": 0.1, "weight_decay": 0.1}),
    (AdamW, {"lr": 0.1}),
    (Adam, {"lr": 0.1, "amsgrad": True}),
    (RMSprop, {"lr": 0.1, "weight_decay": 0.1}),
    (RMSprop, {"lr": 0.1, "alpha": 0.9, "centered": True, "momentum": 0.9}),
    (Adagrad, {"lr": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.3}),
    (Adadelta, {"lr": 0.7, "weight_decay": 0.1}),
    (LAMB, {"lr": 0.1, "betas": (0.5, 0.9)}),
]
SHAPES = [(3, 4), (4,), (), (2, 1, 5)]


def draw_parameters(rng, dtype="float64", shapes=SHAPES):
    """Parameters of these shapes."""
    return [Parameter(rng.standard_normal(shape).astype(dtype)) for shape in shapes]


def draw_gradients(rng, params):
    """Give each parameter a gradient."""
    for param in params:
        param.grad = Tensor(np.asarray(rng.standard_normal(param.shape)).astype(param.dtype))


def values(params):
    """Copies of the values."""
    return [param.detach().numpy().copy() for param in params]


def same(first, second):
    """Whether two lists of arrays have the same bits."""
    return len(first) == len(second) and all(np.array_equal(a, b) for a, b in zip(first, second))
