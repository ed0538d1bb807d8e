"""Cases for minigrad/ops/elementwise.py."""

from minigrad import ops
from tests.cases.case import Case, normal, uniform

_SHAPES = {"scalar": (), "matrix": (3, 4), "empty": (0, 3)}
_NORMAL = ["exp", "expm1", "square", "sin", "cos", "tanh", "sigmoid", "erf", "abs", "sign", "floor", "ceil", "round"]
_POSITIVE = ["log", "log1p", "sqrt", "rsqrt", "reciprocal"]


def _case(op, label, inputs, **options):
    return Case(op, label, inputs, getattr(ops, op), lambda t, *a: getattr(t, op)(*a), **options)


CASES = (
    [_case(op, label, normal(shape)) for op in _NORMAL for label, shape in _SHAPES.items()]
    + [_case(op, label, uniform(0.5, 3.0, shape)) for op in _POSITIVE for label, shape in _SHAPES.items()]
    + [
        _case("sigmoid", "large", uniform(-1000.0, 1000.0, (3, 4))),
        _case("tanh", "large", uniform(-1000.0, 1000.0, (3, 4))),
        _case("erf", "all_ranges", uniform(-7.0, 7.0, (50,))),
        _case("erf", "near_zero", uniform(-1e-9, 1e-9, (4,))),
        _case("expm1", "near_zero", uniform(-1e-9, 1e-9, (4,))),
        _case("log1p", "near_zero", uniform(-1e-9, 1e-9, (4,))),
        _case("reciprocal", "negative", uniform(-3.0, -0.5, (3, 4))),
        Case("round", "decimals", uniform(-99.0, 99.0, (3, 4)), lambda x: ops.round(x, decimals=2),
             lambda t, x: t.round(x, decimals=2), differentiable=False),
        Case("round", "tens", uniform(-999.0, 999.0, (3, 4)), lambda x: ops.round(x, decimals=-1),
             lambda t, x: t.round(x, decimals=-1), differentiable=False),
        Case("round", "halves", lambda rng: [rng.integers(-9, 9, 12) / 2], ops.round, lambda t, x: t.round(x),
             differentiable=False),
    ]
    + [
        Case("clamp", label, normal((3, 4)), lambda x, b=bound: ops.clamp(x, *b), lambda t, x, b=bound: t.clamp(x, *b))
        for label, bound in {
            "both": (-0.5, 0.5),
            "low": (0.0, None),
            "high": (None, 0),
            "crossed": (1.0, -1.0),
        }.items()
    ]
    + [Case("clamp", "scalar", normal(()), lambda x: ops.clamp(x, max=0.1), lambda t, x: t.clamp(x, max=0.1))]
)
