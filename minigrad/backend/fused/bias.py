"""Rows plus a bias through an activation, the way back, and sums of columns, in one launch each, or two of many rows.

The reference is the product plus the bias in `minigrad.ops.linalg`, then the activation. Sums are in a fixed order.
"""

from __future__ import annotations

import math

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.activation import ACTIVATIONS
from minigrad.backend.fused.rows import compute_dtype, matrix_shape
from minigrad.backend.kernels import int64, launch_of, loader_for, suffix_of
from minigrad.backend.memory import contiguous

_ROWS_AT_ONCE = 2048  # of which one launch makes the sums
_LEAST_ROWS = 512  # of a part, where there are more
_MOST_PARTS = 64
_IN_A_TURN = 4  # elements of a thread


def add_bias(h: Array, bias: Array, activation: str = "identity", keep: bool = True) -> tuple[Array, Array]:
    """Add a bias to each row, in place, and go through an activation.

    Shapes:
        h: (R, L), bias: (L,) -> (R, L), (R, L)

    Args:
        h: Contiguous and nobody else's.
        keep: Whether there will be a backward.

    Returns:
        The output, and what `activation_and_bias_gradient` needs; one or both of them on the memory of h.
    """
    loader = loader_for(h)
    made = ACTIVATIONS[activation]
    y = h if made.keeps_output or not keep else array_module(h).empty_like(h)
    if h.size:
        args = (h, contiguous(bias), *matrix_shape(h), made.kind, y)
        loader.launch(*launch_of(loader, "bias", "bias_forward", h.dtype, -(-h.size // _IN_A_TURN)), args)
    return y, h


def activation_and_bias_gradient(
    activation: str, grad: Array, kept: Array, out: Array | None = None
) -> tuple[Array, Array]:
    """The gradient of the activation's input, and the sum of its rows, the gradient of the bias.

    Shapes:
        grad, kept: (R, L) -> (R, L), (L,)

    Args:
        kept: As `add_bias` returned it.
        out: Where the sum goes.
    """
    grad = contiguous(grad)
    dx = array_module(grad).empty_like(grad)
    return dx, _sums("bias_backward", grad, (grad, kept), (ACTIVATIONS[activation].kind, dx), out)


def column_sum(x: Array, out: Array | None = None) -> Array:
    """Sum of the rows of a matrix: (R, L) -> (L,), in the dtype of x, summed in float32 or wider."""
    x = contiguous(x)
    return _sums("bias_sum", x, (x,), (np.float64(1.0),), out)


def mean_of_groups(x: Array, height: int) -> Array:
    """The means of each `height` consecutive rows of a matrix: (R, L) -> (R / height, L)."""
    out = array_module(x).empty((x.shape[0] // height, x.shape[1]), x.dtype)
    if out.size:
        args = (contiguous(x), *matrix_shape(x), int64(height), np.float64(1 / height), None, out)
        _launch_columns("bias_sum", x, out.shape[0], args)
    return out


def _sums(
    name: str, like: Array, before: tuple[Array, ...], after: tuple[object, ...], out: Array | None = None
) -> Array:
    """Launch what sums columns, over all rows at once or over parts, whose sums are summed by another launch."""
    rows, length = like.shape
    xp = array_module(like)
    sums = xp.empty(length, like.dtype) if out is None else out
    if not length:
        return sums
    if not rows:
        sums.fill(0)
    elif rows <= _ROWS_AT_ONCE:
        _launch_columns(name, like, 1, (*before, *matrix_shape(like), int64(rows), *after, None, sums))
    else:
        height = max(_LEAST_ROWS, -(-rows // _MOST_PARTS))
        parts = xp.empty((math.ceil(rows / height), length), compute_dtype(like.dtype))
        _launch_columns(name, like, len(parts), (*before, *matrix_shape(like), int64(height), *after, parts, None))
        _launch_columns("bias_sum_of_parts", like, 1, (parts, *matrix_shape(parts), sums))
    return sums


def _launch_columns(name: str, like: Array, parts: int, args: tuple[object, ...]) -> None:
    loader = loader_for(like)
    tile = 16 if like.dtype.itemsize == 2 else 8
    blocks = min(-(-like.shape[1] // tile) * parts, loader.max_blocks)
    loader.launch("bias", f"{name}_{suffix_of(like.dtype)}", blocks, loader.threads, args)
