"""Shapes, parts, places: what moves elements and makes none; and products of matrices."""

from __future__ import annotations

from typing import Any

import numpy as np

import minigrad as mg
from tests.onnx.elementwise import dtype_of
from tests.onnx.node import Function, Inexpressible, Node, ints


def _reshape(node: Node, x: Any, shape: Any) -> Any:
    """A 0 keeps the length of its axis, unless zeros are allowed."""
    sizes = ints(shape)
    if not node.get("allowzero"):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    return mg.reshape(x, sizes)


def _flatten(node: Node, x: Any) -> Any:
    """Always a matrix."""
    axis = node.get("axis", 1)
    axis += x.ndim if axis < 0 else 0
    return mg.reshape(x, (int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:]))))


def _squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    return mg.squeeze(x) if axes is None else mg.squeeze(x, tuple(ints(axes)))


def _unsqueeze(node: Node, x: Any, axes: Any) -> Any:
    """The axes are those of the output."""
    dims = ints(axes)
    for dim in sorted(dim % (x.ndim + len(dims)) for dim in dims):
        x = mg.unsqueeze(x, dim)
    return x


def _slice(node: Node, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    """From the end to the beginning by turning the axis round first: a negative step is no view."""
    begin, end = ints(starts), ints(ends)
    dims = ints(axes) if axes is not None else range(len(begin))
    for start, stop, dim, step in zip(begin, end, dims, ints(steps) if steps is not None else [1] * len(begin)):
        places = range(*slice(start, stop, step).indices(x.shape[dim]))
        x = mg.index_select(x, dim, mg.tensor(list(places), dtype=mg.int64))
    return x


def _split(node: Node, x: Any, sizes: Any = None) -> Any:
    dim = node.get("axis", 0)
    if sizes is not None:
        return mg.split(x, ints(sizes), dim)
    return mg.split(x, -(-x.shape[dim] // node.outputs), dim)


def _shape(node: Node, x: Any) -> Any:
    return mg.tensor(list(x.shape[slice(node.get("start", 0), node.get("end"))]), dtype=mg.int64)


def _pad(node: Node, x: Any, pads: Any, value: Any = None, axes: Any = None) -> Any:
    """ONNX lists all beginnings, then all ends; an axis that is not named gets nothing."""
    given = ints(pads)
    dims = [dim % x.ndim for dim in ints(axes)] if axes is not None else list(range(x.ndim))
    before, after = [0] * x.ndim, [0] * x.ndim
    for i, dim in enumerate(dims):
        before[dim], after[dim] = given[i], given[len(dims) + i]
    mode = {"constant": "constant", "edge": "replicate", "reflect": "reflect", "wrap": "circular"}[
        node.get("mode", "constant")
    ]
    both = [size for pair in reversed(list(zip(before, after))) for size in pair]
    if mode == "constant":
        return mg.ops.pad(x, both, value=0 if value is None else value.item())
    while both and both[-2:] == [0, 0]:  # the outer axes
        del both[-2:]
    if len(both) > 2 * (x.ndim - 1) or any(both[: 2 * max(0, x.ndim - 2)][4:]):
        raise Inexpressible("padding that repeats, along the first axes")
    return mg.ops.pad(x, both, mode=mode)


def _eye(node: Node, x: Any) -> Any:
    rows, columns = x.shape
    dtype = dtype_of(node.get("dtype")) if node.get("dtype") else x.dtype
    k = node.get("k", 0)
    top, left = max(0, k), max(0, -k)
    return mg.eye(top + rows, left + columns, dtype=dtype)[top:, left:]


def _expand(node: Node, x: Any, shape: Any) -> Any:
    return mg.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(ints(shape))))


def _transpose(node: Node, x: Any) -> Any:
    return mg.permute(x, *node.get("perm", range(x.ndim)[::-1]))


def _trilu(node: Node, x: Any, k: Any = None) -> Any:
    return (mg.triu if node.get("upper", 1) else mg.tril)(x, 0 if k is None else ints(k)[0])


def _constant_of_shape(node: Node, shape: Any) -> Any:
    value = node.get("value", np.zeros(1, np.float32))
    return mg.full(tuple(ints(shape)), value.item(), dtype=value.dtype)


def _range(node: Node, start: Any, end: Any, step: Any) -> Any:
    return mg.arange(start.item(), end.item(), step.item(), dtype=start.dtype)


def _one_hot(node: Node, index: Any, depth: Any, values: Any) -> Any:
    """Negative indices count from the end; those beyond it have no one."""
    (count,) = ints(depth)
    index = index.to(mg.int64)
    places = mg.arange(count)
    hot = mg.remainder(index, count).unsqueeze(-1) == places
    hot = hot & ((index >= -count) & (index < count)).unsqueeze(-1)
    dim = node.get("axis", -1)
    return mg.where(mg.movedim(hot, -1, dim), values[1], values[0])


def _space_to_depth(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    order = (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return x.reshape(n, c, h // b, b, w // b, b).permute(*order).reshape(n, c * b * b, h // b, w // b)


def _depth_to_space(node: Node, x: Any) -> Any:
    n, c, h, w = x.shape
    b = node.get("blocksize")
    if node.get("mode", "DCR") == "DCR":
        return x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // b**2, h * b, w * b)
    return x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


# ------------------------------------------------------------------------------------------------------- by index


def _gather(node: Node, x: Any, index: Any) -> Any:
    dim = node.get("axis", 0) % x.ndim
    return x[(slice(None),) * dim + (index,)]


def _gather_elements(node: Node, x: Any, index: Any) -> Any:
    dim = node.get("axis", 0)
    return mg.gather(x, dim, mg.remainder(index, x.shape[dim]))


def _gather_nd(node: Node, x: Any, index: Any) -> Any:
    """The last axis of the index says where, behind the axes that both have."""
    shared = node.get("batch_dims", 0)
    rows = tuple(
        mg.arange(size).reshape((-1,) + (1,) * (index.ndim - 2 - axis)) for axis, size in enumerate(x.shape[:shared])
    )
    return x[rows + tuple(mg.unbind(index, -1))]


def _scatter_elements(node: Node, x: Any, index: Any, updates: Any) -> Any:
    dim = node.get("axis", 0)
    index = mg.remainder(index, x.shape[dim])
    how = node.get("reduction", "none")
    if how == "add":
        return mg.scatter_add(x, dim, index, updates)
    if how != "none":
        raise Inexpressible("scattering by a product or an extremum")
    return mg.scatter(x, dim, index, updates)


def _scatter_nd(node: Node, x: Any, index: Any, updates: Any) -> Any:
    how = node.get("reduction", "none")
    if how not in ("none", "add"):
        raise Inexpressible("scattering by a product or an extremum")
    out = mg.clone(x)
    places = tuple(mg.unbind(index, -1))
    if how == "add":
        flat = mg.arange(x.numel()).reshape(x.shape)[places].reshape(-1)
        return mg.index_add(x.reshape(-1), 0, flat, updates.reshape(-1)).reshape(x.shape)
    out[places] = updates
    return out


def _compress(node: Node, x: Any, condition: Any) -> Any:
    if "axis" not in node.attributes:
        x = x.reshape(-1)
    dim = node.get("axis", 0)
    keep = [i for i, yes in enumerate(condition.tolist()) if yes]
    return mg.index_select(x, dim, mg.tensor(keep, dtype=mg.int64))


def _reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    batch, time = node.get("batch_axis", 1), node.get("time_axis", 0)
    rows = mg.movedim(x, (batch, time), (0, 1))
    places = mg.arange(rows.shape[1])
    sizes = lengths.unsqueeze(1)
    index = mg.where(places < sizes, sizes - 1 - places, places)
    turned = rows[mg.arange(rows.shape[0]).unsqueeze(1), index]
    return mg.movedim(turned, (0, 1), (batch, time))


# ------------------------------------------------------------------------------------------------------- matrices


def _center_crop_pad(node: Node, x: Any, sizes: Any) -> Any:
    """Cut, or filled with zeros, alike at both ends; what is odd is at the end."""
    for dim, size in zip(node.get("axes", range(x.ndim)), ints(sizes)):
        dim, less = dim % x.ndim, size - x.shape[dim]
        if less < 0:
            x = mg.narrow(x, dim, -less // 2, size)
        both = [0] * (2 * (x.ndim - dim - 1)) + [less // 2, less - less // 2]
        x = mg.ops.pad(x, both) if less > 0 else x
    return x


def _tensor_scatter(node: Node, past: Any, update: Any, starts: Any = None) -> Any:
    """Rows of a cache, from a place of its own for each sample, round its end where it says so."""
    dim = node.get("axis", -2)
    out = mg.movedim(past, (0, dim), (0, 1)).clone()
    new = mg.movedim(update, (0, dim), (0, 1))
    begin = mg.zeros(past.shape[0], dtype=mg.int64) if starts is None else starts
    places = begin.unsqueeze(1) + mg.arange(new.shape[1])
    if node.get("mode", "linear") == "circular":
        places = mg.remainder(places, out.shape[1])
    out[mg.arange(past.shape[0]).unsqueeze(1), places] = new
    return mg.movedim(out, (0, 1), (0, dim))


def _affine_grid(node: Node, theta: Any, size: Any) -> Any:
    """Where each pixel of the output looks, in [-1, 1], at the ends of the axis or half a pixel within."""
    space = ints(size)[2:]
    rows = []
    for length in space:
        at = mg.arange(length).to(theta.dtype)
        rows.append(-1 + 2 * at / (length - 1) if node.get("align_corners") else -1 + (2 * at + 1) / length)
    grid = mg.stack([*mg.meshgrid(*rows, indexing="ij")][::-1], -1)
    ones = mg.ones(*space, 1, dtype=theta.dtype)
    flat = mg.cat([grid, ones], -1).reshape(-1, len(space) + 1)
    return (flat @ mg.transpose(theta, 1, 2)).reshape(theta.shape[0], *space, len(space))


def _gemm(node: Node, x: Any, y: Any, bias: Any = None) -> Any:
    x, y = (m.t() if node.get(name) else m for m, name in ((x, "transA"), (y, "transB")))
    product = node.get("alpha", 1.0) * (x @ y)
    return product if bias is None else product + node.get("beta", 1.0) * bias


def _einsum(node: Node, *xs: Any) -> Any:
    return mg.einsum(node.get("equation"), *xs)


FUNCTIONS: dict[str, Function] = {
    "AffineGrid": _affine_grid,
    "ArrayFeatureExtractor": lambda node, x, index: mg.index_select(x, -1, index.reshape(-1)),
    "CenterCropPad": _center_crop_pad,
    "Compress": _compress,
    "Concat": lambda node, *xs: mg.cat(list(xs), node.get("axis")),
    "Constant": lambda node: mg.tensor(node.get("value")),
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Einsum": _einsum,
    "Expand": _expand,
    "EyeLike": _eye,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": lambda node, x, y: mg.matmul(x, y),
    "NonZero": lambda node, x: mg.nonzero(x).t(),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": lambda node, x: mg.tensor(x.numel(), dtype=mg.int64),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "TensorScatter": _tensor_scatter,
    "Tile": lambda node, x, repeats: mg.tile(x, *ints(repeats)),
    "Transpose": _transpose,
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
}
