"""Attention: a weighted mean of values, with weights that say how well queries and keys agree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.arguments import as_real, check_switch, kind_of
from minigrad.autograd.tape import Edge, Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted, is_half, widened
from minigrad.backend.kernels import kernels_for
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.attention_blocks import attend_in_blocks, fits
from minigrad.ops.attention_form import Form, Shape, alike
from minigrad.ops.attention_rows import attend, attend_backward, weights_backward, weights_of
from minigrad.ops.axes import max_axes, row_dot, sum_axes, unbroadcast
from minigrad.ops.linalg import product, wide_product
from minigrad.ops.noise import Drops, dropped, take_drops
from minigrad.ops.operands import check_float, once, same_device
from minigrad.ops.precision import autocasts
from minigrad.tensor import Tensor, record

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
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ keyᵀ · scale + mask) @ value: for each query a mean of the values (Vaswani et al., 2017).

    With the weights p: dvalue = pᵀ @ g, and of the scores ds = p · (h - Σ p·h), with h = g @ valueᵀ; then
    dquery = ds @ key · scale, dkey = dsᵀ @ query · scale, dmask = ds. Of arrays (L, S) p alone is kept, and which of
    its elements are dropped; in host memory p is computed anew, where it is large and no mask wants a gradient. A query
    that may see no key gets 0. Scores and softmax of half precision are in float32.

    Shapes:
        query: (..., L, E), key: (..., S, E), value: (..., S, V); attn_mask: broadcasts to (..., L, S) -> (..., L, V)

    Args:
        attn_mask: Bools, True where a query may see a key; or floats, which are added.
        dropout_p: Weights are dropped with this probability: pass 0 outside training.
        is_causal: Query i sees keys up to i alone, of those that a mask lets it see.
        scale: 1/√E by default.
        enable_gqa: Query heads, the axis before L, are a multiple of those of key and value, which runs of them share
            (Ainslie et al., "GQA", 2023).

    Raises:
        ShapeError, DtypeError, DeviceError: shapes, dtypes or devices that do not fit as above.
        ArgumentError: an option out of its range.
    """
    who = "scaled_dot_product_attention"
    shape = _agreed(who, (query, key, value), enable_gqa)
    check_switch(who, is_causal=is_causal)
    factor = 1.0 / math.sqrt(query.shape[-1] or 1) if scale is None else as_real(who, "scale", scale, finite=True)
    mask = _checked_mask(who, attn_mask, query, shape)
    if kernels_for(query.data) is not None:
        p = as_real(who, "dropout_p", dropout_p, 0.0, 1.0)
        out, weights, drops = attend(query.data, key.data, value.data, mask, is_causal, p, factor, shape)
        return record(
            out,
            _attend_backward,
            (query, key, value, *_given(attn_mask)),
            (query, key, value, weights, drops, Form(factor, shape, _kind(attn_mask))),
        )
    if fits(query.data, key.data, value.data) and shape.heads is None and not _wants_gradient(attn_mask):
        drops = _drops(who, np.broadcast_to(query.data.dtype.type(0), shape.weights), dropout_p)
        return attend_in_blocks(query, key, value, attn_mask, factor, is_causal, drops)
    scores = _scores(query.data, key.data, factor, shape)
    if mask is not None:
        scores += _bias(mask, scores)
    if is_causal:
        scores += _causal(scores)
    weights = _weigh(scores, query.data.dtype)
    drops = _drops(who, weights, dropout_p)
    out = _mean(weights if drops is None else dropped(weights, drops), value.data, query.data, shape)
    return record(
        out,
        _attention_backward,
        (query, key, value, *_given(attn_mask)),
        (query, key, value, weights, drops, Form(factor, shape, _kind(attn_mask))),
    )


def _attend_backward(node: Node, grad: Array) -> None:
    query, key, value, weights, drops, form = node.saved
    attend_backward(node.inputs, grad, (query.data, key.data, value.data), weights, drops, form)


def _attention_backward(node: Node, grad: Array) -> None:
    query, key, value, weights, drops, form = node.saved
    dquery, dkey, dvalue, *dmask = node.inputs
    grad_rows = form.shape.shared(grad)
    if dvalue is not None:
        used = form.shape.shared(weights if drops is None else dropped(weights, drops))
        _give_product(dvalue, used.swapaxes(-1, -2), grad_rows, value.data)
        del used
    if any(edge is not None for edge in (dquery, dkey, *dmask)):
        dweights = wide_product(grad_rows, value.data.swapaxes(-1, -2)).reshape(form.shape.weights)
        dscores = _score_gradient(dweights, weights, drops)
        _give_scores([dquery, dkey, *dmask], dscores, query.data, key.data, form)


