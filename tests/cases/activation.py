"""Cases for minigrad/ops/activation.py."""

from minigrad import ops
from tests.cases.case import Case, normal, uniform

_SHAPES = {"scalar": (), "matrix": (3, 4), "empty": (0, 3)}
_INPUTS = {label: normal(shape) for label, shape in _SHAPES.items()} | {"large": uniform(-1000.0, 1000.0, (3, 4))}
_PARAMETERS = {
    "relu": [{}],
    "leaky_relu": [{}, {"negative_slope": 0.3}, {"negative_slope": 1.5}, {"negative_slope": -0.2}],
    "elu": [{}, {"alpha": 0.4}, {"alpha": -0.4}],
    "gelu": [{}, {"approximate": "tanh"}],
    "silu": [{}],
    "softplus": [{}, {"beta": 2.0, "threshold": 1.0}, {"beta": -0.5}],
}
_NEWER = {  # checked on fewer inputs
    "celu": [{}, {"alpha": 0.5}, {"alpha": -2.0}],
    "hardswish": [{}],
    "hardtanh": [{}, {"min_val": -0.3, "max_val": 2.0}],
    "logsigmoid": [{}],
    "mish": [{}],
    "relu6": [{}],
    "selu": [{}],
    "softshrink": [{}, {"lambd": 0.2}],
    "softsign": [{}],
    "tanhshrink": [{}],
}
_WIDE = {"scalar": normal(()), "wide": uniform(-9.0, 9.0, (2, 7)), "empty": normal((0, 3))}
_GLU = {"last": ((3, 4), -1), "first": ((4, 3), 0), "middle": ((2, 6, 3), 1), "empty": ((3, 0), 1)}
_PRELU = {
    "one": ((3, 4), (1,)),
    "channels": ((2, 3, 2), (3,)),
    "columns": ((4, 3), (3,)),
    "vector": ((5,), (1,)),
    "scalars": ((), ()),
    "empty": ((0, 3, 2), (3,)),
}
_SOFTMAX = {
    "scalar": (normal(()), 0),
    "vector": (normal((5,)), 0),
    "rows": (normal((3, 4)), 1),
    "columns": (normal((3, 4)), 0),
    "middle": (normal((2, 3, 4)), -2),
    "last_of_three": (normal((2, 3, 4)), -1),
    "large": (lambda rng: [1e4 * rng.standard_normal((3, 4))], 1),
    "all_large": (lambda rng: [1e4 + rng.standard_normal((3, 4))], 1),
    "no_rows": (normal((0, 3)), 1),
    "no_columns": (normal((3, 0)), 1),
}


def _activation(op, label, inputs, options):
    return Case(
        op,
        "-".join([label, *(f"{key}={value}" for key, value in options.items())]),
        inputs,
        lambda x: getattr(ops, op)(x, **options),
        lambda t, x: getattr(t.nn.functional, op)(x, **options),
    )


CASES = [
    _activation(op, label, inputs, options)
    for op, variants in _PARAMETERS.items()
    for options in variants
    for label, inputs in _INPUTS.items()
] + [
    Case(
        op,
        label,
        inputs,
        lambda x, op=op, dim=dim: getattr(ops, op)(x, dim),
        lambda t, x, op=op, dim=dim: getattr(t, op)(x, dim),
    )
    for op in ("softmax", "log_softmax")
    for label, (inputs, dim) in _SOFTMAX.items()
] + [
    _activation(op, label, inputs, options)
    for op, variants in _NEWER.items()
    for options in variants
    for label, inputs in _WIDE.items()
    if not options or label == "wide"
] + [
    Case(
        "glu",
        label,
        normal(shape),
        lambda x, dim=dim: ops.glu(x, dim),
        lambda t, x, dim=dim: t.nn.functional.glu(x, dim),
    )
    for label, (shape, dim) in _GLU.items()
] + [
    # in float64 the gradient of PyTorch's own has a sixth in float32
    Case("hardsigmoid", label, inputs, ops.hardsigmoid, lambda t, x: t.nn.functional.relu6(x + 3) / 6)
    for label, inputs in _WIDE.items()
] + [
    Case("prelu", label, normal(shape, weight), ops.prelu, lambda t, x, weight: t.nn.functional.prelu(x, weight))
    for label, (shape, weight) in _PRELU.items()
]
