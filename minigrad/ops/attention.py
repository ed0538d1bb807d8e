"""Attention: a weighted mean of values, with weights that say how well queries and keys agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_switch, kind_of
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.activation import softmax
from minigrad.ops.linalg import matmul
from minigrad.ops.mask import masked_fill, where
from minigrad.ops.noise import dropout
from minigrad.ops.operands import check_float, same_device
from minigrad.ops.precision import autocasts
from minigrad.ops.reduce import any as any_of
from minigrad.tensor import Tensor

__all__ = ["scaled_dot_product_attention"]


@autocasts("low")
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ keyᵀ · scale + mask) @ value: for each query a mean of the values (Vaswani et al., 2017).

    Made of `matmul` and `softmax`, whose gradients it has. A query that may see no key gets 0.

    Shapes:
        query: (..., L, E), key: (..., S, E), value: (..., S, V); attn_mask: broadcasts to (..., L, S) -> (..., L, V)

    Args:
        attn_mask: Bools, True where a query may see a key; or floats, which are added.
        dropout_p: Weights are dropped with this probability: pass 0 outside training.
        is_causal: Query i sees keys up to i alone; instead of a mask.
        scale: 1/√E by default.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above.
        ArgumentError: a mask and is_causal, or another option out of its range.
    """
    who = "scaled_dot_product_attention"
    _check(who, query=query, key=key, value=value)
    check_switch(who, is_causal=is_causal)
    if is_causal and attn_mask is not None:
        raise ArgumentError(f"{who}: expected attn_mask or is_causal, got both")
    factor = 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else as_real(who, "scale", scale, finite=True)
    scores = matmul(query * factor, key.transpose(-2, -1))
    if is_causal:
        weights = softmax(masked_fill(scores, _later(scores), -math.inf), -1)
    elif attn_mask is not None:
        scores = _masked(who, scores, attn_mask)
        seen = any_of(scores != -math.inf, -1, keepdim=True)
        weights = where(seen, softmax(where(seen, scores, 0.0), -1), 0.0)
    else:
        weights = softmax(scores, -1)
    return matmul(dropout(weights, dropout_p), value)


def _check(who: str, **tensors: Any) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected {name} to be a tensor, got {kind_of(x)}")
        check_float(who, x)
        if x.ndim < 2:
            raise ShapeError(f"{who}: expected {name} of shape (..., length, features), got {x.shape}")
    query, key, value = tensors.values()
    same_device(who, query, key, value)
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(
            f"{who}: expected query (..., L, E), key (..., S, E) and value (..., S, V), "
            f"got {query.shape}, {key.shape} and {value.shape}"
        )


def _later(scores: Tensor) -> Tensor:
    """Which keys come after each query, (L, S)."""
    with scores.device.current() as xp:
        return Tensor(xp.arange(scores.shape[-1]) > xp.arange(scores.shape[-2])[:, None])


def _masked(who: str, scores: Tensor, mask: Any) -> Tensor:
    if not isinstance(mask, Tensor):
        raise DtypeError(f"{who}: expected attn_mask to be a tensor of bools or floats, got {kind_of(mask)}")
    try:
        fits = np.broadcast_shapes(scores.shape, mask.shape) == scores.shape
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{who}: expected attn_mask to broadcast to {scores.shape}, got {mask.shape}")
    if mask.dtype.kind == "b":
        return masked_fill(scores, ~mask, -math.inf)
    check_float(who, mask)
    return scores + mask
