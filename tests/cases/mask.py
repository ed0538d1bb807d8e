"""Cases for minigrad/ops/mask.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal


def _masked(mask_shape, *shapes):
    return lambda rng: [np.asarray(rng.random(mask_shape) < 0.5), *normal(*shapes)(rng)]


def _where(label, inputs):
    return Case("where", label, inputs, ops.where, lambda t, m, x, y: t.where(m, x, y))


def _triangle(label, shape, diagonal):
    return [
        Case("tril", label, normal(shape), lambda x: x.tril(diagonal), lambda t, x: x.tril(diagonal)),
        Case("triu", label, normal(shape), lambda x: x.triu(diagonal), lambda t, x: x.triu(diagonal)),
    ]


CASES = [
    _where("plain", _masked((3, 4), (3, 4), (3, 4))),
    _where("broadcast", _masked((3, 1), (4,), (2, 1, 4))),
    _where("scalars", _masked((), (), ())),
    _where("empty", _masked((0, 3), (3,), (0, 3))),
    Case("where", "number", _masked((3,), (3,)), lambda m, x: ops.where(m, x, 2.5), lambda t, m, x: t.where(m, x, 2.5)),
    Case("where", "reversed", _masked((3, 1), (4,)), lambda m, x: ops.where(m, 1, x), lambda t, m, x: t.where(m, 1, x)),
    Case(
        "masked_fill",
        "number",
        _masked((3, 4), (3, 4)),
        lambda m, x: x.masked_fill(m, -2.5),
        lambda t, m, x: x.masked_fill(m, -2.5),
    ),
    Case(
        "masked_fill",
        "tensor",
        _masked((4, 4), (2, 4, 4), ()),
        lambda m, x, v: x.masked_fill(m, v),
        lambda t, m, x, v: x.masked_fill(m, v),
    ),
    Case(
        "masked_fill",
        "broadcast",
        _masked((3, 4), (4,)),
        lambda m, x: x.masked_fill(m, 0),
        lambda t, m, x: x.masked_fill(m, 0),
    ),
    Case(
        "masked_fill",
        "infinity",
        lambda rng: [np.asarray([True, False, False]), rng.standard_normal(3)],
        lambda m, x: x.masked_fill(m, float("-inf"))[1:],
        lambda t, m, x: x.masked_fill(m, float("-inf"))[1:],
    ),
    *_triangle("main", (3, 4), 0),
    *_triangle("above", (2, 3, 3), 1),
    *_triangle("below", (4, 2), -1),
    *_triangle("empty", (0, 3), 0),
]
