"""Attention out of products, a softmax and masks; rotary positions.

Vaswani and others, "Attention Is All You Need", 2017; fewer heads of keys than of queries: Ainslie and others, "GQA",
2023. A row to which every key is masked gives zeros.
"""

from __future__ import annotations

import math
from typing import Any

import minigrad as mg
from minigrad.nn import functional as F
from tests.onnx.elementwise import dtype_of
from tests.onnx.node import Function, Node


def _attention(
    node: Node, q: Any, k: Any, v: Any, mask: Any = None, past_k: Any = None, past_v: Any = None, valid: Any = None
) -> Any:
    flat = q.ndim == 3
    if flat:
        q, k, v = (_heads(x, node.get(name)) for x, name in ((q, "q_num_heads"), (k, "kv_num_heads"),
                                                             (v, "kv_num_heads")))
    if past_k is not None:
        k, v = mg.cat([past_k, k], 2), mg.cat([past_v, v], 2)
    bias = _bias(node, q, k.shape[2], mask, 0 if past_k is None else past_k.shape[2], valid)
    groups = q.shape[1] // k.shape[1]
    keys, values = (x if groups == 1 else mg.repeat_interleave(x, groups, dim=1) for x in (k, v))

    root = math.sqrt(node.get("scale") or 1 / math.sqrt(q.shape[3]))  # on both sides, so that half precision lasts
    scores = (q * root) @ mg.transpose(keys * root, 2, 3)
    cap = node.get("softcap", 0.0)
    capped = cap * mg.tanh(scores / cap) if cap else scores
    biased = capped + bias
    wide = biased.to(dtype_of(node.get("softmax_precision"))) if node.get("softmax_precision") else biased
    lost = mg.amax(bias, -1, keepdim=True) == -math.inf
    weights = mg.where(lost, mg.zeros_like(wide), F.softmax(mg.where(lost, mg.zeros_like(wide), wide), -1)).to(q.dtype)
    y = weights @ values
    shown = [scores, capped, biased, weights][node.get("qk_matmul_output_mode", 0)]
    return (_flat(y) if flat else y), k, v, shown


def _heads(x: Any, count: int) -> Any:
    """(batch, positions, heads·features) as (batch, heads, positions, features)."""
    return mg.transpose(x.reshape(x.shape[0], x.shape[1], count, -1), 1, 2)


def _flat(x: Any) -> Any:
    return mg.transpose(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)


def _bias(node: Node, q: Any, keys: int, mask: Any, before: int, valid: Any) -> Any:
    """What is added to the scores: 0 or -inf by position, and what the mask says."""
    rows = q.shape[2]
    ahead = mg.tensor(before) if valid is None else (valid - rows).reshape(-1, 1, 1, 1)
    distance = mg.arange(rows).unsqueeze(1) + ahead - mg.arange(keys)  # how far behind the query the key is
    seen = mg.ones_like(distance, dtype=mg.bool_)
    left, right = node.get("left_window_size", -1), node.get("right_window_size", -1)
    if node.get("is_causal"):
        seen = seen & (distance >= 0)
    if left >= 0:
        seen = seen & (distance <= left)
    if right >= 0:
        seen = seen & (distance >= -right)
    if valid is not None:
        seen = seen & (mg.arange(keys) < valid.reshape(-1, 1, 1, 1))
    bias = _as_bias(seen, q)
    if mask is not None:
        short = keys - mask.shape[-1]
        mask = _as_bias(mask, q) if mask.dtype == mg.bool_ else mask
        bias = bias + mg.ops.pad(mask, (0, short), value=-math.inf)
    return bias


def _as_bias(seen: Any, like: Any) -> Any:
    return mg.where(seen, mg.tensor(0.0, dtype=like.dtype), mg.tensor(-math.inf, dtype=like.dtype))


def _rotary(node: Node, x: Any, cosines: Any, sines: Any, positions: Any = None) -> Any:
    """Su and others, "RoFormer", 2021: pairs of features are turned by an angle of their position."""
    flat = x.ndim == 3
    x = _heads(x, node.get("num_heads")) if flat else x
    width = node.get("rotary_embedding_dim", 0) or x.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if positions is not None:
        cosines, sines = cosines[positions], sines[positions]
    cosines, sines = (angle[..., : width // 2].unsqueeze(1) for angle in (cosines, sines))
    pairs = bool(node.get("interleaved"))
    a, b = (turned[..., 0::2], turned[..., 1::2]) if pairs else mg.chunk(turned, 2, -1)
    a, b = cosines * a - sines * b, sines * a + cosines * b
    turned = mg.stack([a, b], -1).reshape(turned.shape) if pairs else mg.cat([a, b], -1)
    y = mg.cat([turned, rest], -1)
    return _flat(y) if flat else y


FUNCTIONS: dict[str, Function] = {"Attention": _attention, "RotaryEmbedding": _rotary}
