"""Multi-head attention: attentions side by side, each on projections of its own, and what joins them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from minigrad.arguments import as_integer, check_switch, kind_of
from minigrad.backend.dtypes import float_dtypes_mixed
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.attention import attention_weights, scaled_dot_product_attention
from minigrad.ops.compare import logical_not, logical_or
from minigrad.ops.creation import zeros
from minigrad.ops.join import cat, chunk, pad
from minigrad.ops.linalg import linear, matmul
from minigrad.ops.mask import where
from minigrad.ops.operands import check_float
from minigrad.tensor import Tensor

__all__ = ["multi_head_attention_forward"]

_WHO = "multi_head_attention_forward"


class _Lengths(NamedTuple):
    """Those of a call, and how its tensors lie: (samples, length, features), or samples second."""

    samples: int
    queries: int
    keys: int
    heads: int
    batch_first: bool

    def split(self, x: Tensor) -> Tensor:
        """(samples, length, heads · D) as (samples, heads, length, D), a view."""
        apart = x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads)
        return apart.transpose(1, 2) if self.batch_first else apart.permute(1, 2, 0, 3)

    def merge(self, x: Tensor) -> Tensor:
        """The way back."""
        apart = x.transpose(1, 2) if self.batch_first else x.permute(2, 0, 1, 3)
        return apart.reshape(*apart.shape[:2], apart.shape[2] * apart.shape[3])


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    *,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    batch_first: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of each head on its part of projected queries, keys and values, joined by a last projection.

    Vaswani et al., "Attention Is All You Need", 2017. A query that may see no key gets weights of 0.

    Shapes:
        query: (L, N, E), key: (S, N, K), value: (S, N, V), N first with batch_first; or all without N
        in_proj_weight: (3E, E), or the three apart: (E, E), (E, K), (E, V); in_proj_bias: (3E,); bias_k, bias_v:
        (1, 1, E); key_padding_mask: (N, S); attn_mask: (L, S) or (N · num_heads, L, S)
        -> as query, and (N, L, S), or (N, num_heads, L, S) where weights are not averaged

    Args:
        embed_dim_to_check: E, a multiple of num_heads.
        in_proj_weight: Projects all three where use_separate_proj_weight is False, else the three apart do.
        bias_k, bias_v: A key and a value that are learned, behind those given; add_zero_attn: one of zeros.
        dropout_p: Weights are dropped with this probability in training.
        key_padding_mask, attn_mask: Bools, True where a key is not seen; or floats, which are added.
        need_weights: Give the weights too, which takes longer; None else.
        is_causal: A hint: attn_mask hides the keys after each query, and nothing else.

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above.
        ArgumentError: an option out of its range, is_causal without attn_mask, or only one of bias_k and bias_v.
    """
    check_switch(_WHO, add_zero_attn=add_zero_attn, training=training, need_weights=need_weights, is_causal=is_causal)
    check_switch(_WHO, average_attn_weights=average_attn_weights, batch_first=batch_first)
    if is_causal and attn_mask is None:
        raise ArgumentError(f"{_WHO}: expected attn_mask with is_causal, which says what is in it, got None")
    lengths = _agreed((query, key, value), embed_dim_to_check, num_heads, batch_first)
    batched = query.ndim == 3
    weight = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else in_proj_weight
    parts = _in_projection(_batched((query, key, value), batched, batch_first), weight, in_proj_bias)
    parts, extra = _extended(parts, bias_k, bias_v, add_zero_attn, lengths)
    dropout_p = dropout_p if training else 0.0
    hinted = is_causal and key_padding_mask is None and not need_weights and not extra
    mask = _merged(key_padding_mask, attn_mask, lengths, query, extra, hinted)
    q, k, v = (lengths.split(part) for part in parts)
    if need_weights:
        weights = attention_weights(q, k, mask, dropout_p)
        joined = matmul(weights, v)
    else:
        weights, joined = None, scaled_dot_product_attention(q, k, v, mask, dropout_p, hinted)
    out = linear(lengths.merge(joined), out_proj_weight, out_proj_bias)
    if weights is not None:
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights if batched else weights.squeeze(0)
    return out if batched else out.squeeze(0 if batch_first else 1), weights


def _agreed(inputs: tuple[Any, ...], features: Any, heads: Any, batch_first: bool) -> _Lengths:
    for name, x in zip(("query", "key", "value"), inputs):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{_WHO}: expected {name} to be a tensor, got {kind_of(x)}")
        check_float(_WHO, x)
    query, key, value = inputs
    given = f"got query {query.shape}, key {key.shape} and value {value.shape}"
    if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
        form = "(N, length, features)" if batch_first else "(length, N, features)"
        raise ShapeError(f"{_WHO}: expected query, key and value of shape {form} or (length, features), {given}")
    heads = as_integer(_WHO, "num_heads", heads, 1)
    if as_integer(_WHO, "embed_dim_to_check", features, 1) != query.shape[-1]:
        raise ShapeError(f"{_WHO}: expected query of {features} features, {given}")
    if features % heads:
        raise ArgumentError(f"{_WHO}: expected num_heads to divide the {features} features, got {heads}")
    axis, batch = (1, 0) if batch_first and query.ndim == 3 else (0, 1)
    samples = [x.shape[batch] if x.ndim == 3 else 1 for x in inputs]
    if key.shape[axis] != value.shape[axis] or len(set(samples)) > 1:
        raise ShapeError(f"{_WHO}: expected key and value of one length, and one number of samples, {given}")
    return _Lengths(samples[0], query.shape[axis], key.shape[axis], heads, batch_first)


