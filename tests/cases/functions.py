"""Cases for minigrad/ops/functions.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal, uniform

_SHAPES = {"scalar": (), "matrix": (3, 4), "empty": (0, 3)}
_NORMAL = ["exp2", "tan", "atan", "sinh", "cosh", "asinh", "trunc", "frac"]
_POSITIVE = ["log2", "log10"]
_INSIDE = ["asin", "acos", "atanh"]
_PAIRS = {"same": ((3, 4), (3, 4)), "row": ((3, 4), (4,)), "scalars": ((), ()), "empty": ((0, 3), (3,))}
_SPECIAL = np.array([1.5, np.nan, np.inf, -np.inf, -0.0])


def _case(op, label, inputs, **options):
    return Case(op, label, inputs, getattr(ops, op), lambda t, *a: getattr(t, op)(*a), **options)


def _with(op, label, inputs, arguments, **options):
    return Case(op, label, inputs, lambda x: getattr(ops, op)(x, **arguments),
                lambda t, x: getattr(t, op)(x, **arguments), **options)


CASES = [
    *(_case(op, label, normal(shape)) for op in _NORMAL for label, shape in _SHAPES.items()),
    *(_case(op, label, uniform(0.5, 3.0, shape)) for op in _POSITIVE for label, shape in _SHAPES.items()),
    *(_case(op, label, uniform(-0.9, 0.9, shape)) for op in _INSIDE for label, shape in _SHAPES.items()),
    *(_case("acosh", label, uniform(1.1, 3.0, shape)) for label, shape in _SHAPES.items()),
    *(_case(op, label, normal(*shapes)) for op in ("atan2", "logaddexp") for label, shapes in _PAIRS.items()),
    _case("logaddexp", "large", uniform(-1e4, 1e4, (3, 4), (3, 4))),
    *(_case(op, "int", lambda rng: [2 ** rng.integers(0, 5, (3, 4))], differentiable=False)
      for op in ("log2", "exp2", "trunc", "nan_to_num")),
    _case("trunc", "halves", lambda rng: [rng.integers(-9, 9, 12) / 2], differentiable=False),
    _case("logit", "inside", uniform(0.1, 0.9, (3, 4))),
    _with("logit", "cut", uniform(0.1, 0.9, (3, 4)), {"eps": 0.3}),
    _with("logit", "ends", lambda rng: [np.array([0.0, 1.0, 0.5])], {"eps": 1e-3}, differentiable=False),
    _case("nan_to_num", "finite", normal((3, 4))),
    _case("nan_to_num", "nan", lambda rng: [_SPECIAL[[0, 1, 4]]], differentiable=False),
    _with("nan_to_num", "numbers", lambda rng: [_SPECIAL], {"nan": 1.0, "posinf": 2.0, "neginf": -3},
          differentiable=False),
]
