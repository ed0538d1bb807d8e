"""More cases for minigrad/ops/scatter.py; those of scatter and index_add, and in place, are in inplace.py."""

import numpy as np

from tests.cases.case import Case


def _case(op, label, inputs, call, **options):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors), **options)


def _picked(shape, high, index_shape, *shapes):
    """A normal tensor, integers from [0, high), which may repeat, and more normal ones."""
    return lambda rng: [
        np.asarray(rng.standard_normal(shape)),
        rng.integers(0, high, index_shape),
        *(np.asarray(rng.standard_normal(other)) for other in shapes),
    ]


CASES = [
    _case("scatter", "value", lambda rng: [rng.standard_normal((3, 4)), np.array([[0], [3], [1]])],
          lambda x, i: x.scatter(1, i, value=1)),
    _case("scatter_add", "rows", _picked((3, 4), 3, (5, 4), (5, 4)), lambda x, i, s: x.scatter_add(0, i, s)),
    _case("scatter_add", "columns", _picked((3, 4), 4, (3, 6), (3, 6)), lambda x, i, s: x.scatter_add(-1, i, s)),
    _case("scatter_add", "part", _picked((3, 4), 3, (2, 2), (2, 2)), lambda x, i, s: x.scatter_add(0, i, s)),
    _case("scatter_add", "empty", _picked((3, 4), 3, (0, 4), (0, 4)), lambda x, i, s: x.scatter_add(0, i, s)),
    _case("scatter_add", "int", lambda rng: [rng.integers(0, 9, (3,)), rng.integers(0, 3, (7,)), rng.integers(0, 9, 7)],
          lambda x, i, s: x.scatter_add(0, i, s), differentiable=False),
    _case("scatter_add_", "rows", _picked((3, 4), 3, (5, 4), (5, 4)),
          lambda x, i, s: (x * 2).scatter_add_(0, i, s) * 3),
    _case("scatter_", "value", lambda rng: [rng.standard_normal((3, 4)), np.array([[0], [3], [1]])],
          lambda x, i: (x * 2).scatter_(1, i, value=1.5) * 3),
    _case("index_fill", "rows", _picked((3, 4), 3, (2,)), lambda x, i: x.index_fill(0, i, 1.5)),
    _case("index_fill", "columns", lambda rng: [rng.standard_normal((2, 3, 2)), np.array([2, -3, 2])],
          lambda x, i: x.index_fill(1, i, -1)),
    _case("index_fill", "tensor", lambda rng: [rng.standard_normal((3, 4)), np.array([2, 0]), rng.standard_normal(())],
          lambda x, i, v: x.index_fill(0, i, v)),
    _case("index_fill", "empty", _picked((3, 4), 3, (0,)), lambda x, i: x.index_fill(0, i, 2)),
    _case("index_fill_", "rows", _picked((3, 4), 3, (2,)), lambda x, i: (x * 2).index_fill_(0, i, 0) * 3),
]
