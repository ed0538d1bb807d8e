"""Cases for minigrad/ops/diagonal.py."""

from tests.cases.case import Case, normal


def _both(op, label, shape, call):
    return Case(op, label, normal(shape), call, lambda t, x: call(x))


CASES = [
    _both("diagonal", "square", (3, 3), lambda x: x.diagonal() * 2),
    _both("diagonal", "above", (3, 5), lambda x: x.diagonal(2)),
    _both("diagonal", "below", (4, 3), lambda x: x.diagonal(offset=-1)),
    _both("diagonal", "beyond", (2, 3), lambda x: x.diagonal(3)),
    _both("diagonal", "batch", (2, 3, 4), lambda x: x.diagonal(dim1=-2, dim2=-1)),
    _both("diagonal", "crossed", (2, 3, 4), lambda x: x.diagonal(1, 2, 0)),
    _both("diagonal", "twice", (3, 3), lambda x: x.diagonal() + x.diagonal(1).sum() + x[0]),
    _both("diag", "vector", (3,), lambda x: x.diag()),
    _both("diag", "above", (3,), lambda x: x.diag(1)),
    _both("diag", "below", (2,), lambda x: x.diag(diagonal=-2)),
    _both("diag", "matrix", (3, 4), lambda x: x.diag()),
    _both("diag", "matrix_below", (3, 4), lambda x: x.diag(-1)),
    _both("diag", "empty", (0,), lambda x: x.diag()),
    _both("trace", "square", (3, 3), lambda x: x.trace()),
    _both("trace", "wide", (2, 4), lambda x: x.trace()),
    _both("trace", "empty", (0, 3), lambda x: x.trace()),
]