def attention_weights(query: Tensor, key: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0) -> Tensor:
    """The weights of `scaled_dot_product_attention`, dropped ones as 0: what it multiplies the values by."""
    who = "attention_weights"
    shape = _agreed(who, (query, key, key), False)
    factor = 1.0 / math.sqrt(max(query.shape[-1], 1))
    mask = _checked_mask(who, attn_mask, query, shape)
    if kernels_for(query.data) is not None:
        weights = weights_of(query.data, key.data, mask, factor, shape)
    else:
        scores = _scores(query.data, key.data, factor, shape)
        if mask is not None:
            scores += _bias(mask, scores)
        weights = _weigh(scores, query.data.dtype)
    drops = _drops(who, weights, dropout_p)
    return record(
        weights if drops is None else dropped(weights, drops),
        _attention_weights_backward,
        (query, key, *_given(attn_mask)),
        (query, key, weights, drops, Form(factor, shape, _kind(attn_mask))),
        saves_output=drops is None,
    )


def _attention_weights_backward(node: Node, grad: Array) -> None:
    query, key, weights, drops, form = node.saved
    if kernels_for(grad) is not None:
        weights_backward(node.inputs, grad, query.data, key.data, weights, drops, form)
        return
    dscores = _score_gradient(grad.astype(accumulator_dtype(grad.dtype)), weights, drops)
    _give_scores(node.inputs, dscores, query.data, key.data, form)


def _score_gradient(dweights: Array, weights: Array, drops: Drops | None) -> Array:
    """The gradient of the scores, (..., L, S), from that of the weights, which it overwrites."""
    dscores = dweights if drops is None else dropped(dweights, drops, dweights)
    wide = widened(weights)
    if wide.size:
        rows = (-1, wide.shape[-1])
        dscores -= row_dot(dscores.reshape(rows), wide.reshape(rows)).reshape(*wide.shape[:-1], 1)
    dscores *= wide
    return dscores


def _give_scores(edges: list[Edge], dscores: Array, query: Array, key: Array, form: Form) -> None:
    """Give query, key, and a mask, their parts of the gradient of the scores, which it overwrites."""
    dquery, dkey, *dmask = edges
    shape = form.shape
    if form.mask is not None and dmask[0] is not None:
        found = unbroadcast(dscores, form.mask[0])
        accumulate(dmask[0], found.astype(form.mask[1], copy=found is dscores))
    dscores *= form.factor
    low = shape.shared(converted(dscores, query.dtype) if is_half(query.dtype) else dscores)
    if dquery is not None:
        if shape.heads is None:
            _give_product(dquery, low, key, query)
        else:
            found = shape.apart(product(low, key, _like(query, low, key)))
            accumulate(dquery, unbroadcast(found, query.shape))
    if dkey is not None:
        _give_product(dkey, low.swapaxes(-1, -2), shape.shared(query), key)


def _give_product(edge: Edge, a: Array, b: Array, x: Array) -> None:
    """Accumulate a @ b as the gradient of x."""
    accumulate(edge, unbroadcast(product(a, b, _like(x, a, b)), x.shape))


def _scores(query: Array, key: Array, factor: float, shape: Shape) -> Array:
    """The scaled products of queries and keys, (..., L, S), in float32 where these are of half precision."""
    scores = wide_product(shape.rows(query), key.swapaxes(-1, -2)).reshape(shape.weights)
    scores *= factor
    return scores


def _drops(who: str, weights: Array, p: float) -> Drops | None:
    p = as_real(who, "dropout_p", p, 0.0, 1.0)
    return take_drops(weights, p) if p else None


def _wants_gradient(mask: Any) -> bool:
    return isinstance(mask, Tensor) and mask.requires_grad


def _given(mask: Tensor | None) -> tuple[Tensor, ...]:
    return () if mask is None else (mask,)


def _kind(mask: Tensor | None) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    return None if mask is None else (mask.data.shape, mask.data.dtype)


