"""Cases for minigrad/ops/products.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal, uniform

_PRODUCTS = {
    "mm": {"plain": ((2, 3), (3, 4)), "empty": ((2, 0), (0, 4))},
    "bmm": {"plain": ((2, 3, 4), (2, 4, 2)), "empty": ((0, 3, 4), (0, 4, 2))},
    "mv": {"plain": ((2, 3), (3,)), "empty": ((2, 0), (0,))},
    "dot": {"plain": ((3,), (3,)), "empty": ((0,), (0,))},
    "outer": {"plain": ((2,), (3,)), "empty": ((0,), (3,))},
    "addmm": {"plain": ((2, 4), (2, 3), (3, 4)), "row": ((4,), (2, 3), (3, 4)), "scalar": ((), (2, 3), (3, 4))},
    "baddbmm": {"plain": ((2, 3, 2), (2, 3, 4), (2, 4, 2)), "wide": ((1, 3, 1), (2, 3, 4), (2, 4, 2))},
    "addcmul": {"plain": ((2, 3), (2, 3), (2, 3)), "broadcast": ((3,), (2, 1), (2, 3))},
}


def _both(op, label, inputs, options):
    """As a method, of the first of the tensors."""
    return Case(op, label, inputs, lambda x, *y: getattr(x, op)(*y, **options),
                lambda t, x, *y: getattr(x, op)(*y, **options))


def _distance(label, p, *shapes):
    return Case("cdist", label, normal(*shapes), lambda x, y: ops.cdist(x, y, p), lambda t, x, y: t.cdist(x, y, p))


CASES = [
    *(_both(op, label, normal(*shapes), {}) for op, rows in _PRODUCTS.items() for label, shapes in rows.items()),
    Case("mm", "int", lambda rng: [rng.integers(-5, 5, (2, 3)), rng.integers(-5, 5, (3, 4))], ops.mm,
         lambda t, x, y: t.mm(x, y), differentiable=False),
    _both("addmm", "scaled", normal((2, 4), (2, 3), (3, 4)), {"beta": 0.5, "alpha": -2}),
    _both("baddbmm", "scaled", normal((2, 3, 2), (2, 3, 4), (2, 4, 2)), {"beta": 2, "alpha": 0.5}),
    Case("baddbmm", "beta_0", lambda rng: [np.full((2, 3, 2), np.nan), *normal((2, 3, 4), (2, 4, 2))(rng)],
         lambda x, a, b: x.baddbmm(a, b, beta=0), lambda t, x, a, b: x.baddbmm(a, b, beta=0), differentiable=False),
    _both("addcmul", "scaled", normal((2, 3), (2, 3), (3,)), {"value": -0.5}),
    _both("addcdiv", "plain", uniform(0.5, 2.0, (2, 3), (2, 3), (2, 3)), {}),
    _both("addcdiv", "scaled", uniform(0.5, 2.0, (2, 3), (3,), (2, 1)), {"value": 3}),
    _distance("two", 2.0, (2, 3), (4, 3)),
    _distance("one", 1.0, (2, 3), (4, 3)),
    _distance("inf", float("inf"), (2, 3), (4, 3)),
    _distance("batch", 2.0, (2, 1, 2, 3), (3, 4, 3)),
]
