"""Rows of attention: scale, mask and softmax in one pass, and the gradient in another.

The reference is `minigrad.ops.scaled_dot_product_attention` in host memory.
"""

from __future__ import annotations

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import row_launch
from minigrad.backend.kernels import int32, int64, loader_for
from minigrad.backend.memory import contiguous


def weigh(products: Array, factor: float, causal: bool, mask: Array | None, out: Array) -> Array:
    """The softmax of products · factor + mask along the last axis, 0 where all of a row is -inf.

    Shapes:
        products, out: (..., L, S); mask: broadcasts to that

    Args:
        products: Contiguous, float32, or float64 where out is of that.
        causal: Row q sees keys up to q alone, of those that the mask lets it see.
        mask: Bools, True where a key is seen; or floats that are added.
        out: Contiguous; may be the products, which are overwritten.
    """
    if products.size:
        loader = loader_for(products)
        plan = row_launch(loader, "attention", "attention_weigh", products.shape, out.dtype)
        shape = (*plan.shape, int64(products.shape[-2]))
        masked = _UNMASKED if mask is None else _mask_arguments(mask, products.shape, plan.wide)
        args = (products, *shape, plan.by_block, np.float64(factor), int32(causal), *masked, out)
        loader.launch(*plan.launch, args)
    return out


def score_gradient(
    dweights: Array, weights: Array, factor: float, out: Array, dscores: Array | None = None
) -> Array:
    """w · (h - Σ w·h) · factor along the last axis, h the gradient of the weights: that of the products.

    Args:
        dweights: Contiguous, in the dtype that products have.
        out: Contiguous, in the dtype of the weights; may be dweights.
        dscores: Where the gradient without the factor goes, in the dtype of dweights, which it may be instead.
    """
    if dweights.size:
        loader = loader_for(dweights)
        plan = row_launch(loader, "attention", "attention_gradient", dweights.shape, out.dtype)
        args = (dweights, contiguous(weights), *plan.shape, plan.by_block, np.float64(factor), out, dscores)
        loader.launch(*plan.launch, args)
    return out


_UNMASKED = (None, None, np.int64(1), *(np.int64(0),) * 4)


def _mask_arguments(mask: Array, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> tuple[object, ...]:
    """A mask of bools, one of floats, the inner batches, and the steps along outer and inner ones, queries and keys."""
    if mask.dtype.kind != "b":
        mask = mask.astype(dtype, copy=False)
    mask = contiguous(mask)
    batches = _batches(mask, shape)
    if len(batches) > 2:
        mask = contiguous(array_module(mask).broadcast_to(mask, (*shape[:-2], *_padded(mask, len(shape))[-2:])))
        batches = _batches(mask, shape)
    (_, outer), (inner, step) = [(1, 0), (1, 0), *batches][-2:]
    steps = (outer, step, *_steps(mask, shape)[-2:])
    both = (mask, None) if mask.dtype.kind == "b" else (None, mask)
    return (*both, np.int64(inner), *(np.int64(step) for step in steps))


def _batches(mask: Array, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """The axes before the last two as (length, step), neighbours joined where the steps allow it."""
    axes: list[tuple[int, int]] = []
    for length, step in zip(shape[:-2], _steps(mask, shape)):
        if length == 1:
            continue
        if axes and axes[-1][1] == step * length:
            axes[-1] = (axes[-1][0] * length, step)
        else:
            axes.append((length, step))
    return axes


def _steps(mask: Array, shape: tuple[int, ...]) -> list[int]:
    """From one element to the next along each axis of the scores, 0 where the mask is stretched."""
    found, step = [], 1
    for length in reversed(_padded(mask, len(shape))):
        found.append(step if length > 1 else 0)
        step *= length
    return found[::-1]


def _padded(mask: Array, ndim: int) -> tuple[int, ...]:
    return (*(1,) * (ndim - mask.ndim), *mask.shape)