def _weigh(scores: Array, dtype: np.dtype[Any]) -> Array:
    """The softmax of each row, 0 where all of it is -inf; overwrites the scores."""
    if scores.size:
        xp, last = array_module(scores), (scores.ndim - 1,)
        lowest = float(np.finfo(scores.dtype).min)
        scores -= xp.maximum(max_axes(scores, last, keepdim=True), lowest)  # -inf less this is -inf
        xp.exp(scores, out=scores)
        total = sum_axes(scores, last, keepdim=True)
        total += total == 0
        scores /= total
    return converted(scores, dtype) if is_half(dtype) else scores


def _mean(weights: Array, value: Array, query: Array, shape: Shape) -> Array:
    """The weighted means of values; in memory as the queries are, so that heads lie beside each other again."""
    rows = shape.shared(weights)
    return shape.apart(product(rows, value, _like(query, rows, value)))


def _like(model: Array, a: Array, b: Array) -> Array | None:
    """Where a @ b is to go: an array that lies as another one of its shape; None where there is none to follow."""
    return alike(model, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


# ------------------------------------------------------------------------------------------------------------- masks


def _checked_mask(who: str, mask: Any, query: Tensor, shape: Shape) -> Array | None:
    """The array of a mask of bools or floats, which fits."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise DtypeError(f"{who}: expected attn_mask to be a tensor of bools or floats, got {kind_of(mask)}")
    same_device(who, query, mask)
    try:
        fits = np.broadcast_shapes(shape.weights, mask.shape) == shape.weights
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"{who}: expected attn_mask to broadcast to {shape.weights}, got {mask.shape}")
    if mask.data.dtype.kind != "b":
        check_float(who, mask)
        if mask.data.dtype not in (query.data.dtype, np.float32):
            raise DtypeError(
                f"{who}: expected attn_mask of bools, float32 or query's {query.dtype.name}, got {mask.dtype.name}"
            )
    return mask.data


def _bias(mask: Array, scores: Array) -> Array:
    """What is added to the scores: a mask of floats, or 0 and -inf for one of bools."""
    return _bias_of(mask, scores) if mask.dtype.kind == "b" else widened(mask)


def _causal(scores: Array) -> Array:
    """0, and -inf for the keys that come after each query: (L, S)."""
    xp = array_module(scores)
    return _bias_of(xp.arange(scores.shape[-1]) <= xp.arange(scores.shape[-2])[:, None], scores)


def _bias_of(seen: Array, scores: Array) -> Array:
    kind = scores.dtype.type
    return array_module(scores).where(seen, kind(0), kind(-math.inf))


# --------------------------------------------------------------------------------------------------------- arguments


@once
def _agreed(who: str, tensors: tuple[Any, Any, Any], enable_gqa: bool) -> Shape:
    """What query, key and value agree on; everything is checked."""
    query, key, value = tensors
    check_switch(who, enable_gqa=enable_gqa)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected {name} to be a tensor, got {kind_of(x)}")
        check_float(who, x)
        if x.ndim < 2:
            raise ShapeError(f"{who}: expected {name} of shape (..., length, features), got {x.shape}")
    given = f"got query {query.shape}, key {key.shape} and value {value.shape}"
    if not query.dtype == key.dtype == value.dtype:
        raise DtypeError(
            f"{who}: expected one dtype, got {query.dtype.name}, {key.dtype.name} and {value.dtype.name}"
        )
    same_device(who, query, key, value)
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"{who}: expected query (..., L, E), key (..., S, E) and value (..., S, V), {given}")
    lengths = query.shape[-2], key.shape[-2]
    batches = [x.shape[:-2] for x in (query, key, value)]
    heads = _shared_heads(who, batches, given) if enable_gqa else None
    try:
        if heads is not None:
            batch = (*np.broadcast_shapes(*[batch[:-1] for batch in batches]), batches[0][-1])
        else:
            batch = np.broadcast_shapes(*batches)
    except ValueError as error:
        hint = "" if enable_gqa else ": heads that share keys are enable_gqa=True"
        raise ShapeError(f"{who}: expected batch axes that broadcast, {given}{hint}") from error
    return Shape(batch, *lengths, heads)


def _shared_heads(who: str, batches: list[tuple[int, ...]], given: str) -> int | None:
    """The heads of keys where those of queries are a multiple; None where they are as many."""
    if not all(batches):
        raise ShapeError(f"{who}: expected heads, (..., heads, length, features), with enable_gqa, {given}")
    heads, of_keys, of_values = (batch[-1] for batch in batches)
    if of_keys != of_values or not of_keys or heads % of_keys:
        raise ShapeError(f"{who}: expected key and value of equally many heads, a divisor of query's, {given}")
    return None if heads == of_keys else of_keys
