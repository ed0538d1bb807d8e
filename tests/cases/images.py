"""Cases for minigrad/ops/interpolate.py, for instance_norm, and what cuts at a threshold."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal

_INTERPOLATE = {
    "nearest": ((2, 3, 2, 3), {"scale_factor": 2}),
    "nearest_smaller": ((1, 2, 5, 7), {"size": (2, 3)}),
    "nearest_row": ((2, 2, 4), {"size": 7}),
    "nearest_exact": ((1, 2, 5, 4), {"size": (3, 6), "mode": "nearest-exact"}),
    "factors": ((1, 2, 5, 4), {"scale_factor": (1.7, 0.6), "mode": "bilinear"}),
    "recomputed": ((1, 2, 5, 4), {"scale_factor": 1.7, "mode": "bilinear", "recompute_scale_factor": True}),
    "linear": ((2, 2, 5), {"scale_factor": 2.5, "mode": "linear"}),
    "bilinear": ((2, 2, 3, 4), {"size": (7, 2), "mode": "bilinear"}),
    "bilinear_corners": ((1, 2, 3, 4), {"size": (5, 1), "mode": "bilinear", "align_corners": True}),
    "bicubic": ((1, 2, 4, 5), {"size": (7, 3), "mode": "bicubic"}),
    "bicubic_corners": ((1, 1, 4, 2), {"size": 5, "mode": "bicubic", "align_corners": True}),
    "area": ((1, 2, 5, 4), {"size": 3, "mode": "area"}),
    "area_row": ((1, 2, 5), {"scale_factor": 0.7, "mode": "area"}),
    "empty_batch": ((0, 2, 3, 3), {"size": 4}),
}


def _interpolate(label, shape, options):
    return Case(
        "interpolate",
        label,
        normal(shape),
        lambda x: ops.interpolate(x, **options),
        lambda t, x: t.nn.functional.interpolate(x, **options),
    )


def _instance_norm(label, shape, affine=True, **options):
    shapes = (shape, shape[1:2], shape[1:2]) if affine else (shape,)
    return Case(
        "instance_norm",
        label,
        normal(*shapes),
        lambda x, *affine: ops.instance_norm(x, None, None, *affine, **options),
        lambda t, x, *affine: t.nn.functional.instance_norm(x, None, None, *affine, **options),
    )


def _running(label, which, use_input_stats=True):
    """With running statistics, as integers since they are not differentiated: the output, or what became of one."""

    def inputs(rng):
        floats = [np.asarray(rng.standard_normal(s)) for s in ((3, 4, 2, 2), (4,))]
        return [floats[0], rng.integers(-2, 3, 4), rng.integers(1, 4, 4), floats[1]]

    def call(function, x, mean, var, weight):
        statistics = (mean.to(x.dtype), var.to(x.dtype))
        y = function(x, *statistics, weight, use_input_stats=use_input_stats, momentum=0.3)
        return y if which is None else statistics[which]

    return Case(
        "instance_norm",
        label,
        inputs,
        lambda *a: call(ops.instance_norm, *a),
        lambda t, *a: call(t.nn.functional.instance_norm, *a),
        differentiable=which is None,
    )


def _plain(op, label, inputs, *arguments):
    return Case(
        op,
        label,
        inputs,
        lambda x: getattr(ops, op)(x, *arguments),
        lambda t, x: getattr(t.nn.functional, op)(x, *arguments),
    )


CASES = [
    *[_interpolate(label, *case) for label, case in _INTERPOLATE.items()],
    _instance_norm("images", (2, 3, 4, 2)),
    _instance_norm("sequences", (2, 3, 5)),
    _instance_norm("plain", (2, 3, 3, 2), affine=False, eps=0.5),
    _running("running_mean", 0),
    _running("running_var", 1),
    _running("fixed", None, use_input_stats=False),
    _plain("threshold", "plain", normal((3, 4)), 0.2, -1.0),
    _plain("hardshrink", "plain", normal((3, 4))),
    _plain("hardshrink", "narrow", normal((3, 4)), 0.1),
    _plain("softmin", "middle", normal((2, 3, 4)), 1),
]
