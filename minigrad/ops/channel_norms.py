"""Batch, group and instance norm by kernels, on images with the channels last: what norms.py does where there are any.

All three see an image as rows of channels, and differ only in which rows and channels share a mean and a variance.
"""

from __future__ import annotations

import functools
import math

from minigrad.autograd.tape import Edge, Node, accumulate, destination
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.channel_norm import (
    Running,
    Segments,
    Statistics,
    channel_gradients,
    normalize_channels,
    normalize_fixed,
)
from minigrad.backend.fused.rows import compute_dtype
from minigrad.backend.memory import contiguous
from minigrad.ops.image_order import from_nhwc, to_nhwc
from minigrad.stamp import mark_changed
from minigrad.tensor import Tensor, record

Moved = tuple[Tensor | None, Tensor | None, Tensor | None, float]  # running mean and variance, batches, momentum


@functools.lru_cache(maxsize=256)
def segments_of(shape: tuple[int, ...], by_sample: bool, groups: int) -> Segments:
    """Which rows of images (N, C, ...), which are not empty, and which channels share statistics."""
    samples, channels, *size = shape
    pixels = math.prod(size)
    if by_sample:
        return Segments(samples, pixels, channels, groups)
    return Segments(1, samples * pixels, channels, groups)


def batch_normalized(x: Tensor, weight: Tensor | None, bias: Tensor | None, moved: Moved, eps: float) -> Tensor:
    """Batch norm by the batch's statistics, which the running ones move towards, as far as `moves` says so."""
    mean, variance, batches, momentum = moved
    running = Running(_data(mean), _data(variance), _data(batches), momentum)
    out, _ = normalized(x, weight, bias, segments_of(x.data.shape, False, x.data.shape[1]), eps, running)
    for one in (mean, variance, batches):
        if one is not None:
            mark_changed(one)
    return out


def moves(x: Tensor, *running: Tensor | None) -> bool:
    """Whether a kernel can move these running statistics: contiguous ones in the dtype of x."""
    dtype = x.data.dtype
    for one in running:
        if one is not None and not (one.data.dtype == dtype and one.data.flags.c_contiguous):
            return False
    return True


def normalized(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    segments: Segments,
    eps: float,
    running: Running = Running(),
    with_variance: bool = False,
) -> tuple[Tensor, Statistics]:
    """Images by their own statistics, and these."""
    gain, shift = _vector(weight), _vector(bias)
    y, found = normalize_channels(to_nhwc(x.data), segments, gain, shift, eps, running, with_variance)
    return _recorded(x, weight, bias, y, segments, found), found


def normalized_by(
    x: Tensor, mean: Array | None, variance: Array | None, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Images by given statistics, (C,) each; by 0 and 1 where they are None."""
    given = [one.dtype for one in (mean, variance) if one is not None]
    dtype = x.data.dtype if all(one == x.data.dtype for one in given) else compute_dtype(x.data.dtype)
    mean, variance = (None if one is None else contiguous(one.astype(dtype, copy=False)) for one in (mean, variance))
    y, found = normalize_fixed(to_nhwc(x.data), mean, variance, _vector(weight), _vector(bias), eps)
    return _recorded(x, weight, bias, y, segments_of(x.data.shape, False, x.data.shape[1]), found)


def _recorded(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, y: Array, segments: Segments, found: Statistics
) -> Tensor:
    inputs = affine_inputs(x, weight, bias)
    return record(from_nhwc(y, x.data.shape), _channel_norm_backward, inputs, (x, weight, segments, found))


def _channel_norm_backward(node: Node, grad: Array) -> None:
    x, weight, segments, found = node.saved
    dx, dweight, dbias = affine_edges(node, weight)
    rows = to_nhwc(x.data)
    rows_gradient = None if dx is None else array_module(rows).empty(rows.shape, rows.dtype)
    vectors = vector_gradients((dweight, dbias), (segments.channels,), grad)
    channel_gradients(to_nhwc(grad), rows, segments, _vector(weight), found, rows_gradient, *vectors)
    for edge, vector in zip((dbias, dweight), reversed(vectors)):
        if vector is not None:
            accumulate(edge, vector)
    if rows_gradient is not None:
        accumulate(dx, from_nhwc(rows_gradient, x.data.shape))


def _data(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else tensor.data


def _vector(tensor: Tensor | None) -> Array | None:
    return None if tensor is None else contiguous(tensor.data)


def affine_inputs(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
    """x, and the weight and the bias, as far as there are any."""
    if weight is not None and bias is not None:
        return x, weight, bias
    return (x, *[t for t in (weight, bias) if t is not None])


def affine_edges(node: Node, weight: Tensor | None) -> tuple[Edge, Edge, Edge]:
    """The edges to x, weight and bias, of which weight and bias may be missing."""
    edges = list(node.inputs)
    if weight is None:
        edges.insert(1, None)
    return edges[0], edges[1], edges[2] if len(edges) > 2 else None


def vector_gradients(
    edges: tuple[Edge, Edge], shape: tuple[int, ...], like: Array
) -> tuple[Array | None, Array | None]:
    """Where a kernel writes the gradients of a weight and a bias, to be accumulated then; None where none is wanted."""
    first, second = edges
    xp = array_module(like)
    places = []
    for edge, place in ((first, destination(first)), (second, None if second is first else destination(second))):
        fits = place is not None and place.dtype == like.dtype and place.flags.c_contiguous
        places.append(None if edge is None else place if fits else xp.empty(shape, like.dtype))
    return places[0], places[1]
