"""Cases of operations of several families, which scripts write beside their layers."""

import numpy as np

from minigrad import ops
from tests.cases.case import Case, normal, uniform


def _rng():
    return np.random.Generator(np.random.Philox(3))


def _method(op, label, inputs, call, **options):
    return Case(op, label, inputs, call, lambda t, *tensors: call(*tensors), **options)


def _function(op, label, inputs, call, **options):
    """`call` gets the functions of one library or of the other first."""
    return Case(op, label, inputs, lambda *tensors: call(ops, *tensors), call, **options)


def _with_mask(shape, mask_shape, count, label):
    def draw(rng):
        mask = rng.random(mask_shape) < 0.5
        return [rng.standard_normal(shape), mask, rng.standard_normal(count)]

    return _method("masked_scatter", label, draw, lambda x, m, s: x.masked_scatter(m, s) * 2)


def _copied(shape, dim, index, source):
    return lambda rng: [rng.standard_normal(shape), np.asarray(index), rng.standard_normal(source)]


def _some_nan(rng):
    x = rng.standard_normal((3, 4))
    x[0, 1] = x[2] = np.nan
    return [x]


def _of_integers(*low_high):
    return lambda rng: [rng.integers(low, high, (3, 2)) for low, high in low_high]


_SHAPES = {"plain": ((4, 3), (4, 3)), "wide": ((2, 1, 3), (1, 3, 3)), "empty": ((0, 3), (0, 3))}

CASES = [
    _method("diag_embed", "batch", normal((2, 3)), lambda x: x.diag_embed()),
    _method("diag_embed", "above", normal((2, 3)), lambda x: x.diag_embed(1, 0, 2)),
    _method("diag_embed", "below", normal((2,)), lambda x: x.diag_embed(offset=-2)),
    _method("diag_embed", "empty", normal((2, 0)), lambda x: x.diag_embed(1)),
    *(_method("cross", label, normal(*shapes), lambda x, y: x.cross(y, dim=-1)) for label, shapes in _SHAPES.items()),
    _method("cross", "first", normal((2, 3), (2, 3)), lambda x, y: x.cross(y, dim=1)),
    _function("dist", "two", normal((2, 3), (3,)), lambda t, x, y: t.dist(x, y)),
    _function("dist", "one", normal((2, 3), (2, 3)), lambda t, x, y: t.dist(x, y, 1)),
    _function("cov", "rows", normal((3, 5)), lambda t, x: t.cov(x)),
    _function("cov", "one", normal((5,)), lambda t, x: t.cov(x, correction=0)),
    _function("corrcoef", "rows", normal((3, 5)), lambda t, x: t.corrcoef(x).tril(-1)),
    _function("corrcoef", "one", lambda rng: [np.arange(4.0)], lambda t, x: t.corrcoef(x), differentiable=False),
    _function("xlogy", "plain", uniform(0.5, 2.0, (2, 3), (3,)), lambda t, x, y: t.xlogy(x, y)),
    _function("xlogy", "zero", lambda rng: [np.array([0.0, 0.0, 0.0, 2.0]), np.array([0.0, np.nan, 3.0, 0.0])],
              lambda t, x, y: t.xlogy(x, y), differentiable=False),
    _function("xlogy", "int", lambda rng: [np.array([0, 2]), np.array([0, 3])], lambda t, x, y: t.xlogy(x, y).sum(),
              differentiable=False),
    _method("nansum", "axis", _some_nan, lambda x: x.nansum(1), differentiable=False),
    _method("nansum", "none", normal((2, 3)), lambda x: x.nansum(0, True)),
    _method("nansum", "int", lambda rng: [rng.integers(0, 9, (2, 3))], lambda x: x.nansum(), differentiable=False),
    _method("nanmean", "axis", _some_nan, lambda x: x.nanmean(1), differentiable=False),
    _method("nanmean", "none", normal((2, 3)), lambda x: x.nanmean()),
    _with_mask((3, 4), (3, 4), (20,), "plain"),
    _with_mask((3, 4), (4,), (4, 4), "row"),
    _with_mask((4,), (3, 4), (14,), "wide"),
    _with_mask((0, 4), (0, 4), (2,), "empty"),
    _method("index_copy", "rows", _copied((3, 4), 0, [2, 0], (2, 4)), lambda x, i, s: x.index_copy(0, i, s)),
    _method("index_copy", "columns", _copied((2, 3, 2), 1, [1], (2, 1, 2)), lambda x, i, s: x.index_copy(1, i, s)),
    _method("index_copy", "empty", _copied((3, 4), 0, np.zeros(0, int), (0, 4)), lambda x, i, s: x.index_copy(0, i, s)),
    *(_function("rot90", f"times_{k}", normal((2, 3)), lambda t, x, k=k: t.rot90(x, k, (0, 1))) for k in (0, 1, 2, 3)),
    _function("rot90", "other", normal((2, 3, 4)), lambda t, x: t.rot90(x, 5, (2, 0))),
    _function("bitwise_left_shift", "plain", _of_integers((-9, 9), (-2, 70)), lambda t, x, y: x << y,
              differentiable=False),
    _function("bitwise_left_shift", "number", _of_integers((-9, 9)), lambda t, x: t.bitwise_left_shift(x, 3),
              differentiable=False),
    _function("bitwise_right_shift", "plain", _of_integers((-99, 99), (-2, 70)), lambda t, x, y: x >> y,
              differentiable=False),
    _function("bitwise_right_shift", "number", _of_integers((-99, 99)), lambda t, x: t.bitwise_right_shift(x, 2),
              differentiable=False),
    _function("addmm", "beta_0", normal((4,), (2, 3), (3, 4)), lambda t, x, a, b: t.addmm(x, a, b, beta=0)),
    *(Case("pixel_shuffle", label, normal(shape), lambda x: ops.pixel_shuffle(x, 2),
           lambda t, x: t.nn.functional.pixel_shuffle(x, 2))
      for label, shape in {"batch": (2, 8, 2, 3), "one": (4, 1, 2)}.items()),  # of none PyTorch's gradient raises
    *(Case("pixel_unshuffle", label, normal(shape), lambda x: ops.pixel_unshuffle(x, 2),
           lambda t, x: t.nn.functional.pixel_unshuffle(x, 2))
      for label, shape in {"batch": (2, 2, 2, 4), "one": (1, 2, 2)}.items()),
    Case("gumbel_softmax", "soft", normal((2, 3)), lambda x: ops.gumbel_softmax(x, 0.5, rng=_rng()),
         lambda t, x: t.softmax((x + t.tensor(_rng().gumbel(size=(2, 3))).to(x.dtype)) / 0.5, -1)),
    Case("gumbel_softmax", "first", normal((2, 3)), lambda x: ops.gumbel_softmax(x, dim=0, rng=_rng()),
         lambda t, x: t.softmax(x + t.tensor(_rng().gumbel(size=(2, 3))).to(x.dtype), 0)),
    _method("fill_diagonal_", "wide", normal((2, 3)), lambda x: (x * 2).fill_diagonal_(1.5) * 3),
    _method("index_copy_", "rows", _copied((3, 4), 0, [2, 0], (2, 4)), lambda x, i, s: (x * 2).index_copy_(0, i, s)),
    _method("masked_scatter_", "plain",
            lambda rng: [rng.standard_normal(4), np.arange(4) % 2 == 0, rng.standard_normal(2)],
            lambda x, m, s: (x * 2).masked_scatter_(m, s) * 3),
    _method("nan_to_num_", "plain", normal((3,)), lambda x: (x * 2).nan_to_num_()),
]
