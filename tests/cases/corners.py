"""Cases that PyTorch's own samples showed, of any family: tensors of no axes, negative positions, nothing to pick."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal


def _picking(shape, index):
    return lambda rng: [np.asarray(rng.standard_normal(shape)), np.array(index, np.int64)]


def _both(op, label, inputs, call):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors))


CASES = [
    _both("gather", "from_scalar", _picking((), [0, 0]), lambda x, i: x.gather(0, i)),
    _both("gather", "by_scalar", _picking((3,), 1), lambda x, i: x.gather(0, i)),
    _both("gather", "nothing", _picking((3,), np.zeros((2, 0))), lambda x, i: x.gather(0, i)),
    _both("index_select", "scalar", _picking((), [0]), lambda x, i: x.index_select(0, i)),
    Case(
        "take_along_dim",
        "negative",
        _picking((2, 3), [[-1, 0], [2, -3]]),
        lambda x, i: ops.take_along_dim(x, i, 1),
        lambda t, x, i: t.take_along_dim(x, i, 1),
    ),
    _both(
        "index_add",
        "scalar",
        lambda rng: [np.asarray(rng.standard_normal()), np.array([0]), np.asarray(rng.standard_normal())],
        lambda x, i, s: x.index_add(0, i, s, alpha=3),
    ),
    Case(
        "pad",
        "circular_after_a_cut",
        normal((2, 4, 5)),
        lambda x: ops.pad(x, (-1, 2, 2, -1), "circular"),
        lambda t, x: t.nn.functional.pad(x, (-1, 2, 2, -1), "circular"),
    ),
    _both("unfold", "scalar", normal(()), lambda x: x.unfold(0, 1, 1) * 2),
    _both("narrow", "from_the_end", normal((2, 5)), lambda x: x.narrow(1, -3, 2)),
]
