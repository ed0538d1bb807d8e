"""Normalization over the last axes: layer norm, and RMS norm, which leaves the mean where it is.

Variances are computed in two passes, Σ(x - mean)² rather than Σx² - (Σx)², and halves are worked on as float32.
"""

from __future__ import annotations

import math

from minigrad.autograd.tape import Edge, Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, finfo
from minigrad.backend.fused.layer_norm import gradients_of_rows, normalize_rows
from minigrad.backend.kernels import kernels_for
from minigrad.backend.workspace import empty
from minigrad.errors import ShapeError
from minigrad.ops.axes import column_sum, row_dot, row_sum
from minigrad.ops.channel_norms import affine_edges, affine_inputs, vector_gradients
from minigrad.ops.norms import check_input, give_vector, inverse_root
from minigrad.ops.operands import once
from minigrad.ops.precision import autocasts
from minigrad.ops.shape import sizes_of
from minigrad.ops.statistics import row_blocks, work_dtype
from minigrad.tensor import Tensor, record

__all__ = ["layer_norm", "rms_norm"]


@autocasts("high")
def layer_norm(
    x: Tensor,
    normalized_shape: int | tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(var + eps) · weight + bias, with mean and biased variance over the last axes (Ba et al., 2016).

    Shapes:
        x: (..., *normalized_shape), weight, bias: normalized_shape -> as x

    Args:
        eps: >= 0.

    Raises:
        ShapeError: the shapes do not fit as above.
        ArgumentError: eps out of range.
        DtypeError: no float tensors, or different dtypes.
    """
    shape = _last_axes("layer_norm", (x, weight, bias), normalized_shape, eps)
    rows = _rows(x.data, shape)
    gain = _vector(weight)
    shift = _vector(bias)
    forward = normalize_rows if kernels_for(rows) is not None else _normalize_rows
    out, mean, rstd = forward(rows, gain, shift, eps)
    saved = (x, weight, shape, mean, rstd)
    return record(out.reshape(x.data.shape), _layer_norm_backward, affine_inputs(x, weight, bias), saved)


def _normalize_rows(rows: Array, gain: Array | None, shift: Array | None, eps: float) -> tuple[Array, Array, Array]:
    """The reference of `normalize_rows`."""
    xp = array_module(rows)
    out = empty(rows.shape, rows.dtype, rows)
    mean, rstd = (xp.empty(len(rows), work_dtype(rows)) for _ in range(2))
    for part in row_blocks(rows):
        room = out[part] if out.dtype == mean.dtype else None
        mean[part, None], rstd[part, None], block = _standardize(rows[part], eps, room)
        if gain is not None:
            block *= gain
        if shift is not None:
            block += shift
        if room is None:
            out[part] = block
    return out, mean, rstd


def _standardize(rows: Array, eps: float, out: Array | None = None) -> tuple[Array, Array, Array]:
    """Mean and 1 / sqrt(var + eps) of each row, (R, 1), and the rows brought to mean 0 and variance 1."""
    wide = rows.astype(work_dtype(rows), copy=False)
    mean = (row_sum(wide) / rows.shape[1])[:, None]
    block = array_module(rows).subtract(wide, mean, out=out)
    rstd = inverse_root(row_dot(block, block) / rows.shape[1], eps)[:, None]
    block *= rstd
    return mean, rstd, block


def _layer_norm_backward(node: Node, grad: Array) -> None:
    x, weight, shape, mean, rstd = node.saved
    dx, dweight, dbias = affine_edges(node, weight)
    size = (len(mean), math.prod(shape))
    rows, grad_rows = x.data.reshape(size), grad.reshape(size)
    gain = _vector(weight)
    if kernels_for(rows) is not None:
        _give_by_kernels((dx, dweight, dbias), x.data, grad_rows, rows, gain, mean, rstd, shape)
        return
    wanted = (dx is not None, dweight is not None, dbias is not None)
    dx_rows, weighted, total = _gradients_of_rows(grad_rows, rows, gain, mean, rstd, wanted)
    for edge, vector in ((dbias, total), (dweight, weighted)):
        give_vector(edge, vector if edge is None else vector.reshape(shape), grad.dtype)
    if dx is not None:
        accumulate(dx, dx_rows.reshape(x.data.shape))


def _give_by_kernels(
    edges: tuple[Edge, Edge, Edge],
    x: Array,
    grad_rows: Array,
    rows: Array,
    gain: Array | None,
    mean: Array | None,
    rstd: Array,
    shape: tuple[int, ...],
) -> None:
    """The gradients of layer or RMS norm to x, weight and bias, by kernels."""
    dx, dweight, dbias = edges
    base = None if dx is dweight or dx is dbias else _held_by(dx)  # of a residual connection, say
    row_gradient = None if dx is None else array_module(x).empty(x.shape, x.dtype)
    vectors = vector_gradients((dweight, dbias), shape, grad_rows)
    gradients_of_rows(grad_rows, rows, gain, mean, rstd, row_gradient, *vectors, base)
    for edge, gradient in zip((dbias, dweight), reversed(vectors)):
        if gradient is not None:
            accumulate(edge, gradient)
    if base is not None:
        _give_total(dx, row_gradient)
    elif row_gradient is not None:
        accumulate(dx, row_gradient)


def _held_by(edge: Edge) -> Array | None:
    """What an inner edge has so far, in C order, for a kernel that adds it to what it computes (`_give_total`).

    None where it has nothing, is a leaf, or what it has lies otherwise: then `accumulate` adds.
    """
    held = edge.grad_array if isinstance(edge, Node) else None
    return held if held is not None and held.flags.c_contiguous else None


def _give_total(edge: Edge, total: Array | None) -> None:
    """Let an array that nobody else holds take the place of what `_held_by` gave, which is in it."""
    assert isinstance(edge, Node)
    edge.grad_array, edge.grad_owned = total, True


def _gradients_of_rows(
    grad: Array, rows: Array, gain: Array | None, mean: Array, rstd: Array, wanted: tuple[bool, bool, bool]
) -> tuple[Array, Array, Array]:
    """The gradients of rows, gain and shift, of which those that are not wanted say nothing."""
    xp = array_module(grad)
    dx = empty(rows.shape, rows.dtype, rows)
    total, weighted = (xp.zeros(rows.shape[1], mean.dtype) for _ in range(2))
    for part in row_blocks(rows):
        block, normal = grad[part].astype(mean.dtype, copy=False), rows[part] - mean[part, None]
        normal *= rstd[part, None]
        if wanted[2]:
            total += column_sum(block)
        if wanted[1]:
            weighted += column_sum(block * normal)
        if wanted[0]:
            room = dx[part] if dx.dtype == mean.dtype else None
            found = _layer_input_gradient(block, gain, normal, rstd[part, None], room)
            if room is None:
                dx[part] = found
    return dx, weighted, total


def _layer_input_gradient(
    grad: Array, gain: Array | None, normal: Array, rstd: Array, out: Array | None = None
) -> Array:
    """rstd · (h - mean(h) - normal · mean(h · normal)) by row, with h = grad · gain. Overwrites normal."""
    length = normal.shape[1]
    block = array_module(grad).multiply(grad, 1.0 if gain is None else gain, out=out)
    shares = (row_dot(block, normal) / length)[:, None]
    block -= (row_sum(block) / length)[:, None]
    normal *= shares
    block -= normal
    block *= rstd
    return block


# ----------------------------------------------------------------------------------------------------------------- rms


@autocasts("high")
def rms_norm(
    x: Tensor,
    normalized_shape: int | tuple[int, ...],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight, with the mean over the last axes (Zhang and Sennrich, 2019).

    With r = 1 / sqrt(mean(x²) + eps), n = x·r and h = g·weight: dx = r·(h - n·mean(h·n)), dweight = the sum of g·n.

    Shapes:
        x: (..., *normalized_shape), weight: normalized_shape -> as x

    Args:
        eps: >= 0; by default that of the dtype, of float32 for half precision.

    Raises:
        ShapeError: the shapes do not fit as above.
        ArgumentError: eps out of range.
        DtypeError: no float tensors, or different dtypes.
    """
    shape = _last_axes("rms_norm", (x, weight, None), normalized_shape, 0.0 if eps is None else eps)
    rows, wide = _rows(x.data, shape), work_dtype(x.data)
    gain = _vector(weight)
    least = float(finfo(wide).eps) if eps is None else eps
    inputs = affine_inputs(x, weight, None)
    if kernels_for(rows) is not None:
        out, _, rstd = normalize_rows(rows, gain, None, least, centered=False)
        return record(out.reshape(x.data.shape), _rms_norm_backward, inputs, (x, weight, shape, rstd))
    xp = array_module(rows)
    out, rstd = empty(rows.shape, rows.dtype, rows), xp.empty((len(rows), 1), wide)
    for part in row_blocks(rows):
        block = rows[part].astype(wide, copy=False)
        rstd[part] = inverse_root(row_dot(block, block) / max(rows.shape[1], 1), least)[:, None]
        block = block * rstd[part]
        if gain is not None:
            block *= gain
        out[part] = block
    return record(out.reshape(x.data.shape), _rms_norm_backward, inputs, (x, weight, shape, rstd))


def _rms_norm_backward(node: Node, grad: Array) -> None:
    x, weight, shape, rstd = node.saved
    dx, dweight, _ = affine_edges(node, weight)
    rows, grad_rows = _rows(x.data, shape), _rows(grad, shape)
    gain = _vector(weight)
    if kernels_for(rows) is not None:
        _give_by_kernels((dx, dweight, None), x.data, grad_rows, rows, gain, None, rstd, shape)
        return
    xp = array_module(rows)
    out, weighted = empty(rows.shape, rows.dtype, rows), xp.zeros(rows.shape[1], rstd.dtype)
    for part in row_blocks(rows):
        block, normal = grad_rows[part].astype(rstd.dtype, copy=False), rows[part] * rstd[part]
        if dweight is not None:
            weighted += column_sum(block * normal)
        if dx is not None:
            out[part] = _rms_input_gradient(block, gain, normal, rstd[part])
    give_vector(dweight, weighted.reshape(shape), grad.dtype)
    if dx is not None:
        accumulate(dx, out.reshape(x.data.shape))


def _rms_input_gradient(grad: Array, gain: Array | None, normal: Array, rstd: Array) -> Array:
    """rstd · (h - normal · mean(h · normal)) by row, with h = grad · gain. Overwrites normal."""
    block = grad * (1.0 if gain is None else gain)
    normal *= (row_dot(block, normal) / normal.shape[1])[:, None]
    block -= normal
    block *= rstd
    return block


# ----------------------------------------------------------------------------------------------------------- arguments


@once
def _last_axes(
    who: str,
    tensors: tuple[Tensor, Tensor | None, Tensor | None],
    normalized_shape: int | tuple[int, ...],
    eps: float,
) -> tuple[int, ...]:
    """The axes that are normalized, as their lengths; everything is checked."""
    x, weight, bias = tensors
    check_input(who, x, weight, bias, eps, least_ndim=1)
    shape = sizes_of(who, (normalized_shape,))
    if not shape or x.data.shape[-len(shape) :] != shape:
        raise ShapeError(f"{who}: expected x of shape (..., {', '.join(map(str, shape))}), got {x.shape}")
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and vector.data.shape != shape:
            raise ShapeError(f"{who}: expected {name} of shape {shape}, got {vector.shape}")
    return shape


def _rows(x: Array, shape: tuple[int, ...]) -> Array:
    """A matrix with a row for each of what is normalized together."""
    if x.ndim == 2 and len(shape) == 1 and x.size:
        return x
    length = math.prod(shape)
    return x.reshape(-1 if x.size else 0, length)


def _vector(parameter: Tensor | None) -> Array | None:
    """A weight or bias as a vector; an array of one axis is one."""
    if parameter is None or parameter.data.ndim == 1:
        return None if parameter is None else parameter.data
    return parameter.data.reshape(-1)
