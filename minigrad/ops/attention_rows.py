"""Attention where kernels run: products of matrices as they lie, and one kernel for the rows of scores each way.

Heads are views that lie side by side, so their axis and that of the samples do not fold into one. cuBLAS is then given
the addresses of all matrices of a call, which one launch lists for all its products.
"""

from __future__ import annotations

from collections.abc import Sequence

from minigrad.autograd.tape import Edge, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype
from minigrad.backend.fused.attention import score_gradient, weigh
from minigrad.backend.gemm import bmm, listed
from minigrad.backend.memory import contiguous
from minigrad.ops.attention_form import Form, Shape, alike
from minigrad.ops.axes import unbroadcast
from minigrad.ops.noise import Drops, dropped, take_drops
from minigrad.ops.pieces import room_for


def attend(
    query: Array, key: Array, value: Array, mask: Array | None, causal: bool, p: float, factor: float, shape: Shape
) -> tuple[Array, Array, Drops | None]:
    """The weighted means of values, the weights, and which of these are dropped."""
    xp, rows = array_module(query), shape.rows(query)
    products, weights = _of_products(query, shape)
    used = xp.empty_like(weights) if p else weights
    out = _place(query, (*shape.products, rows.shape[-2], value.shape[-1]))
    addresses = listed(shape.products, rows, key, products, used, value, out)
    bmm(rows, key.swapaxes(-1, -2), products, addresses=addresses)
    weigh(products.reshape(shape.weights), factor, causal, mask, weights.reshape(shape.weights))
    drops = None
    if p:
        drops = take_drops(weights.reshape(shape.weights), p)
        used = dropped(weights.reshape(shape.weights), drops, used.reshape(shape.weights)).reshape(weights.shape)
    bmm(used, value, out, addresses=addresses)
    return shape.apart(out), weights.reshape(shape.weights), drops


def weights_of(query: Array, key: Array, mask: Array | None, factor: float, shape: Shape) -> Array:
    """The weights alone."""
    products, weights = _of_products(query, shape)
    bmm(shape.rows(query), key.swapaxes(-1, -2), products)
    return weigh(products.reshape(shape.weights), factor, False, mask, weights.reshape(shape.weights))


def attend_backward(
    edges: Sequence[Edge],
    grad: Array,
    arrays: tuple[Array, Array, Array],
    weights: Array,
    drops: Drops | None,
    form: Form,
) -> None:
    """Give query, key, value, and a mask, the gradients of what `attend` gave."""
    (query, key, value), (dquery, dkey, dvalue, *dmask), shape = arrays, edges, form.shape
    xp, rows, slopes = array_module(grad), shape.rows(query), shape.shared(grad)
    of_products = (*shape.products, rows.shape[-2], shape.keys)
    used = weights if drops is None or dvalue is None else dropped(weights, drops)
    dweights = xp.empty(of_products, accumulator_dtype(grad.dtype))
    low = dweights if dweights.dtype == grad.dtype and not _wanted(dmask) else xp.empty(of_products, grad.dtype)
    used = used.reshape(of_products)
    out_query, out_key, out_value = (
        None if edge is None else _place(x, (*shape.products, *y.shape[-2:]), edge)
        for edge, x, y in ((dquery, query, rows), (dkey, key, key), (dvalue, value, value))
    )
    written = [x for x in (out_query, out_key, out_value) if x is not None]
    addresses = listed(shape.products, slopes, value, dweights, low, used, key, rows, *written)
    if out_value is not None:
        bmm(used.swapaxes(-1, -2), slopes, out_value, addresses=addresses)
        accumulate(dvalue, unbroadcast(out_value, value.shape))
    if dquery is None and dkey is None and not _wanted(dmask):
        return
    bmm(slopes, value.swapaxes(-1, -2), dweights, addresses=addresses)
    _scores_backward(dmask, dweights.reshape(shape.weights), low, weights, drops, form)
    if out_query is not None:
        bmm(low, key, out_query, addresses=addresses)
        accumulate(dquery, unbroadcast(shape.apart(out_query), query.shape))
    if out_key is not None:
        bmm(low.swapaxes(-1, -2), rows, out_key, addresses=addresses)
        accumulate(dkey, unbroadcast(out_key, key.shape))


def weights_backward(
    edges: Sequence[Edge], grad: Array, query: Array, key: Array, weights: Array, drops: Drops | None, form: Form
) -> None:
    """Give query, key, and a mask, the gradients of what `weights_of` gave."""
    (dquery, dkey, *dmask), shape, rows = edges, form.shape, form.shape.rows(query)
    wide = contiguous(grad).astype(accumulator_dtype(grad.dtype))
    low = array_module(grad).empty((*shape.products, rows.shape[-2], shape.keys), grad.dtype)
    _scores_backward(dmask, wide, low, weights, drops, form)
    if dquery is not None:
        accumulate(dquery, unbroadcast(shape.apart(bmm(low, key)), query.shape))
    if dkey is not None:
        accumulate(dkey, unbroadcast(bmm(low.swapaxes(-1, -2), rows), key.shape))


def _scores_backward(
    dmask: Sequence[Edge], dweights: Array, low: Array, weights: Array, drops: Drops | None, form: Form
) -> None:
    """Write the gradient of the products, and give a mask its own; overwrites that of the weights."""
    h = dweights if drops is None else contiguous(dropped(dweights, drops, dweights))
    score_gradient(h, weights, form.factor, low.reshape(form.shape.weights), h if _wanted(dmask) else None)
    if form.mask is not None and _wanted(dmask):
        shape, dtype = form.mask
        found = unbroadcast(h, shape)
        accumulate(dmask[0], found.astype(dtype, copy=found is h))


def _wanted(dmask: Sequence[Edge]) -> bool:
    return any(edge is not None for edge in dmask)


def _of_products(query: Array, shape: Shape) -> tuple[Array, Array]:
    """Where products and weights go: in one place, unless weights are narrower."""
    xp, wide = array_module(query), accumulator_dtype(query.dtype)
    count = shape.queries if shape.heads is None else shape.queries * (shape.batch[-1] // shape.heads)
    products = xp.empty((*shape.products, count, shape.keys), wide)
    return products, products if wide == query.dtype else xp.empty(products.shape, query.dtype)


def _place(model: Array, shape: tuple[int, ...], edge: Edge = None) -> Array:
    """Where a product goes: to the gradient of an edge, if that is a piece of this shape, else as the model lies."""
    room = room_for(edge, shape) if len(shape) > 2 and model.shape == shape else None
    if room is not None:
        return room
    found = alike(model, shape)
    return array_module(model).empty(shape, model.dtype) if found is None else found
