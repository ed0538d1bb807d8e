"""Cases for minigrad/ops/linalg.py."""

from minigrad import ops
from tests.cases.case import Case, normal

_MATMUL = {
    "matrices": ((3, 4), (4, 5)),
    "dot": ((4,), (4,)),
    "row": ((4,), (4, 5)),
    "column": ((3, 4), (4,)),
    "batch_left": ((2, 3, 4), (4, 5)),
    "batch_right": ((3, 4), (2, 4, 5)),
    "batch_column": ((2, 3, 4), (4,)),
    "batch_row": ((4,), (2, 4, 5)),
    "batch_broadcast": ((2, 1, 3, 4), (5, 4, 2)),
    "empty": ((0, 4), (4, 5)),
}
_LINEAR = {
    "plain": ((3, 4), (5, 4), (5,)),
    "no_bias": ((3, 4), (5, 4)),
    "vector": ((4,), (5, 4), (5,)),
    "batch": ((2, 3, 4), (5, 4), (5,)),
    "empty": ((0, 4), (5, 4), (5,)),
}

CASES = [
    Case("matmul", label, normal(*shapes), ops.matmul, lambda t, x, y: x @ y) for label, shapes in _MATMUL.items()
] + [
    Case("linear", label, normal(*shapes), ops.linear, lambda t, *a: t.nn.functional.linear(*a))
    for label, shapes in _LINEAR.items()
]
