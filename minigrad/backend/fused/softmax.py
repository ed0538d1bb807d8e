"""Softmax of rows, or its logarithm, in one pass, and the gradient in another. The reference is in
`minigrad.ops.activation`."""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import matrix_shape, row_blocks
from minigrad.backend.kernels import loader_for, suffix_of
from minigrad.backend.memory import contiguous


def softmax_rows(x: Array, logs: bool = False) -> Array:
    """exp(x) / Σ exp(x) along the last axis, or the logarithm of it; of any shape with at least one axis."""
    return _launch("forward", (contiguous(x),), logs)


def softmax_gradient(grad: Array, y: Array, logs: bool = False) -> Array:
    """The gradient of x, from that of y, which is what `softmax_rows` gave."""
    return _launch("backward", (contiguous(grad), contiguous(y)), logs)


def _launch(way: str, given: tuple[Array, ...], logs: bool) -> Array:
    x = given[0]
    out = array_module(x).empty_like(x)
    if x.size:
        loader = loader_for(x)
        rows = x.reshape(-1, x.shape[-1])
        blocks, by_block = row_blocks(loader, rows)
        args = (*given, *matrix_shape(rows), by_block, np.int32(logs), out)
        loader.launch("softmax", f"softmax_{way}_{suffix_of(x.dtype)}", blocks, loader.threads, args)
    return out
