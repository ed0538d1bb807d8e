"""Layer and RMS norm of rows: one launch forward, and two backward. The reference is in `minigrad.ops.layer_norms`."""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import matrix_shape, row_launch
from minigrad.backend.kernels import loader_for, suffix_of
from minigrad.backend.memory import contiguous

_THREADS = 256  # of a block that sums columns, at most: column_warps of columns.cuh
_MOST_PARTS = 256  # into which rows are cut for sums over them
_LEAST_ROWS = 8  # of a part
_WARP = 32


def normalize_rows(
    x: Array, gain: Array | None, shift: Array | None, eps: float, centered: bool = True
) -> tuple[Array, Array | None, Array]:
    """(x - mean) / sqrt(var + eps) · gain + shift of each row; its mean and 1 / sqrt(var + eps).

    Shapes:
        x: (R, L); gain, shift: (L,) -> (R, L), (R,), (R,)

    Args:
        x, gain, shift: Of one float dtype; the statistics are float32, for float64 they are float64.
        centered: Without it the mean stays where it is: 0 takes its place, and None is given back.
    """
    loader = loader_for(x)
    x, gain, shift = contiguous(x), _vector(gain), _vector(shift)
    plan = row_launch(loader, "layer_norm", "layer_norm_forward", x.shape, x.dtype)
    xp, count = array_module(x), x.shape[0]
    y, rstd = xp.empty_like(x), xp.empty(count, plan.wide)
    mean = xp.empty(count, plan.wide) if centered else None
    if x.size:
        args = (x, gain, shift, *plan.shape, np.float64(eps), plan.by_block, y, mean, rstd)
        loader.launch(*plan.launch, args)
    return y, mean, rstd


def gradients_of_rows(
    grad: Array,
    x: Array,
    gain: Array | None,
    mean: Array | None,
    rstd: Array,
    dx: Array | None,
    dgain: Array | None,
    dshift: Array | None,
    base: Array | None = None,
) -> None:
    """Write the gradients of x, gain and shift into arrays of the dtype of x; None stands for one not wanted.

    Args:
        grad, x: (R, L).
        mean, rstd: As `normalize_rows` found them.
        dx, dgain, dshift: Contiguous, with as many elements as x, gain and shift have.
        base: What dx starts from, like it; may be dx.
    """
    loader = loader_for(grad)
    grad, x, gain = contiguous(grad), contiguous(x), _vector(gain)
    if not x.size:
        for vector in (dgain, dshift):
            if vector is not None:
                vector.fill(0)
        return
    xp, suffix, rows = array_module(x), suffix_of(x.dtype), x.shape[0]
    height = max(_LEAST_ROWS, -(-rows // _MOST_PARTS))
    parts, threads = -(-rows // height), min(loader.threads, _THREADS)
    weighted, totals = (
        None if one is None else xp.empty((parts, x.shape[1]), rstd.dtype) for one in (dgain, dshift)
    )
    args = (grad, x, gain, mean, rstd, *matrix_shape(x), np.int64(height), dx, base, weighted, totals)
    blocks = min(parts, loader.max_blocks)
    loader.launch("layer_norm", f"layer_norm_backward_{suffix}", blocks, threads, args)
    if weighted is not None or totals is not None:
        finish = (weighted, totals, np.int64(parts), np.int64(x.shape[1]), dgain, dshift)
        blocks = min(-(-x.shape[1] // _WARP), loader.max_blocks)
        loader.launch("layer_norm", f"layer_norm_finish_{suffix}", blocks, threads, finish)


def _vector(values: Array | None) -> Array | None:
    return None if values is None else contiguous(values)
