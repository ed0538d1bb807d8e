"""What the operations that order, count, contract and draw refuse."""

import numpy as np

from minigrad import Tensor, ops
from minigrad.errors import ArgumentError, ShapeError
from tests.refusals import each

X = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))

ROWS = [
    # sorting
    *each(
        (lambda name: getattr(ops, name)(X, dim=2), ShapeError, r"^%s: expected an axis in \[-2, 2\), got 2"),
        *["sort", "argsort", "median"],
    ),
    (lambda: ops.sort(X, descending=1), ArgumentError, "sort: expected descending to be True or False, got 1"),
    (lambda: ops.argsort(X, stable=None), ArgumentError, "argsort: expected stable to be True or False, got None"),
    (lambda: ops.topk(X, 2, 2), ShapeError, r"topk: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.topk(X, 4), ArgumentError, r"topk: expected k to be an integer in \[0, 4\), got 4"),
    (lambda: ops.topk(X, 1.0), ArgumentError, r"topk: expected k to be an integer"),
    (lambda: ops.topk(X, 1, largest=0), ArgumentError, "topk: expected largest to be True or False, got 0"),
    (lambda: ops.median(X, 0, 1), ArgumentError, "median: expected keepdim to be True or False, got 1"),
    (lambda: ops.median(Tensor(np.ones((2, 0))), 1), ShapeError, r"median: expected at least one .* \(2, 0\)"),
]
