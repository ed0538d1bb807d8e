"""Attention in host memory by blocks: a few heads at a time, or some queries of one, whose scores stay in a cache.

Backward computes the weights anew from the scores, by the largest and the sum of each row (Dao et al.,
"FlashAttention", 2022); where they take at most twice the memory of queries, keys and values they are kept, which is
faster. With a causal mask, blocks of queries leave out the keys that come after all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minigrad.autograd.tape import Edge, Node, accumulate
from minigrad.backend.dtypes import Array
from minigrad.backend.workspace import empty, empty_in_order, empty_like, memory_order
from minigrad.ops.axes import max_axes, row_dot, sum_axes
from minigrad.ops.pieces import room_for
from minigrad.tensor import Tensor, record

_FEW, _MANY = 1 << 18, 1 << 17  # scores in a block of several heads, and of some queries of one head
_QUERIES = 128  # at most, of those


class _Form(NamedTuple):
    """What backward has to know of a call beside its arrays."""

    factor: float
    is_causal: bool
    drops: tuple[Array, float] | None  # which weights stay, and their scale

    def dropped(self, x: Array, place: Any) -> Array:
        """A block of weights, or of their gradients, without those that are dropped."""
        if self.drops is None:
            return x
        mask, scale = self.drops
        found: Array = x * mask[place]
        found *= scale
        return found


class _Block(NamedTuple):
    """A part of a call: which heads, queries and keys; whole says that all queries of these heads are in it."""

    heads: tuple[Any, ...]
    rows: slice
    keys: slice
    whole: bool

    @property
    def scores(self) -> tuple[Any, ...]:
        """The place of its scores among all."""
        return (*self.heads, ..., self.rows, self.keys)

    def queries(self, x: Array) -> Array:
        """Its part of (..., L, D)."""
        place = self.heads if self.whole else (*self.heads, self.rows)
        return x[place]

    def seen(self, x: Array) -> Array:
        """Its part of (..., S, D)."""
        place = (*self.heads, ..., self.keys, slice(None))
        return x[place]


def fits(query: Array, key: Array, value: Array) -> bool:
    """Whether a call is one that this file is for: in host memory, no half precision, nothing empty or stretched."""
    on_host = query.__class__ is np.ndarray and query.dtype.char in "fd"
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2]
    return on_host and alike and min(query.size, key.size, value.size) > 0


def attend_in_blocks(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, factor: float, is_causal: bool,
    drops: tuple[Array, float] | None,
) -> Tensor:
    """`scaled_dot_product_attention` of arguments that are known to fit; the mask gets no gradient."""
    q, k, v, form = query.data, key.data, value.data, _Form(factor, is_causal, drops)
    shape = (*q.shape[:-1], k.shape[-2])
    bias = _bias(mask, shape, q.dtype)
    out = empty_in_order(np, (*q.shape[:-1], v.shape[-1]), memory_order(q), q.dtype)
    few = _are_few(q, k, v)
    weights, rows = empty(shape, q.dtype, q) if few else None, None if few else np.empty((2, *q.shape[:-1], 1), q.dtype)
    for block in _blocks(shape, is_causal):
        scores = _scores(block, q, k, bias, form, weights[block.heads] if weights is not None and block.whole else None)
        last = (scores.ndim - 1,)
        top = np.maximum(max_axes(scores, last, keepdim=True), np.finfo(scores.dtype).min)  # -inf less this is -inf
        scores -= top
        np.exp(scores, out=scores)
        total = sum_axes(scores, last, keepdim=True)
        total += total == 0
        scores /= total
        if rows is not None:  # two numbers: a logarithm of the sum would be lost beside a top of -1e9, as masks make it
            block.queries(rows[0])[...] = top
            np.divide(1, total, out=block.queries(rows[1]))
        elif weights is not None and not block.whole:
            weights[block.scores] = scores
        np.matmul(form.dropped(scores, block.scores), block.seen(v), out=block.queries(out))
    watched = () if mask is None else (mask,)
    saved = (query, key, value, weights, rows, form, *(() if few else watched))
    return record(out, _attend_backward, (query, key, value, *watched), saved)


def _are_few(q: Array, k: Array, v: Array) -> bool:
    """Whether the weights take at most twice the memory of queries, keys and values."""
    given = q.shape[-2] * q.shape[-1] + k.shape[-2] * (k.shape[-1] + v.shape[-1])
    return bool(q.shape[-2] * k.shape[-2] <= 2 * given)


def _attend_backward(node: Node, grad: Array) -> None:
    query, key, value, weights, rows, form, *mask = node.saved
    q, k, v = query.data, key.data, value.data
    shape = (*q.shape[:-1], k.shape[-2])
    bias = _bias(mask[0] if mask else None, shape, q.dtype)
    blocks = list(_blocks(shape, form.is_causal))
    dq, dk, dv = (_room(edge, x, blocks[0].whole) for edge, x in zip(node.inputs, (q, k, v)))
    for block in blocks:
        g = block.queries(grad)
        if rows is None:
            p = weights[block.scores]
        else:
            p = _scores(block, q, k, bias, form, None)
            p -= block.queries(rows[0])
            np.exp(p, out=p)
            share = block.queries(rows[1])
            g = g * share  # in the place of the weights, which are p · share
        if dv is not None:
            _put(block, dv, form.dropped(p, block.scores), g)
        if dq is not None or dk is not None:
            scores = form.dropped(np.matmul(g, block.seen(v).swapaxes(-1, -2)), block.scores)
            flat = (-1, scores.shape[-1])
            means = row_dot(scores.reshape(flat), p.reshape(flat)).reshape(*scores.shape[:-1], 1)
            scores -= means if rows is None else means * share
            scores *= p
            if dq is not None:
                part = block.queries(dq)
                np.matmul(scores, block.seen(k), out=part)
                part *= form.factor
            if dk is not None:
                _put(block, dk, scores, block.queries(q) * form.factor)
    for edge, found in zip(node.inputs, (dq, dk, dv)):
        if found is not None:
            accumulate(edge, found)


def _put(block: _Block, out: Array, scores: Array, rows: Array) -> None:
    """Write, or add where other queries see the same keys, scoresᵀ @ rows."""
    if block.whole:
        np.matmul(scores.swapaxes(-1, -2), rows, out=block.seen(out))
    else:
        part = block.seen(out)
        part += np.matmul(scores.swapaxes(-1, -2), rows)


def _room(edge: Edge, x: Array, is_written: bool) -> Array | None:
    """Memory for the gradient of an array, zeros where it is not written but added to; None where none is wanted."""
    if edge is None:
        return None
    if not is_written:
        return np.zeros(x.shape, x.dtype)
    found = room_for(edge, x.shape)
    return empty_like(x) if found is None else found


# ---------------------------------------------------------------------------------------------------------- scores


def _scores(block: _Block, q: Array, k: Array, bias: Array | None, form: _Form, out: Array | None) -> Array:
    """The scores of a block, with what is added to them."""
    scores = np.matmul(block.queries(q) * form.factor, block.seen(k).swapaxes(-1, -2), out=out)
    if bias is not None:
        scores += bias[block.scores]
    if form.is_causal:
        start = block.rows.start
        hidden = scores[..., start:]
        hidden += _causal(*hidden.shape[-2:], scores.dtype)
    return scores


def _bias(mask: Tensor | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
    """What a mask of bools or floats adds to the scores, stretched to their shape."""
    if mask is None:
        return None
    added = mask.data if mask.data.dtype.kind != "b" else np.where(mask.data, dtype.type(0), dtype.type(-math.inf))
    return np.broadcast_to(added, shape)


@functools.lru_cache(maxsize=32)
def _causal(queries: int, keys: int, dtype: np.dtype[Any]) -> Array:
    """0, and -inf for the keys that come after each query."""
    bias = np.where(np.arange(keys) <= np.arange(queries)[:, None], dtype.type(0), dtype.type(-math.inf))
    bias.flags.writeable = False
    return bias


def _blocks(shape: tuple[int, ...], is_causal: bool) -> Iterator[_Block]:
    """The blocks of scores (..., L, S)."""
    *batch, queries, keys = shape
    step = max(1, min(_QUERIES, _MANY // keys))
    if queries <= step or (queries * keys <= _FEW and not is_causal):
        for heads in _runs(batch, queries * keys):
            yield _Block(heads, slice(0, queries), slice(0, keys), True)
        return
    for heads in np.ndindex(*batch):
        for start in range(0, queries, step):
            stop = min(start + step, queries)
            yield _Block(heads, slice(start, stop), slice(0, min(keys, stop) if is_causal else keys), False)


def _runs(batch: list[int], size: int) -> Iterator[tuple[Any, ...]]:
    """Indexes into the batch axes, of as many elements of a size as a block may have."""
    if not batch:
        yield ()
        return
    first, *others = batch
    inner = math.prod(others) * size
    if others and inner > _FEW:
        for i in range(first):
            for rest in _runs(others, size):
                yield (i, *rest)
    else:
        step = max(1, _FEW // inner)
        for start in range(0, first, step):
            yield (slice(start, start + step),)
