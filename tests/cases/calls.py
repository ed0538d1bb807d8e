"""Cases for the arguments that operations have for the sake of PyTorch's callers, whatever their family."""

from minigrad import ops
from tests.cases.case import Case, normal, uniform


def _integers(*shapes):
    """Integers from -9 to 9, the last ones without 0."""
    return lambda rng: [rng.integers(-9, 10, s) if s != shapes[-1] else rng.integers(1, 4, s) * 2 - 5 for s in shapes]


def _bounds(rng):
    """x, and bounds of which some are crossed; none ties."""
    return [rng.standard_normal((3, 4)), rng.standard_normal((3, 1)) - 0.5, rng.standard_normal(4) + 0.5]


def _pad(label, pad, mode, *shape):
    return Case(
        "pad",
        label,
        normal(shape),
        lambda x: ops.pad(x, pad, mode) * 2,
        lambda t, x: t.nn.functional.pad(x, pad, mode) * 2,
    )


def _changed(op, *args):
    """A method that writes into its tensor, which is the output of an operation."""

    def change(x):
        x = x * 1
        getattr(x, op)(*args)
        return x * 2

    return Case(op, "plain", uniform(0.2, 0.9, (2, 3)), change, lambda t, x: change(x))


def _inplace(op, *args):
    """An activation with inplace=True, of which the result is left aside."""

    def change(functional, x):
        x = x * 1
        getattr(functional, op)(x, *args, inplace=True)
        return x * x

    return Case(
        op,
        "inplace",
        normal((2, 3)),
        lambda x: change(ops, x),
        lambda t, x: change(t.nn.functional, x),
    )


_ELEMENTWISE = "abs_ erf_ exp_ expm1_ log_ log1p_ neg_ reciprocal_ relu_ rsqrt_ sigmoid_ sin_ cos_ sqrt_ square_ tanh_"


def _named(op, draw, *args, differentiable=True):
    """An operation under another name, alike in both libraries."""
    return Case(
        op,
        "name",
        draw,
        lambda *x: getattr(ops, op)(*x, *args),
        lambda t, *x: getattr(t, op)(*x, *args),
        differentiable,
    )


_PAIR = normal((2, 3), (3,))

CASES = [
    *(_named(op, _PAIR) for op in ("divide", "multiply", "subtract", "true_divide")),
    *(_named(op, normal((2, 3))) for op in ("absolute", "fix", "negative", "ravel")),
    *(_named(op, _PAIR, differentiable=False) for op in ("greater", "greater_equal", "less", "less_equal")),
    _named("not_equal", _PAIR, differentiable=False),
    _named("clamp_max", normal((2, 3)), 0.3),
    _named("clamp_min", _PAIR),
    _named("moveaxis", normal((2, 3, 2)), 0, 2),
    _named("select", normal((2, 3, 2)), 1, -1),
    _named("swapdims", normal((2, 3, 2)), 0, 2),
    Case("add", "alpha", normal((3, 4), (4,)), lambda x, y: ops.add(x, y, alpha=-0.5),
         lambda t, x, y: t.add(x, y, alpha=-0.5)),
    Case("sub", "alpha", normal((3, 4), (4,)), lambda x, y: x.sub(y, alpha=2), lambda t, x, y: x.sub(y, alpha=2)),
    Case("div", "floor", uniform(-9.0, 9.0, (3, 4), (4,)), lambda x, y: ops.div(x, y, rounding_mode="floor"),
         lambda t, x, y: t.div(x, y, rounding_mode="floor")),
    Case("div", "trunc", uniform(-9.0, 9.0, (3, 4), (4,)), lambda x, y: ops.div(x, y, rounding_mode="trunc"),
         lambda t, x, y: t.div(x, y, rounding_mode="trunc")),
    *(Case("div", f"integers_{mode}", _integers((3, 4), (4,)), lambda x, y, m=mode: ops.div(x, y, rounding_mode=m),
           lambda t, x, y, m=mode: t.div(x, y, rounding_mode=m), differentiable=False) for mode in ("floor", "trunc")),
    Case("max", "pair", normal((3, 4), (4,)), lambda x, y: ops.max(x, y), lambda t, x, y: t.max(x, y)),
    Case("min", "pair", normal((3, 4), (3, 1)), lambda x, y: x.min(y), lambda t, x, y: t.min(x, y)),
    Case("clamp", "tensors", _bounds, lambda x, a, b: ops.clamp(x, a, b),
         lambda t, x, a, b: t.clamp(x, a, b)),
    Case("clamp", "tensor", normal((3, 4), (3, 4)), lambda x, a: x.clamp(min=a), lambda t, x, a: x.clamp(min=a)),
    Case("clip", "high", normal((3, 4), ()), lambda x, b: ops.clip(x, max=b), lambda t, x, b: t.clip(x, max=b)),
    Case("concat", "begun", normal((0,), (2, 3), (1, 3)), lambda *x: ops.concat(x), lambda t, *x: t.concat(x)),
    Case("concatenate", "nothing", normal((0,), (0,)), lambda *x: ops.concatenate(x), lambda t, *x: t.concatenate(x)),
    _pad("reflect", (2, 1), "reflect", 2, 3),
    _pad("reflect_images", (1, 1, 2, 0), "reflect", 2, 3, 4),
    _pad("replicate", (2, 3, 0, 1), "replicate", 2, 3, 2),
    _pad("circular", (2, 3), "circular", 2, 3),
    _pad("circular_images", (1, 1, 2, 2), "circular", 1, 2, 2, 3),
    *(_changed(op) for op in _ELEMENTWISE.split()),
    *(_changed(op) for op in ("ceil_", "floor_", "round_", "sign_", "tril_", "triu_")),
    _changed("clip_", 0.3, 0.8),
    _changed("cumsum_", 1),
    _changed("pow_", 1.5),
    *(_inplace(op) for op in ("relu", "elu", "leaky_relu", "selu", "celu", "hardtanh", "relu6")),
    *(_inplace(op) for op in ("hardswish", "silu", "mish")),
]
