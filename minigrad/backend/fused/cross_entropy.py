"""Cross-entropy of rows of logits with labels: softmax and loss in one pass, and the gradient in another.

The reference is `minigrad.ops.cross_entropy` in host memory. No probabilities are kept between the passes, only two
numbers for each row. The last block of the forward pass reduces the losses.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import arrivals, row_launch
from minigrad.backend.kernels import int64, loader_for


class LabelledRows(NamedTuple):
    """Rows of logits with their labels, and what the forward pass found.

    Attributes:
        x: (R, C), contiguous.
        labels: int64 (R,).
        weight: (C,) of x's dtype, or None.
        mass: The sum of weight, of no axes; None without weight or smoothing.
        largest, totals, factors: (R,): the largest logit, the sum of exp(x - largest), and the weight of the row: 0
            where its label is ignored, NaN where it is no class.
        divisor: Σ factor, of no axes, where the mean was taken, else None.
    """

    x: Array
    labels: Array
    weight: Array | None
    mass: Array | None
    ignore_index: int
    smoothing: float
    largest: Array
    totals: Array
    factors: Array
    divisor: Array | None


_REDUCTIONS = {"none": np.int32(0), "mean": np.int32(1), "sum": np.int32(2)}


def row_losses(
    x: Array,
    labels: Array,
    weight: Array | None,
    ignore_index: int,
    smoothing: float,
    reduction: str = "none",
    found: Array | None = None,
) -> tuple[Array, LabelledRows]:
    """The loss of each row, weighted, 0 where the label is ignored; in float32, for float64 logits in float64.

    Args:
        reduction: "none"; or "mean", Σ loss / Σ factor, NaN where no row counts, or "sum": of no axes, in x's dtype.
        found: Where a label that is no class is kept, see `minigrad.backend.flags`.
    """
    loader = loader_for(x)
    plan = row_launch(loader, "cross_entropy", "cross_entropy_forward", x.shape, x.dtype)
    xp, dtype, count = array_module(x), plan.wide, x.shape[0]
    losses, largest = xp.empty(count, dtype), xp.empty(count, dtype)
    totals, factors = xp.empty(count, dtype), xp.empty(count, dtype)
    mass = xp.empty((), dtype) if weight is not None and smoothing else None
    result = None if reduction == "none" else xp.empty((), x.dtype)
    divisor = xp.empty((), dtype) if reduction == "mean" else None
    if count or result is not None:
        options = (int64(ignore_index), np.float64(smoothing), plan.by_block)
        end = (_REDUCTIONS[reduction], None if result is None else arrivals(x), result, divisor)
        args = (x, labels, weight, *plan.shape, *options, losses, largest, totals, factors, mass, found, *end)
        loader.launch(*plan.launch, args)
    rows = LabelledRows(x, labels, weight, mass, ignore_index, smoothing, largest, totals, factors, divisor)
    return losses if result is None else result, rows


def row_gradients(rows: LabelledRows, grad: Array) -> Array:
    """The gradient of the logits: (R, C).

    Args:
        grad: Of the loss of each row, (R,), or of what it was reduced to, of no axes; contiguous, in the dtype of the
            logits.
    """
    loader = loader_for(grad)
    dx = array_module(grad).empty_like(rows.x)
    found = (rows.mass, rows.largest, rows.totals, rows.factors)
    given = (grad, int64(1 if grad.ndim else 0), rows.divisor)
    if dx.size:
        plan = row_launch(loader, "cross_entropy", "cross_entropy_backward", dx.shape, dx.dtype)
        options = (int64(rows.ignore_index), np.float64(rows.smoothing), plan.by_block)
        loader.launch(*plan.launch, (rows.x, rows.labels, rows.weight, *found, *given, *plan.shape, *options, dx))
    return dx
