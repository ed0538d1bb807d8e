"""What operations of several families refuse, which scripts write beside their layers: diag_embed, cross and others."""

import numpy as np

from minigrad import Tensor, ops
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError
from tests.refusals import each

X = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
N, ROW, S = Tensor(np.arange(6).reshape(2, 3)), Tensor(np.array([0, 1])), Tensor(np.asarray(1.0, np.float32))


def named(name):
    return getattr(ops, name)


ROWS = [
    (lambda: ops.diag_embed(S), ShapeError, r"^diag_embed: expected at least one axis, got shape \(\)"),
    (lambda: ops.diag_embed(X, 0, 1, -2), ShapeError, r"^diag_embed: expected two different axes .* \(2, 3\), got 1"),
    (lambda: ops.diag_embed(X, 0, 3), ShapeError, r"^diag_embed: expected an axis in \[-3, 3\), got 3"),
    (lambda: ops.diag_embed(X, 0.5), DtypeError, "^diag_embed: expected an integer offset"),
    (lambda: ops.cross(X, X, 0), ShapeError, r"^cross: expected an axis of length 3, got \(2, 3\) and \(2, 3\), dim=0"),
    (lambda: ops.cross(X[:, :2], X[:, :2]), ShapeError, r"^cross: expected an axis of length 3, got \(2, 2\)"),
    (lambda: ops.cross(X, X[:, :2]), ShapeError, r"^cross: expected shapes that broadcast, got \(2, 3\) and \(2, 2\)"),
    (lambda: ops.dist(X, X, "two"), ArgumentError, "^dist: expected p to be a number, got 'two'"),
    (lambda: ops.dist(X, X[:, :2]), ShapeError, r"^sub: expected shapes that broadcast"),
    *each((lambda name: named(name)(X[None]), ShapeError, r"^%s: expected a matrix .*, got shape \(1, 2, 3\)"),
          *["cov", "corrcoef"]),
    *each((lambda name: named(name)(N), DtypeError, "^%s: expected a float tensor, got int64"),
          *["cov", "corrcoef", "nanmean", "gumbel_softmax"]),
    (lambda: ops.cov(X, correction=0.5), ArgumentError, "^cov: expected correction to be an integer, got 0.5"),
    (lambda: ops.xlogy(X, X[:, :2]), ShapeError, r"^xlogy: expected shapes that broadcast, got \(2, 3\) and \(2, 2\)"),
    (lambda: ops.nansum(X, 2), ShapeError, r"^nansum: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.masked_scatter(X, N, X), DtypeError, "^masked_scatter: expected a bool mask, got int64"),
    (lambda: ops.masked_scatter(X, N > 1, N), DtypeError, "^masked_scatter: expected a source of float32, got int64"),
    (lambda: ops.masked_scatter(X, N > 1, X[0]), IndexRangeError, r"^masked_scatter: .* in \[0, 4\)"),
    (lambda: ops.masked_scatter(X, ROW > 0, X), ShapeError, r"^masked_scatter: expected shapes that broadcast"),
    (lambda: ops.index_copy(X, 0, ROW, X[:1]), ShapeError, r"^index_copy: expected x .* \(2,\) and \(1, 3\)"),
    (lambda: ops.index_copy(X, 0, ROW + 1, X), IndexRangeError, r"^index_copy: expected indexes in \[0, 2\), got"),
    (lambda: ops.index_copy(X, 0, ROW, N), DtypeError, "^index_copy: expected a source of float32, got int64"),
    (lambda: ops.rot90(X, 0.5), ArgumentError, "^rot90: expected k to be an integer, got 0.5"),
    (lambda: ops.rot90(X, 1, (0,)), ShapeError, r"^rot90: expected dims to be two axes, got \(0,\)"),
    (lambda: ops.rot90(X, 1, (0, -2)), ShapeError, r"^rot90: expected two different axes of \(2, 3\), got \(0, -2\)"),
    *each((lambda name: named(name)(X, 1), DtypeError, r"^%s: expected integers, got float32 \(2, 3\)"),
          *["bitwise_left_shift", "bitwise_right_shift"]),
    *each((lambda name: named(name)(N, ROW), ShapeError, r"^%s: expected shapes that broadcast, got \(2, 3\) and"),
          *["bitwise_left_shift", "bitwise_right_shift"]),
    (lambda: ops.pixel_shuffle(X[None], 2), ShapeError, r"^pixel_shuffle: expected x .*C·2·2, H, W\), got"),
    (lambda: ops.pixel_shuffle(X[None], 0), ArgumentError, "^pixel_shuffle: expected upscale_factor >= 1, got 0"),
    (lambda: ops.pixel_unshuffle(X[None], 2), ShapeError, r"^pixel_unshuffle: expected x .*, got \(1, 2, 3\)"),
    (lambda: ops.pixel_unshuffle(X, 0), ArgumentError, "^pixel_unshuffle: expected downscale_factor >= 1, got 0"),
    (lambda: ops.gumbel_softmax(X, 0), ArgumentError, "^gumbel_softmax: expected tau > 0, .* got tau=0"),
    (lambda: ops.gumbel_softmax(X, eps=1), ArgumentError, "^gumbel_softmax: expected tau > 0, and eps as it is"),
    (lambda: ops.gumbel_softmax(X, hard=1), ArgumentError, "^gumbel_softmax: expected hard to be True or False"),
    (lambda: ops.gumbel_softmax(X, dim=2), ShapeError, r"^gumbel_softmax: expected an axis in \[-2, 2\), got 2"),
    (lambda: S.clone().fill_diagonal_(1), ShapeError, r"^fill_diagonal_: expected a matrix, got shape \(\)"),
    (lambda: X.clone().exponential_(0), ArgumentError, "^exponential_: expected lambd > 0, got 0"),
    (lambda: N.clone().exponential_(), DtypeError, "^exponential_: expected a float tensor, got int64"),
]
