"""Cases for minigrad/ops/arithmetic.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal, uniform

_BINARY = [
    ("add", ops.add, lambda t, x, y: x + y, normal),
    ("sub", ops.sub, lambda t, x, y: x - y, normal),
    ("mul", ops.mul, lambda t, x, y: x * y, normal),
    ("div", ops.div, lambda t, x, y: x / y, lambda *s: uniform(0.5, 2.0, *s)),
    ("remainder", ops.remainder, lambda t, x, y: t.remainder(x, y), lambda *s: uniform(0.5, 2.0, *s)),
    ("fmod", ops.fmod, lambda t, x, y: t.fmod(x, y), lambda *s: uniform(0.5, 2.0, *s)),
    ("pow", ops.pow, lambda t, x, y: x**y, lambda *s: uniform(0.5, 2.0, *s)),
    ("maximum", ops.maximum, lambda t, x, y: t.maximum(x, y), normal),
    ("minimum", ops.minimum, lambda t, x, y: t.minimum(x, y), normal),
]
_SHAPES = {
    "same": ((3, 4), (3, 4)),
    "row": ((3, 4), (4,)),
    "column": ((3, 1), (3, 4)),
    "both": ((2, 1, 3), (4, 1)),
    "scalar": ((), (2, 3)),
    "scalars": ((), ()),
    "empty": ((0, 3), (3,)),
}

CASES = [
    Case(op, label, draw(*shapes), ours, theirs)
    for op, ours, theirs, draw in _BINARY
    for label, shapes in _SHAPES.items()
] + [
    *(
        Case(op, label, draw, getattr(ops, op), lambda t, x, y, op=op: getattr(t, op)(x, y), differentiable=False)
        for op in ("fmod", "remainder")
        for label, draw in {
            "signs": uniform(-9.0, 9.0, (5, 5), (5,)),
            "integers": lambda rng: [rng.integers(-9, 9, (5, 5)), np.array([-3, -2, 1, 2, 4])],
        }.items()
    ),
    Case("neg", "plain", normal((2, 3)), ops.neg, lambda t, x: -x),
    Case("add", "number", normal((2, 3)), lambda x: 1.5 + x + 2, lambda t, x: 1.5 + x + 2),
    Case("sub", "number", normal((2, 3)), lambda x: 1.5 - x, lambda t, x: 1.5 - x),
    Case("div", "number", uniform(0.5, 2.0, (2, 3)), lambda x: 1.5 / x, lambda t, x: 1.5 / x),
    Case("pow", "square", normal((2, 3)), lambda x: x**2, lambda t, x: x**2),
    Case("pow", "zero", normal((2, 3)), lambda x: (x * 0 + x) ** 0, lambda t, x: (x * 0 + x) ** 0),
    Case(
        "floor_divide",
        "numbers",
        uniform(-3.0, 3.0, (2, 3), (3,)),
        ops.floor_divide,
        lambda t, x, y: t.floor_divide(x, y),
        differentiable=False,
    ),
]
