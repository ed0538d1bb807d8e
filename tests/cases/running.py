"""Cases for minigrad/ops/running.py and pairs.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal

_PAIRS = {"all": {}, "axis": {"dim": 1}, "kept": {"dim": 0, "keepdim": True}}
_AXES = {"last": ((3, 4), -1), "first": ((3, 4), 0), "middle": ((2, 3, 4), 1), "scalar": ((), 0), "empty": ((0, 3), 0)}


def _zeros(rng):
    """Lines without a zero, with one at the start, within and at the end, and with two."""
    x = rng.uniform(0.5, 2.0, (5, 4))
    x[[1, 2, 3, 4, 4], [0, 2, 3, 1, 2]] = 0.0
    return [x]


def _diff(label, inputs, call, **options):
    return Case("diff", label, inputs, lambda *x: call(ops, *x), lambda t, *x: call(t, *x), **options)


CASES = [
    *(
        Case("cumprod", label, normal(shape), lambda x, d=dim: x.cumprod(d), lambda t, x, d=dim: x.cumprod(d))
        for label, (shape, dim) in _AXES.items()
    ),
    Case("cumprod", "zeros", _zeros, lambda x: x.cumprod(1), lambda t, x: x.cumprod(1)),
    Case("cumprod", "zeros_down", _zeros, lambda x: ops.cumprod(x, 0), lambda t, x: t.cumprod(x, 0)),
    Case("cumprod", "int", lambda rng: [rng.integers(-3, 4, (3, 4))], lambda x: x.cumprod(1),
         lambda t, x: x.cumprod(1), differentiable=False),
    *(
        Case(op, f"{label}-{i}", normal((3, 4)), lambda x, op=op, a=arguments, i=i: getattr(ops, op)(x, **a)[i],
             lambda t, x, op=op, a=arguments, i=i: getattr(t, op)(x, **a)[i])
        for op in ("var_mean", "std_mean", "aminmax")
        for label, arguments in _PAIRS.items()
        for i in (0, 1)
    ),
    Case("var_mean", "biased", normal((3, 4)), lambda x: ops.var_mean(x, 1, False)[0],
         lambda t, x: t.var_mean(x, 1, False)[0]),
    _diff("last", normal((3, 4)), lambda space, x: space.diff(x)),
    _diff("twice", normal((5, 2)), lambda space, x: space.diff(x, 2, 0)),
    _diff("all", normal((3, 2)), lambda space, x: space.diff(x, n=4, dim=0)),
    _diff("none", normal((3, 2)), lambda space, x: space.diff(x, 0) * 2),
    _diff("around", normal((3, 4), (3, 1), (3, 2)), lambda space, x, a, b: space.diff(x, prepend=a, append=b)),
    _diff("bool", lambda rng: [np.array([True, False, False, True])], lambda space, x: space.diff(x),
          differentiable=False),
]
