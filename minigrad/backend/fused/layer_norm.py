"""Layer norm of rows in one pass, its gradient in another. The reference is `minigrad.ops.layer_norm` on a CPU."""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import compute_dtype, row_blocks
from minigrad.backend.kernels import KernelLoader, kernels_for, suffix_of
from minigrad.backend.memory import contiguous

_MOST_PARTS = 64  # into which rows are cut for sums over them
_LEAST_ROWS = 64  # of a part
_WARP = 32


def normalize_rows(x: Array, gain: Array | None, shift: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """(x - mean) / sqrt(var + eps) · gain + shift of each row; its mean and 1 / sqrt(var + eps).

    Shapes:
        x: (R, L); gain, shift: (L,) -> (R, L), (R,), (R,)

    Args:
        x, gain, shift: Of one float dtype; the statistics are float32, for float64 they are float64.
    """
    loader = _loader(x)
    x, gain, shift = contiguous(x), _vector(gain), _vector(shift)
    xp, dtype = array_module(x), compute_dtype(x.dtype)
    y, mean, rstd = xp.empty_like(x), xp.empty(len(x), dtype), xp.empty(len(x), dtype)
    if x.size:
        blocks, by_block = row_blocks(loader, x)
        args = (x, gain, shift, *_shape(x), np.float64(eps), by_block, y, mean, rstd)
        loader.launch("layer_norm", f"layer_norm_forward_{suffix_of(x.dtype)}", blocks, loader.threads, args)
    return y, mean, rstd


def gradients_of_rows(
    grad: Array, x: Array, gain: Array | None, mean: Array, rstd: Array, wanted: tuple[bool, bool, bool]
) -> tuple[Array, Array, Array]:
    """The gradients of x, gain and shift, of which those that are not wanted may be None."""
    grad, x = contiguous(grad), contiguous(x)
    dgain, dshift = column_gradients(grad, x, mean, rstd) if any(wanted[1:]) else (None, None)
    return row_gradients(grad, x, _vector(gain), mean, rstd) if wanted[0] else None, dgain, dshift


def row_gradients(grad: Array, x: Array, gain: Array | None, mean: Array, rstd: Array) -> Array:
    """The gradient of x: (R, L)."""
    loader = _loader(grad)
    dx = array_module(grad).empty_like(x)
    if x.size:
        blocks, by_block = row_blocks(loader, x)
        args = (grad, x, gain, mean, rstd, *_shape(x), by_block, dx)
        loader.launch("layer_norm", f"layer_norm_backward_{suffix_of(x.dtype)}", blocks, loader.threads, args)
    return dx


def column_gradients(grad: Array, x: Array, mean: Array, rstd: Array) -> tuple[Array, Array]:
    """The gradients of gain and shift, (L,) each, in the dtype of mean."""
    loader = _loader(grad)
    xp = array_module(grad)
    rows, length = x.shape
    height = max(_LEAST_ROWS, -(-rows // _MOST_PARTS))
    parts = -(-rows // height)
    dgain, dshift = (xp.empty((parts, length), mean.dtype) for _ in range(2))
    if x.size:
        tiles = -(-length // _WARP)
        args = (grad, x, mean, rstd, *_shape(x), np.int64(height), dgain, dshift)
        blocks = min(tiles * parts, loader.max_blocks)
        loader.launch("layer_norm", f"layer_norm_columns_{suffix_of(x.dtype)}", blocks, loader.threads, args)
    return dgain.sum(axis=0), dshift.sum(axis=0)


def _vector(values: Array | None) -> Array | None:
    return None if values is None else contiguous(values)


def _shape(x: Array) -> tuple[np.int64, np.int64]:
    return np.int64(x.shape[0]), np.int64(x.shape[1])


def _loader(array: Array) -> KernelLoader:
    loader = kernels_for(array)
    assert loader is not None
    return loader
