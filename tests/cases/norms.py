"""Cases for minigrad/ops/norms.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal

_SHAPES = {
    "images": (3, 4, 5, 2),
    "vectors": (5, 4),
    "sequences": (3, 4, 5),
    "volumes": (2, 4, 2, 3, 2),
    "prime": (7, 4, 1, 1),
}
_LAYER = {
    "last": ((3, 4, 5), (5,)),
    "two": ((3, 4, 5), (4, 5)),
    "all": ((4, 5), (4, 5)),
    "vector": ((6,), (6,)),
    "one_element": ((3, 1), (1,)),
    "empty": ((0, 5), (5,)),
}


def _with_statistics(shape, affine):
    """x, a running mean and variance as integers (they are not differentiated), weight and bias."""

    def inputs(rng):
        floats = [np.asarray(rng.standard_normal(s)) for s in (shape, *[shape[1:2]] * affine)]
        return [floats[0], rng.integers(-2, 3, shape[1]), rng.integers(1, 4, shape[1]), *floats[1:]]

    return inputs


def _batch_norm(label, shape, training, affine=2, running=True, **options):
    def call(function, x, mean, var, *affine):
        statistics = (mean.to(x.dtype), var.to(x.dtype)) if running else (None, None)
        return function(x, *statistics, *affine, training=training, **options)

    return Case(
        "batch_norm",
        label,
        _with_statistics(shape, affine),
        lambda *a: call(ops.batch_norm, *a),
        lambda t, *a: call(t.nn.functional.batch_norm, *a),
    )


def _batch_norm_state(label, which, **options):
    """What becomes of the running statistics."""

    def updated(batch_norm, x, mean, var):
        statistics = (mean.to(x.dtype), var.to(x.dtype))
        batch_norm(x, *statistics, training=True, **options)
        return statistics[which]

    return Case(
        "batch_norm",
        label,
        _with_statistics((3, 4, 2, 2), 0),
        lambda *a: updated(ops.batch_norm, *a),
        lambda t, *a: updated(t.nn.functional.batch_norm, *a),
        differentiable=False,
    )


def _group_norm(label, shape, groups, affine=True, **options):
    shapes = (shape, shape[1:2], shape[1:2]) if affine else (shape,)
    return Case(
        "group_norm",
        label,
        normal(*shapes),
        lambda x, *affine: ops.group_norm(x, groups, *affine, **options),
        lambda t, x, *affine: t.nn.functional.group_norm(x, groups, *affine, **options),
    )


def _layer_norm(label, shape, normalized, parameters=2, **options):
    return Case(
        "layer_norm",
        label,
        normal(shape, *[normalized] * parameters),
        lambda x, *affine: ops.layer_norm(x, normalized, *affine, **options),
        lambda t, x, *affine: t.nn.functional.layer_norm(x, normalized, *affine, **options),
    )


CASES = (
    [_batch_norm(label, shape, training=True) for label, shape in _SHAPES.items()]
    + [_batch_norm(f"{label}_fixed", shape, training=False) for label, shape in _SHAPES.items()]
    + [
        _batch_norm("plain", (3, 4, 2, 3), training=True, affine=0),
        _batch_norm("plain_fixed", (3, 4, 2, 3), training=False, affine=0),
        _batch_norm("no_running", (3, 4, 2, 3), training=True, running=False),
        _batch_norm("eps", (3, 4, 2, 3), training=True, eps=0.5),
        _batch_norm("empty", (0, 4, 2, 3), training=True),
        _batch_norm("empty_fixed", (0, 4, 2, 3), training=False),
        _batch_norm_state("running_mean", 0),
        _batch_norm_state("running_var", 1, momentum=0.3),
    ]
    + [_group_norm(label, shape, 2) for label, shape in _SHAPES.items()]
    + [
        _group_norm("one_group", (2, 4, 3, 3), 1),
        _group_norm("instance", (2, 4, 3, 3), 4),
        _group_norm("plain", (2, 4, 3, 3), 2, affine=False),
        _group_norm("eps", (2, 4, 3, 3), 2, eps=0.5),
        _group_norm("empty", (0, 4, 3, 3), 2),
    ]
    + [_layer_norm(label, *case) for label, case in _LAYER.items()]
    + [
        _layer_norm("plain", (3, 4), (4,), parameters=0),
        _layer_norm("no_bias", (3, 4), (4,), parameters=1),
        _layer_norm("eps", (3, 4), (4,), eps=0.5),
        Case(
            "layer_norm",
            "no_weight",
            normal((3, 4), (4,)),
            lambda x, b: ops.layer_norm(x, 4, bias=b),
            lambda t, x, b: t.nn.functional.layer_norm(x, (4,), bias=b),
        ),
    ]
)