def _batched(inputs: tuple[Tensor, ...], batched: bool, batch_first: bool) -> tuple[Tensor, ...]:
    """The inputs with an axis of samples; what was one tensor stays one."""
    if batched:
        return inputs
    made = {id(x): x.unsqueeze(0 if batch_first else 1) for x in inputs}
    return tuple(made[id(x)] for x in inputs)


def _in_projection(inputs: tuple[Tensor, ...], weight: Any, bias: Tensor | None) -> list[Tensor]:
    """Queries, keys and values, in one product where they come from one tensor."""
    if not isinstance(weight, tuple):
        if not isinstance(weight, Tensor):
            raise DtypeError(f"{_WHO}: expected in_proj_weight to be a tensor, got {kind_of(weight)}")
        rows = 3 * inputs[0].shape[-1]
        if weight.ndim != 2 or weight.shape[0] != rows:
            raise ShapeError(f"{_WHO}: expected in_proj_weight of shape ({rows}, {rows // 3}), got {weight.shape}")
        if inputs[0] is inputs[1] is inputs[2]:
            return list(chunk(linear(inputs[0], weight, bias), 3, -1))
        weight = chunk(weight, 3)
    for name, part in zip("qkv", weight):
        if not isinstance(part, Tensor):
            raise DtypeError(f"{_WHO}: expected {name}_proj_weight to be a tensor, got {kind_of(part)}")
    biases = (None, None, None) if bias is None else chunk(bias, 3)
    return [linear(x, part, bias) for x, part, bias in zip(inputs, weight, biases)]


def _extended(
    parts: list[Tensor], bias_k: Tensor | None, bias_v: Tensor | None, add_zero: bool, lengths: _Lengths
) -> tuple[list[Tensor], int]:
    """Queries, keys and values with the keys and values that a call adds; and how many these are."""
    if (bias_k is None) != (bias_v is None):
        raise ArgumentError(f"{_WHO}: expected bias_k and bias_v, or neither, got one of them")
    q, k, v = parts
    one = (lengths.samples, 1, k.shape[-1]) if lengths.batch_first else (1, lengths.samples, k.shape[-1])
    added: list[tuple[Tensor, Tensor]] = []
    if bias_k is not None and bias_v is not None:
        added.append((bias_k.expand(*one), bias_v.expand(*one)))
    if add_zero:
        nothing = zeros(*one, dtype=k.dtype, device=k.device)
        added.append((nothing, nothing))
    if added:
        axis = 1 if lengths.batch_first else 0
        k, v = (cat([part, *more], axis) for part, more in zip((k, v), zip(*added)))
    return [q, k, v], len(added)


def _merged(
    padding: Any, mask: Any, lengths: _Lengths, query: Tensor, extra: int, hinted: bool
) -> Tensor | None:
    """Both masks as `scaled_dot_product_attention` has them: True where a key is seen, or what is added."""
    samples, queries, keys, heads, _ = lengths
    found = []
    if mask is not None:
        _check_mask("attn_mask", mask, [(queries, keys), (samples * heads, queries, keys)])
        found.append(mask if mask.ndim == 2 else mask.reshape(samples, heads, queries, keys))
    if padding is not None:
        _check_mask("key_padding_mask", padding, [(samples, keys)] if query.ndim == 3 else [(keys,)])
        found.append(padding.reshape(samples, 1, 1, keys))
    if hinted or not found:
        return None
    if all(part.dtype.kind == "b" for part in found):
        seen = logical_not(found[0] if len(found) == 1 else logical_or(*found))
        return pad(seen, (0, extra), value=1) if extra else seen
    added = [where(part, -math.inf, 0.0).to(query.dtype) if part.dtype.kind == "b" else part for part in found]
    with float_dtypes_mixed(True):
        bias = added[0] if len(added) == 1 else added[0] + added[1]
    return pad(bias, (0, extra)) if extra else bias


def _check_mask(name: str, mask: Any, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(mask, Tensor) or (mask.dtype.kind in "iu"):
        raise DtypeError(f"{_WHO}: expected {name} to be a tensor of bools or floats, got {kind_of(mask)}")
    if mask.shape not in shapes:
        raise ShapeError(f"{_WHO}: expected {name} of shape {' or '.join(map(str, shapes))}, got {mask.shape}")
