"""Cases for minigrad/ops/index.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal


def _with_index(shape, low, high, index_shape):
    """A normal tensor, and integers from [low, high); repeated ones are likely."""
    return lambda rng: [np.asarray(rng.standard_normal(shape)), rng.integers(low, high, index_shape)]


def _with_mask(shape, mask_shape):
    return lambda rng: [np.asarray(rng.standard_normal(shape)), rng.random(mask_shape) < 0.5]


def _basic(label, shape, index):
    return Case("getitem", label, normal(shape), lambda x: x[index], lambda t, x: x[index])


def _both(op, label, inputs, call):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors))


CASES = [
    _basic("integer", (3, 4), 1),
    _basic("negative", (3, 4), -1),
    _basic("element", (3, 4), (1, -2)),
    _basic("slice", (5, 4), slice(1, 4, 2)),
    _basic("slices", (5, 4), (slice(None), slice(-3, None))),
    _basic("ellipsis", (2, 3, 4), (..., 1)),
    _basic("new_axis", (2, 3), (slice(None), None, 1)),
    _basic("all", (2, 3), ...),
    _basic("scalar", (), ()),
    _basic("empty_slice", (3, 4), slice(2, 2)),
    _basic("list", (3, 4), [0, 2, 0]),
    _basic("empty_list", (3, 4), []),
    _basic("reduce", (5, 4), (slice(None, None, 2), [3, 0])),
    Case("getitem", "twice", normal((4, 3)), lambda x: x[:3] * x[1:] + x[0], lambda t, x: x[:3] * x[1:] + x[0]),
    Case("getitem", "step_back", normal((5, 2)), lambda x: x[::-2], lambda t, x: x[[4, 2, 0]]),
    _both("getitem", "tensor", _with_index((5, 3), -5, 5, (7,)), lambda x, i: x[i]),
    _both("getitem", "tensor_scalar", _with_index((5, 3), 0, 5, ()), lambda x, i: x[i]),
    _both("getitem", "tensor_matrix", _with_index((5, 3), 0, 5, (2, 4)), lambda x, i: x[i] * 2),
    _both("getitem", "tensor_vector", _with_index((5,), -5, 5, (9,)), lambda x, i: x[i]),
    _both("getitem", "tensor_second", _with_index((3, 5, 2), -5, 5, (4,)), lambda x, i: x[:, i]),
    _both("getitem", "tensor_pair", _with_index((3, 5), 0, 3, (6,)), lambda x, i: x[i, i + 1]),
    _both("getitem", "tensor_mixed", _with_index((3, 4, 5), 0, 3, (6,)), lambda x, i: x[i, 1:, i]),
    _both("getitem", "tensor_integer", _with_index((3, 4, 5), 0, 3, (6,)), lambda x, i: x[:, 2, i]),
    _both("getitem", "tensor_none", _with_index((3, 0), 0, 3, (6,)), lambda x, i: x[i]),
    _both("getitem", "mask", _with_mask((4, 3), (4, 3)), lambda x, m: x[m]),
    _both("getitem", "mask_rows", _with_mask((4, 3), (4,)), lambda x, m: x[m] * 2),
    _both("getitem", "mask_columns", _with_mask((4, 3), (3,)), lambda x, m: x[:, m]),
    _both("getitem", "mask_empty", lambda rng: [rng.standard_normal((2, 3)), np.zeros(2, bool)], lambda x, m: x[m]),
    _both("gather", "columns", _with_index((3, 4), 0, 4, (3, 6)), lambda x, i: x.gather(1, i)),
    _both("gather", "rows", _with_index((3, 4), 0, 3, (5, 2)), lambda x, i: x.gather(0, i)),
    _both("gather", "last", _with_index((2, 3, 4), 0, 4, (2, 3, 1)), lambda x, i: x.gather(-1, i)),
    _both("gather", "empty", _with_index((2, 3), 0, 3, (0, 3)), lambda x, i: x.gather(0, i)),
    Case(
        "take_along_dim",
        "columns",
        _with_index((3, 4), 0, 4, (3, 2)),
        lambda x, i: ops.take_along_dim(x, i, 1),
        lambda t, x, i: t.take_along_dim(x, i, 1),
    ),
    Case(
        "take_along_dim",
        "broadcast",
        _with_index((1, 4, 2), 0, 4, (3, 5, 1)),
        lambda x, i: ops.take_along_dim(x, i, 1),
        lambda t, x, i: t.take_along_dim(x, i, 1),
    ),
    Case(
        "take_along_dim",
        "flat",
        _with_index((3, 4), 0, 12, (2, 3)),
        ops.take_along_dim,
        lambda t, x, i: t.take_along_dim(x, i),
    ),
    _both("index_select", "rows", _with_index((5, 3), 0, 5, (7,)), lambda x, i: x.index_select(0, i)),
    _both("index_select", "middle", _with_index((2, 5, 3), 0, 5, (7,)), lambda x, i: x.index_select(-2, i)),
    _both("index_select", "vector", _with_index((5,), 0, 5, (7,)), lambda x, i: x.index_select(0, i)),
    _both("index_select", "empty", _with_index((5, 3), 0, 5, (0,)), lambda x, i: x.index_select(0, i)),
    Case(
        "embedding",
        "plain",
        _with_index((6, 3), 0, 6, (2, 5)),
        ops.embedding,
        lambda t, w, i: t.nn.functional.embedding(i, w),
    ),
    Case(
        "embedding",
        "padding",
        _with_index((4, 3), 0, 4, (9,)),
        lambda w, i: ops.embedding(w, i, padding_idx=-1),
        lambda t, w, i: t.nn.functional.embedding(i, w, padding_idx=-1),
        # PyTorch and we cut off the gradient of the padding row, central differences do not
        differentiable=False,
    ),
    Case("embedding", "empty", _with_index((4, 3), 0, 4, (0,)), ops.embedding, lambda t, w, i: t.embedding(w, i)),
    Case(
        "one_hot",
        "plain",
        lambda rng: [rng.integers(0, 4, (2, 3))],
        lambda i: ops.one_hot(i, 4),
        lambda t, i: t.nn.functional.one_hot(i, 4),
        differentiable=False,
    ),
    Case(
        "one_hot",
        "guess",
        lambda rng: [rng.integers(0, 4, 5)],
        ops.one_hot,
        lambda t, i: t.nn.functional.one_hot(i),
        differentiable=False,
    ),
]
