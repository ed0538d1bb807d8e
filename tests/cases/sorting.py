"""Cases for minigrad/ops/sorting.py."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal

_AXES = {"last": ((3, 5), -1), "first": ((5, 3), 0), "middle": ((2, 4, 3), 1), "scalar": ((), 0), "empty": ((0, 3), 1)}


def _few(shape):
    """Few different values, so that many are equal."""
    return lambda rng: [np.asarray(rng.integers(0, 3, shape).astype(float))]


def _integers(shape):
    return lambda rng: [np.asarray(rng.permutation(int(np.prod(shape))).reshape(shape))]


def _special(rng):
    return [np.array([[2.0, np.nan, -np.inf, 1.0, np.inf], [0.0, 1.0, -1.0, 3.0, 2.0]])]


def _parts(op, label, inputs, call, **options):
    """The values and the indices of one call as a case each."""

    def part(name, tensor):
        found = getattr(call(tensor), name)
        return found if name == "indices" else found * 2

    return [
        Case(op, f"{label}-{name}", inputs, lambda x, n=name: part(n, x), lambda t, x, n=name: part(n, x),
             **{"differentiable": name == "values"} | options)
        for name in ("values", "indices")
    ]


CASES = (
    [case for label, (shape, dim) in _AXES.items()
     for case in _parts("sort", label, normal(shape), lambda x, d=dim: x.sort(d))]
    + _parts("sort", "descending", normal((3, 5)), lambda x: x.sort(descending=True))
    + _parts("sort", "int", _integers((3, 5)), lambda x: x.sort(0, True), differentiable=False)
    + _parts("sort", "ties", _few((3, 9)), lambda x: x.sort(dim=1, stable=True), differentiable=False)
    + _parts("sort", "ties_down", _few((9, 3)), lambda x: x.sort(dim=0, descending=True, stable=True),
             differentiable=False)
    + _parts("sort", "special", _special, lambda x: x.sort(), differentiable=False)
    + _parts("sort", "special_down", _special, lambda x: x.sort(descending=True), differentiable=False)
    + [
        Case("argsort", label, inputs, call, lambda t, x, call=call: call(x), differentiable=False)
        for label, inputs, call in (
            ("plain", normal((3, 5)), lambda x: x.argsort()),
            ("ties", _few((9, 3)), lambda x: x.argsort(dim=0, descending=True, stable=True)),
            ("bool", lambda rng: [rng.random((2, 7)) < 0.5], lambda x: x.argsort(dim=1, stable=True)),
        )
    ]
    + [case for label, (shape, dim) in _AXES.items() if label != "empty"
       for case in _parts("topk", label, normal(shape), lambda x, d=dim: x.topk(1 if x.ndim == 0 else 2, d))]
    + _parts("topk", "smallest", normal((3, 5)), lambda x: x.topk(3, largest=False))
    + _parts("topk", "all", normal((3, 4)), lambda x: x.topk(4, 1))
    + _parts("topk", "none", normal((3, 4)), lambda x: x.topk(0, 1))
    + _parts("topk", "special", _special, lambda x: x.topk(3), differentiable=False)
    + [case for label, (shape, dim) in _AXES.items()
       for case in _parts("median", label, normal(shape), lambda x, d=dim: x.median(d))]
    + _parts("median", "keepdim", normal((3, 5)), lambda x: x.median(0, keepdim=True))
    + _parts("median", "special", _special, lambda x: x.median(1), differentiable=False)
    + _parts("median", "int", _integers((3, 4)), lambda x: x.median(1), differentiable=False)
    + [
        Case("median", label, inputs, lambda x: ops.median(x), lambda t, x: t.median(x), differentiable=smooth)
        for label, inputs, smooth in (("all", normal((3, 5)), True), ("all_ties", _few((3, 5)), False))
    ]
)
