"""Cases for minigrad/ops/losses.py and minigrad/ops/entropy.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal

_REDUCTIONS = ("mean", "sum", "none")
_DIFFERENCE = {
    "mse_loss": {},
    "l1_loss": {},
    "huber_loss": {"delta": 0.7},
    "smooth_l1_loss": {"beta": 0.7},
}
_INPUTS = {"vector": (4,), "rows": (5, 4), "sequences": (3, 4, 2), "images": (2, 3, 2, 3), "empty": (0, 3)}


def _call(op, inputs, label, **options):
    """The same call on both sides. Weights are drawn as integers: they are not differentiated."""

    def call(function, *a):
        *a, weight = a
        return function(*a, weight=weight.to(a[0].dtype), **options) if "weighted" in label else function(*a, **options)

    return Case(
        op,
        label,
        inputs,
        lambda *a: call(getattr(ops, op), *a),
        lambda t, *a: call(getattr(t.nn.functional, op), *a),
    )


def _label_shape(shape):
    return shape[:-1] if len(shape) < 3 else (shape[0], *shape[2:])


def _labelled(shape, ignored=None):
    """Logits, labels, some of which are `ignored`, and a weight for each class."""

    def inputs(rng):
        classes = shape[min(1, len(shape) - 1)]
        labels = np.asarray(rng.integers(0, classes, _label_shape(shape)))
        if ignored is not None:
            labels = np.where(rng.random(labels.shape) < 0.4, ignored, labels)
            labels.reshape(-1)[:1] = ignored
        return [np.asarray(rng.standard_normal(shape)), labels, rng.integers(1, 5, classes)]

    return inputs


def _probable(shape):
    """Logits, probabilities, and a weight for each class."""

    def inputs(rng):
        axis = min(1, len(shape) - 1)
        odds = rng.uniform(0.1, 1.0, shape)
        weight = rng.integers(1, 5, shape[axis])
        return [np.asarray(rng.standard_normal(shape)), odds / odds.sum(axis=axis, keepdims=True), weight]

    return inputs


def _all_ignored(rng):
    return [np.asarray(rng.standard_normal((3, 4))), np.full(3, -100), np.arange(4)]


def _binary(rng):
    """Logits of both signs, some far out, targets in (0, 1), weights of elements and of columns."""
    return [
        rng.standard_normal((5, 3)) * 10,
        rng.uniform(0.05, 0.95, (5, 3)),
        rng.integers(0, 4, (5, 3)),
        rng.integers(1, 5, 3),
    ]


def _bce(label, weight, pos_weight, **options):
    def call(function, x, t, w, p):
        w, p = w.to(x.dtype) if weight else None, p.to(x.dtype) if pos_weight else None
        return function(x, t, weight=w, pos_weight=p, **options)

    op = "binary_cross_entropy_with_logits"
    return Case(
        op, label, _binary, lambda *a: call(getattr(ops, op), *a), lambda t, *a: call(getattr(t.nn.functional, op), *a)
    )


def _difference(op, label, shape, **options):
    return Case(
        op,
        label,
        normal(shape, shape),
        lambda x, y: getattr(ops, op)(x, y, **options),
        lambda t, x, y: getattr(t.nn.functional, op)(x, y, **options),
    )


CASES = (
    [
        _call("cross_entropy", _labelled(shape), f"{label}_{reduction}", reduction=reduction)
        for label, shape in _INPUTS.items()
        for reduction in _REDUCTIONS
        if (label, reduction) != ("empty", "mean")
    ]
    + [
        _call(
            "cross_entropy",
            _labelled((6, 4, 2), ignored=2),
            f"{weighted}_{reduction}_{smoothing}",
            reduction=reduction,
            ignore_index=2,
            label_smoothing=smoothing,
        )
        for weighted in ("weighted", "plain")
        for reduction in _REDUCTIONS
        for smoothing in (0.0, 0.3)
    ]
    + [
        _call("cross_entropy", _labelled((6, 4)), "smoothed", label_smoothing=0.2),
        _call("cross_entropy", _labelled((6, 4)), "only_smoothed", label_smoothing=1.0),
        _call("cross_entropy", _labelled((6, 1)), "one_class"),
        _call("cross_entropy", _labelled((6, 4), ignored=-100), "ignored"),
        _call("cross_entropy", _all_ignored, "all_ignored_sum", reduction="sum"),
        _call("cross_entropy", _all_ignored, "all_ignored_weighted", reduction="sum"),
    ]
    + [
        _call("cross_entropy", _probable(shape), f"probable_{label}_{reduction}", reduction=reduction)
        for label, shape in _INPUTS.items()
        for reduction in _REDUCTIONS
        if (label, reduction) != ("empty", "mean")
    ]
    + [
        _call("cross_entropy", _probable((3, 4, 2)), f"probable_weighted_{r}", reduction=r, label_smoothing=0.3)
        for r in _REDUCTIONS
    ]
    + [
        _call("nll_loss", _labelled((3, 4, 2), ignored=1), f"{weighted}_{r}", reduction=r, ignore_index=1)
        for weighted in ("weighted", "plain")
        for r in _REDUCTIONS
    ]
    + [_call("nll_loss", _labelled(shape), label, reduction="sum") for label, shape in _INPUTS.items()]
    + [
        _difference(op, f"{label}_{reduction}", shape, reduction=reduction, **options)
        for op, options in _DIFFERENCE.items()
        for reduction in _REDUCTIONS
        for label, shape in {"matrix": (3, 4), "scalar": (), "empty": (0, 2)}.items()
        if (label, reduction) != ("empty", "mean")
    ]
    + [_difference("smooth_l1_loss", "no_beta", (3, 4), beta=0.0)]
    + [
        _bce(f"{reduction}_{weight:d}{pos_weight:d}", weight, pos_weight, reduction=reduction)
        for reduction in _REDUCTIONS
        for weight in (False, True)
        for pos_weight in (False, True)
    ]
)
