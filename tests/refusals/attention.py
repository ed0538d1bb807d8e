"""What attention and its companions refuse, as operations and as layers."""

import numpy as np

from minigrad import Tensor, nn, ops
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from tests.refusals import each

X, Y, ROW = Tensor(np.full((2, 3), 0.5)), Tensor(np.full((2, 3), 0.25)), Tensor(np.full(3, 0.5))
SIGNS, SINGLE = Tensor(np.array([1, -1])), Tensor(np.full((2, 3), 0.5, np.float32))
HEADS = Tensor(np.ones((4, 2, 3)))


def attention(*args, **options):
    return ops.scaled_dot_product_attention(*args, **options)


ROWS = [
    *each(
        (attention, ShapeError),
        (X, X, ROW, r"attention: expected value of shape \(..., length, features\), got \(3,\)"),
        (X, Y, Tensor(np.ones((3, 3))), r"attention: .* got query \(2, 3\), key \(2, 3\) and value \(3, 3\)"),
        (X, Y, X, Tensor(np.ones((3, 3)) > 0), r"expected attn_mask to broadcast to \(2, 2\), got \(3, 3\)"),
        (HEADS, HEADS[:2], HEADS[:2], "batch axes that broadcast, got .*: heads that share keys are enable_gqa=True"),
    ),
    *each(
        (lambda *args: attention(*args, enable_gqa=True), ShapeError),
        (X, X, X, r"expected heads, \(..., heads, length, features\), with enable_gqa, got query \(2, 3\)"),
        (HEADS, HEADS[:3], HEADS[:3], r"equally many heads, a divisor of query's, got query \(4, 2, 3\), key \(3,"),
        (HEADS, HEADS[:2], HEADS[:1], r"and value of equally many heads, .* and value \(1, 2, 3\)"),
    ),
    *each(
        (attention, DtypeError),
        (X, Y, SIGNS[:, None], "attention: expected a float tensor"),
        (X, Y, None, "expected value to be a tensor, got NoneType"),
        (X, Y, SINGLE, "expected one dtype, got float64, float64 and float32"),
        (X, Y, X, SIGNS, "attention: expected a float tensor"),
        (X, Y, X, True, "attn_mask to be a tensor .*, got bool"),
        (SINGLE, SINGLE, SINGLE, X[:, :2], "attn_mask of bools, float32 or query's float32, got float64"),
    ),
    *each(
        (lambda *args: ops.rms_norm(*args), ShapeError),
        (X, 2, r"rms_norm: expected x of shape \(..., 2\), got \(2, 3\)"),
        (X, 3, Y, r"rms_norm: expected weight of shape \(3,\), got \(2, 3\)"),
    ),
    (lambda: ops.rms_norm(X, 3, ROW, -1.0), ArgumentError, "rms_norm: expected eps to be a number >= 0, got -1.0"),
    (lambda: ops.rms_norm(X, 3, SINGLE[0]), DtypeError, "rms_norm: .* got x float64 and float32 parameters"),
    (lambda: nn.RMSNorm(0), ArgumentError, "RMSNorm: expected normalized_shape of at least 1, got 0"),
    (lambda: nn.RMSNorm(3, eps=-1.0), ArgumentError, "RMSNorm: expected eps"),
    (lambda: attention(X, Y, X, scale="1"), ArgumentError, "attention: expected scale"),
    (lambda: attention(X, Y, X, dropout_p=-0.1), ArgumentError, r"expected dropout_p to be a number in \[0, 1\], got"),
    (lambda: attention(X, Y, X, enable_gqa=None), ArgumentError, "expected enable_gqa to be True or False"),
]
