"""Cases for minigrad/ops/compare.py."""

import operator

import numpy as np

from minigrad import ops
from tests.cases.case import Case

_SHAPES = {"same": ((3, 4), (3, 4)), "row": ((3, 4), (4,)), "both": ((2, 1, 3), (4, 1)), "scalars": ((), ()),
           "empty": ((0, 3), (3,))}
_OPERATORS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_BITS = {"bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor}
_SPECIAL = np.array([[0.0, -0.0, np.nan], [np.inf, -np.inf, 1.5]])


def _halves(*shapes):
    """Multiples of one half, so that many are equal."""
    return lambda rng: [np.asarray(rng.integers(-2, 3, shape) / 2) for shape in shapes]


def _integers(*shapes):
    return lambda rng: [np.asarray(rng.integers(-8, 8, shape)) for shape in shapes]


def _bools(*shapes):
    return lambda rng: [np.asarray(rng.integers(0, 2, shape).astype(bool)) for shape in shapes]


def _case(op, label, inputs):
    return Case(op, label, inputs, getattr(ops, op), lambda t, *a: getattr(t, op)(*a), differentiable=False)


def _number(op, apply):
    return Case(op, "number", _halves((3, 4)), lambda x: apply(x, 0.5), lambda t, x: apply(x, 0.5),
                differentiable=False)


CASES = (
    [_case(op, label, _halves(*shapes)) for op in _OPERATORS for label, shapes in _SHAPES.items()]
    + [_case(op, "special", lambda rng: [_SPECIAL, _SPECIAL[:, ::-1].copy()]) for op in _OPERATORS]
    + [_number(op, apply) for op, apply in _OPERATORS.items()]
    + [_case(op, f"{label}-bool", _bools(*shapes)) for op in _BITS for label, shapes in _SHAPES.items()]
    + [_case(op, f"{label}-int", _integers(*shapes)) for op in _BITS for label, shapes in _SHAPES.items()]
    + [
        Case(op, "operator", _bools((3, 4), (4,)), apply, lambda t, x, y, apply=apply: apply(x, y),
             differentiable=False)
        for op, apply in _BITS.items()
    ]
    + [
        _case(op, label, _halves(*shapes))
        for op in ("logical_and", "logical_or", "logical_xor")
        for label, shapes in _SHAPES.items()
    ]
    + [
        _case("bitwise_not", "bool", _bools((3, 4))),
        _case("bitwise_not", "int", _integers((3, 4))),
        _case("logical_not", "float", _halves((3, 4))),
        _case("logical_not", "bool", _bools(())),
    ]
    + [_case(op, "special", lambda rng: [_SPECIAL]) for op in ("isnan", "isinf", "isfinite")]
    + [_case(op, "int", _integers((3,))) for op in ("isnan", "isinf", "isfinite")]
)
