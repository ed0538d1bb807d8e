"""Softmax of rows, or its logarithm, in one pass, and the gradient in another. The reference is in
`minigrad.ops.activation`."""

from __future__ import annotations

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import row_launch
from minigrad.backend.kernels import int32, loader_for
from minigrad.backend.memory import contiguous


def softmax_rows(x: Array, logs: bool = False) -> Array:
    """exp(x) / Σ exp(x) along the last axis, or the logarithm of it; of any shape with at least one axis."""
    return _launch("softmax_forward", (contiguous(x),), logs)


def softmax_gradient(grad: Array, y: Array, logs: bool = False) -> Array:
    """The gradient of x, from that of y, which is what `softmax_rows` gave."""
    return _launch("softmax_backward", (contiguous(grad), contiguous(y)), logs)


def _launch(kernel: str, given: tuple[Array, ...], logs: bool) -> Array:
    x = given[0]
    out = array_module(x).empty_like(x)
    if x.size:
        loader = loader_for(x)
        plan = row_launch(loader, "softmax", kernel, x.shape, x.dtype)
        loader.launch(*plan.launch, (*given, *plan.shape, plan.by_block, int32(logs), out))
    return out
