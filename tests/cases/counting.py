"""Cases for minigrad/ops/counting.py and lookup.py, and those of compare.py that are of whole tensors."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal

_SPECIAL = np.array([1.0, np.inf, -np.inf, np.nan, 0.0, 2.0, np.nan, np.inf])
_NEAR = np.array([1.0 + 1e-6, np.inf, np.inf, np.nan, 1e-9, 2.1, 0.0, 1e30])
_AXES = {"all": None, "rows": 0, "columns": -1, "both": (0, 1)}


def _both(op, label, inputs, call, **options):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors), **options)


def _few(*shapes):
    """Few different integers as floats, zeros among them."""
    return lambda rng: [np.asarray(rng.integers(-1, 2, shape).astype(float)) for shape in shapes]


def _masked(mask_shape, shape):
    return lambda rng: [np.asarray(rng.standard_normal(shape)), np.asarray(rng.random(mask_shape) < 0.5)]


def _said(op, label, inputs, call):
    """A Python bool as a tensor, where the inputs are."""
    return _both(op, label, inputs, lambda x, *others: (x != x).sum() * 0 + int(call(x, *others)), differentiable=False)


CASES = [
    *(_both("nonzero", label, _few(shape), lambda x: x.nonzero(), differentiable=False)
      for label, shape in {"vector": (7,), "matrix": (3, 4), "scalar": (), "empty": (0, 3)}.items()),
    _both("nonzero", "tuple", _few((3, 4)), lambda x: x.nonzero(as_tuple=True)[1], differentiable=False),
    _both("nonzero", "tuple_scalar", lambda rng: [np.asarray(2.0)], lambda x: x.nonzero(as_tuple=True)[0],
          differentiable=False),
    Case("where", "alone", _few((3, 4)), lambda x: ops.where(x > 0)[0], lambda t, x: t.where(x > 0)[0],
         differentiable=False),
    Case("argwhere", "few", _few((3, 4)), ops.argwhere, lambda t, x: t.argwhere(x),
         differentiable=False),
    *(_both("count_nonzero", label, _few((3, 4)), lambda x, d=dim: x.count_nonzero(d), differentiable=False)
      for label, dim in _AXES.items()),
    _both("masked_select", "same", _masked((3, 4), (3, 4)), lambda x, m: x.masked_select(m)),
    _both("masked_select", "rows", _masked((3, 1), (3, 4)), lambda x, m: x.masked_select(m)),
    _both("masked_select", "wider", _masked((2, 3), (3,)), lambda x, m: x.masked_select(m)),
    *(Case("unique", label, _few(shape), ops.unique, lambda t, x: t.unique(x.detach()), differentiable=False)
      for label, shape in {"matrix": (3, 4), "scalar": (), "empty": (0,)}.items()),
    Case("unique", "special", lambda rng: [_SPECIAL], lambda x: ops.unique(x), lambda t, x: t.unique(x.detach()),
         differentiable=False),
    *(Case("unique", label, _few((3, 4)), lambda x, i=i: ops.unique(x, return_inverse=True, return_counts=True)[i],
           lambda t, x, i=i: t.unique(x.detach(), return_inverse=True, return_counts=True)[i], differentiable=False)
      for i, label in enumerate(("values", "inverse", "counts"))),
    *(Case("unique", f"dim-{label}", _few((9, 2)), lambda x, i=i: ops.unique(x, True, True, True, 0)[i],
           lambda t, x, i=i: t.unique(x.detach(), True, True, True, 0)[i], differentiable=False)
      for i, label in enumerate(("values", "inverse", "counts"))),
    *(_both("bincount", label, lambda rng, n=n: [rng.integers(0, 5, n)], lambda x, m=m: x.bincount(minlength=m),
            differentiable=False) for label, n, m in (("plain", 9, 0), ("longer", 9, 8), ("empty", 0, 2))),
    Case("bincount", "weights", lambda rng: [rng.integers(0, 5, 9), rng.standard_normal(9)],
         lambda x, w: ops.bincount(x, w.detach()), lambda t, x, w: t.bincount(x, w.detach()), differentiable=False),
    *(_both("isclose", label, inputs, call, differentiable=False) for label, inputs, call in (
        ("special", lambda rng: [_SPECIAL, _NEAR], lambda x, y: x.isclose(y)),
        ("nan", lambda rng: [_SPECIAL, _NEAR], lambda x, y: x.isclose(y, equal_nan=True)),
        ("far", lambda rng: [_SPECIAL, _NEAR], lambda x, y: x.isclose(y, rtol=0.1, atol=0)),
        ("broadcast", _few((3, 1), (4,)), lambda x, y: x.isclose(y)),
        ("int", lambda rng: [np.array([1, 2, 100]), np.array([1, 3, 101])], lambda x, y: x.isclose(y, rtol=0.02)),
    )),
    _both("take", "matrix", lambda rng: [rng.standard_normal((3, 4)), rng.integers(-12, 12, (2, 5))],
          lambda x, i: x.take(i)),
    _both("take", "scalar", lambda rng: [rng.standard_normal(()), np.array([0, -1])], lambda x, i: x.take(i)),
    *(Case("isin", label, inputs, lambda x, y, i=i: ops.isin(x, y, invert=i),
           lambda t, x, y, i=i: t.isin(x, y, invert=i), differentiable=False)
      for label, i, inputs in (("plain", False, _few((3, 4), (2,))), ("not", True, _few((4,), (1, 2))),
                               ("int", False, lambda rng: [rng.integers(0, 5, (2, 3)), np.array([1, 4])]))),
    *(Case("searchsorted", f"{label}-{side}", lambda rng, s=shape: [np.arange(-1, 2) / 1.0, *_few(s)(rng)],
           lambda line, x, s=side: ops.searchsorted(line, x, side=s),
           lambda t, line, x, s=side: t.searchsorted(line, x, side=s), differentiable=False)
      for side in ("left", "right") for label, shape in {"matrix": (3, 4), "empty": (0,)}.items()),
    Case("searchsorted", "rows", lambda rng: [np.sort(rng.standard_normal((2, 5))), *normal((2, 3))(rng)],
         lambda line, x: ops.searchsorted(line, x, out_int32=True),
         lambda t, line, x: t.searchsorted(line, x, out_int32=True), differentiable=False),
    Case("bucketize", "right", lambda rng: [*_few((3, 4))(rng), np.arange(-1, 2) / 1.0],
         lambda x, b: ops.bucketize(x, b, right=True), lambda t, x, b: t.bucketize(x, b, right=True),
         differentiable=False),
    _said("allclose", "yes", lambda rng: [np.ones((2, 3)), np.full((2, 3), 1 + 1e-7)], lambda x, y: x.allclose(y)),
    _said("allclose", "no", lambda rng: [_SPECIAL, _SPECIAL.copy()], lambda x, y: x.allclose(y)),
    _said("allclose", "nan", lambda rng: [_SPECIAL, _SPECIAL.copy()], lambda x, y: x.allclose(y, equal_nan=True)),
    _said("allclose", "empty", normal((0, 3), (0, 3)), lambda x, y: x.allclose(y)),
    _said("equal", "yes", lambda rng: [np.ones((2, 3)), np.ones((2, 3))], lambda x, y: x.equal(y)),
    _said("equal", "no", lambda rng: [_SPECIAL, _SPECIAL.copy()], lambda x, y: x.equal(y)),
    _said("equal", "shape", lambda rng: [np.ones((2, 3)), np.ones(3)], lambda x, y: x.equal(y)),
]
