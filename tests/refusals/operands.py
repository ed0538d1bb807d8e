"""What every operation refuses of its operands: another type, dtypes that differ, shapes that do not fit."""

import numpy as np

import minigrad
from minigrad import Tensor, ops
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError
from tests.refusals import each

X, OTHER = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((2, 4), np.float32))
ROW = Tensor(np.array([0, 1]))
_OF_ONE = """
    any bitwise_not clone contiguous cos elu erf exp expm1 hardsigmoid hardswish isfinite isinf isnan leaky_relu log
    log1p logical_not logsigmoid matrix_transpose mish neg reciprocal relu relu6 rsqrt selu sigmoid sign silu sin
    softsign sqrt square tanh tanhshrink
    """.split()
_OF_TWO = """
    add div eq floor_divide fmod ge gt le logical_and logical_or logical_xor lt maximum minimum mul ne pow remainder sub
    """.split()
_OF_BITS = ["bitwise_and", "bitwise_or", "bitwise_xor"]
# who an error says that it is from
SAYS = {"matrix_transpose": "mT", "clamp_max": "clamp", "clamp_min": "clamp", "ravel": "reshape"}


def called(name, *operands):
    return getattr(ops, name)(*operands)


ROWS = [
    *((lambda name=name: called(name, "abc"), DtypeError,
       f"^{SAYS.get(name, name)}: expected a tensor, an array or a number, got str") for name in _OF_ONE),
    *each((lambda name: called(name, X, OTHER), ShapeError,
           r"^%s: expected shapes that broadcast, got \(2, 3\) and \(2, 4\)"), *_OF_TWO),
    *each((lambda name: called(name, X, X.double()), DtypeError,
           "^%s: expected operands of one float dtype, got float32 and float64: convert one"), *_OF_TWO),
    *each((lambda name: called(name, [1.0], X), DtypeError, "^%s: expected a tensor, an array or a number, got list"),
          *_OF_TWO, *_OF_BITS),
    *each((lambda name: called(name, X, X), DtypeError, r"^%s: expected bools or integers, got float32 \(2, 3\)"),
          *_OF_BITS),
    *each((lambda name: called(name, ROW, X.bool()), ShapeError, r"^%s: expected shapes that broadcast, got \(2,\)"),
          *_OF_BITS),
    (lambda: minigrad.full_like([1.0], 2), DtypeError, "^full_like: expected a Tensor, got list"),
    *each((lambda name: getattr(minigrad, name)([1.0]), DtypeError, "^%s: expected a Tensor, got list"),
          *["ones_like", "rand_like"]),
    (lambda: minigrad.randint_like([1.0], 3), DtypeError, "^randint_like: expected a Tensor, got list"),
    (lambda: minigrad.tensor("a"), DtypeError, "^tensor: expected numbers, or lists or arrays of them, got str 'a'"),
    (lambda: minigrad.as_tensor("a"), DtypeError, "^as_tensor: expected numbers, or lists or arrays of them, got str"),
    (lambda: minigrad.empty(-1), ShapeError, r"^empty: expected lengths >= 0, got \(-1,\)"),
    (lambda: minigrad.eye(-1), ShapeError, r"^eye: expected lengths >= 0, got \(-1, -1\)"),
    (lambda: ops.expand_as(X, OTHER), ShapeError, r"^expand_as: expected a shape that \(2, 3\) broadcasts to, got \(2"),
    (lambda: ops.lerp(X, OTHER, 0.5), ShapeError, r"^lerp: expected shapes that broadcast, got \(2, 3\) and \(2, 4\)"),
    (lambda: ops.lerp(ROW, ROW, 0.5), DtypeError, r"^lerp: expected a float tensor, got int64 \(2,\)"),
    (lambda: ops.linear(X, OTHER), ShapeError, r"^linear: expected x .*, got x \(2, 3\) and weight \(2, 4\)"),
    (lambda: ops.linear(X, X, OTHER[0]), ShapeError, r"^linear: expected bias of shape \(2,\), got \(4,\)"),
    (lambda: ops.linear(X, X.double()), DtypeError, "^linear: expected one dtype, got float32, float64"),
    (lambda: ops.matmul(X, OTHER), ShapeError, r"^matmul: expected equal inner lengths, got \(2, 3\) @ \(2, 4\)"),
    (lambda: ops.matmul(X, X[0, 0]), ShapeError, r"^matmul: expected operands with at least one axis, got \(2, 3\)"),
    (lambda: ops.logsumexp(X, 2), ShapeError, r"^logsumexp: expected an axis in \[-2, 2\), got 2"),
    (lambda: ops.index_add(X, 0, ROW, OTHER), ShapeError, r"^index_add: expected x .*, got \(2, 3\), \(2,\)"),
    (lambda: ops.index_add(X, 0, ROW + 1, X), IndexRangeError, r"^index_add: expected indexes in \[0, 2\), got"),
    (lambda: ops.index_add(X, 0, ROW, X, alpha="1"), ArgumentError, "^index_add: expected alpha to be a number"),
]
