"""Picking elements by position: x[index], gather, index_select, embedding, one_hot."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_integer
from minigrad.autograd.tape import Edge, Node, accumulate, destination, own_gradient
from minigrad.backend.device import array_module, to_device, to_host
from minigrad.backend.dtypes import Array, converted, is_half, widened
from minigrad.backend.flags import check_range, checked_by_kernel
from minigrad.backend.fused.embedding import pick_rows, sum_rows
from minigrad.backend.kernels import kernels_for
from minigrad.errors import ArgumentError, DtypeError, IndexRangeError, ShapeError
from minigrad.ops.axes import normalize_axis
from minigrad.ops.methods import method, method_as
from minigrad.ops.operands import TensorLike, as_operand, masked, same_device
from minigrad.ops.join import part_backward, slice_of
from minigrad.ops.shape import reshape
from minigrad.tensor import Tensor, record

__all__ = ["embedding", "gather", "getitem", "index_select", "one_hot", "take_along_dim"]


@method_as("__getitem__")
def getitem(x: TensorLike, index: Any) -> Tensor:
    """x[index] with NumPy's rules; dx is zero but for g at the index, added up where an element was picked twice.

    Integers, slices, None and Ellipsis give a view. Tensors, arrays and lists of integers or bools give a copy. As in
    PyTorch, uint8 is a mask, and a list with a list, a tensor, a slice, None or Ellipsis in it is a tuple of indexes.

    Raises:
        IndexRangeError: an integer out of range (in an array on a GPU: when the host next reads from it), more indexes
            than axes, or a mask of another shape.
        DtypeError: an index of another type.
        DeviceError: an index tensor on another device.
    """
    x = as_operand("getitem", x)
    parts = plain_index("getitem", x, index)
    data = _pick("getitem", x, parts)
    arrays = [part for part in parts if hasattr(part, "dtype")]
    if arrays:
        check_index_arrays("getitem", x, parts)
    else:
        return slice_of(x, data, parts)
    watched = [part for part in (index if isinstance(index, tuple) else (index,)) if isinstance(part, Tensor)]
    backward = part_backward if all(array.dtype.kind == "b" for array in arrays) else _pick_backward
    return record(data, backward, (x, *watched), (x.data.shape, parts, *watched))


def plain_index(who: str, x: Tensor, index: Any) -> tuple[Any, ...]:
    """An index of any kind as a tuple of integers, slices, None, Ellipsis and arrays on the device of x.

    Raises:
        DtypeError, DeviceError: as `getitem`.
    """
    if isinstance(index, tuple) or (isinstance(index, list) and _is_tuple(index)):
        return tuple(_plain_part(who, x, part) for part in index)
    return (_plain_part(who, x, index),)


def _is_tuple(index: list[Any]) -> bool:
    """Whether PyTorch takes a list as one index for each axis: below 32 parts, of which one is no number."""
    parts = (list, tuple, range, slice, Tensor, np.ndarray)
    return len(index) < 32 and any(part is None or part is Ellipsis or isinstance(part, parts) for part in index)


def _plain_part(who: str, x: Tensor, part: Any) -> Any:
    if part.__class__ in (int, slice) or part is None or part is Ellipsis:
        return part
    if isinstance(part, Tensor):
        same_device(who, x, part)
        array = part.data
    elif isinstance(part, (list, range, np.ndarray)):
        array = to_device(_index_array(who, part), x.device)
    elif isinstance(part, np.integer):
        return int(part)
    else:
        array = part
    kind = getattr(getattr(array, "dtype", None), "kind", "")
    if kind not in ("i", "u", "b") or isinstance(array, np.generic):
        got = f"{array.dtype.name} {array.shape}" if kind else type(part).__name__
        raise DtypeError(
            f"{who}: expected integers, slices, None, Ellipsis or arrays of integers or bools as index, got {got}"
        )
    return array if kind != "u" else array != 0


def check_index_arrays(who: str, x: Tensor, parts: tuple[Any, ...]) -> None:
    """Let a GPU look at the integer arrays of an index, for it wraps around; NumPy looks itself."""
    if isinstance(x.data, np.ndarray):
        return
    picking = [part for part in parts if part is not None]
    missing = x.data.ndim - sum(_axes_of(part) for part in picking)
    axis = 0
    for part in picking:
        if hasattr(part, "dtype") and part.dtype.kind != "b":
            length = x.data.shape[axis]
            check_range(who, "indexes", part, -length, length)
        axis += missing if part is Ellipsis else _axes_of(part)


def _axes_of(part: Any) -> int:
    """How many axes a part of an index takes."""
    if part is Ellipsis:
        return 0
    return part.ndim if hasattr(part, "dtype") and part.dtype.kind == "b" else 1


def _index_array(who: str, values: Any) -> Array:
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"{who}: expected an index list of one shape, got a ragged one") from error
    return array if array.size else array.astype(np.int64)


def _pick(who: str, x: Tensor, parts: tuple[Any, ...]) -> Array:
    try:
        data = x.data[parts]
        return x.data[parts + (...,)] if isinstance(data, np.generic) else data  # a view, as for every other index
    except IndexError as error:
        raise IndexRangeError(f"{who}: expected an index into shape {x.shape}, got {_shown(parts)}: {error}") from error
    except TypeError as error:
        raise DtypeError(f"{who}: expected integers in slices, got {_shown(parts)}") from error


def _shown(parts: tuple[Any, ...]) -> str:
    return ", ".join(f"{p.dtype.name} {p.shape}" if hasattr(p, "dtype") else repr(p) for p in parts)


def _pick_backward(node: Node, grad: Array) -> None:
    shape, parts = node.saved[:2]
    edge = node.inputs[0]
    if len(parts) == 1:
        _add_rows(edge, shape, 0, parts[0], grad)
    else:
        _add_at(edge, shape, parts, grad)


# ------------------------------------------------------------------------------------------- adding at an index


def _add_at(edge: Edge, shape: tuple[int, ...], index: tuple[Any, ...], grad: Array) -> None:
    """Add a gradient at an index that may name an element more than once; half floats are summed in float32."""
    if edge is None:
        return
    xp = array_module(grad)
    if grad.dtype.itemsize == 2:
        total = xp.zeros(shape, np.float32)
        xp.add.at(total, index, grad.astype(np.float32))
        accumulate(edge, total.astype(grad.dtype))
    else:
        xp.add.at(own_gradient(edge, shape, grad), index, grad)


def _add_rows(
    edge: Edge, shape: tuple[int, ...], dim: int, index: Array, grad: Array, skipped: int | None = None
) -> None:
    """`_add_at` for one integer array that picked along one axis: grad has index's axes in the place of that axis.

    Rows that were picked by the same number are sorted together and summed in a fixed order: on a GPU add.at takes
    them in another one each time, and so has other bits; on NumPy it takes two to thirteen times as long. A kernel may
    skip one number, for which rows then have any values.
    """
    if edge is None:
        return
    xp, by_kernels = array_module(grad), kernels_for(grad) is not None
    if not grad.size or (not by_kernels and grad.size == index.size):
        _add_at(edge, shape, (slice(None),) * dim + (index,), grad)
        return
    axes = tuple(range(index.ndim))
    rows = xp.moveaxis(grad, [dim + axis for axis in axes], axes).reshape(index.size, -1)
    if by_kernels:
        _add_rows_by_kernel(edge, shape, dim, index, rows, skipped)
        return
    wrapped = index.reshape(-1).astype(np.intp) % shape[dim]
    order = wrapped.argsort()
    named, rows = wrapped[order], widened(rows.take(order, 0))
    starts = np.flatnonzero(np.concatenate([[True], named[1:] != named[:-1]]))
    total, picked = np.moveaxis(own_gradient(edge, shape, grad), dim, 0), named[starts]
    sums = total[picked] + np.add.reduceat(rows, starts, 0).reshape(-1, *total.shape[1:])
    total[picked] = converted(sums, grad.dtype) if is_half(grad.dtype) else sums


def _add_rows_by_kernel(
    edge: Edge, shape: tuple[int, ...], dim: int, index: Array, rows: Array, skipped: int | None
) -> None:
    place = destination(edge) if dim == 0 else None
    if place is not None and place.flags.c_contiguous:
        sum_rows(rows, index, shape[0], skipped, place.reshape(shape[0], -1))
        accumulate(edge, place)
        return
    sums = sum_rows(rows, index, shape[dim], skipped).reshape(-1, *shape[:dim], *shape[dim + 1 :])
    accumulate(edge, array_module(sums).moveaxis(sums, 0, dim))


# --------------------------------------------------------------------------------------------- picking by tensors


def check_index(who: str, index: TensorLike, x: Tensor) -> Tensor:
    """An index as an integer tensor on the device of x.

    Raises:
        DtypeError: it is not of integers.
        DeviceError: it is on another device.
    """
    found = as_operand(who, index)
    if found.data.dtype.kind not in "iu":
        raise DtypeError(f"{who}: expected an integer index, got {found.dtype.name} {found.shape}")
    same_device(who, x, found)
    return found


@method
def gather(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """z[i, j, ...] = x[i, index[i, j, ...], ...] for dim = 1, and alike for others; dx adds up g where x was picked.

    Shapes:
        index: as many axes as x, none longer than in x but for dim -> index's; no axes are one; empty: of any shape

    Raises:
        ShapeError: as said above.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    x = as_operand("gather", x)
    index = check_index("gather", index, x)
    dim = normalize_axis("gather", dim, x.ndim)
    if not index.data.size:
        return reshape(getitem(reshape(x, -1), slice(0, 0)), index.data.shape)
    if x.ndim + index.ndim == 1:
        return reshape(gather(reshape(x, -1), 0, reshape(index, -1)), index.data.shape)
    check_fits("gather", x, dim, index)
    return _pick_along("gather", x, dim, index, index.data.shape)


def check_fits(who: str, x: Tensor, dim: int, index: Tensor) -> None:
    """Refuse an index of another number of axes, or longer than x along another axis than dim.

    Raises:
        ShapeError: it is.
    """
    shape, wanted = x.data.shape, index.data.shape
    if len(shape) != len(wanted) or any(n < m for i, (n, m) in enumerate(zip(shape, wanted)) if i != dim):
        raise ShapeError(f"{who}: expected an index that fits into {shape} but for axis {dim}, got {wanted}")


@method
def take_along_dim(x: Tensor, index: Tensor, dim: int | None = None) -> Tensor:
    """`gather` that broadcasts x and index but for dim, where -1 is the last; with dim=None both are flattened first.

    Shapes:
        x: (A, N, B), index: (A, K, B) -> (A, K, B) for dim = 1

    Raises:
        ShapeError: other numbers of axes, or shapes that do not broadcast.
        IndexRangeError: an index outside [-x.shape[dim], x.shape[dim]); on a GPU when the host next reads from it.
    """
    x = as_operand("take_along_dim", x)
    index = check_index("take_along_dim", index, x)
    if dim is None:
        return take_along_dim(reshape(x, -1), reshape(index, -1), 0)
    dim = normalize_axis("take_along_dim", dim, x.ndim)
    if x.ndim != index.ndim:
        raise ShapeError(f"take_along_dim: expected as many axes as in x {x.shape}, got index {index.shape}")
    return _pick_along("take_along_dim", x, dim, index, x.data.shape, wraps=True)


def _pick_along(
    who: str, x: Tensor, dim: int, index: Tensor, lengths: tuple[int, ...], wraps: bool = False
) -> Tensor:
    """x at index along dim, and at 0, 1, ... of these lengths along the other axes."""
    parts = places_along(who, x, dim, index, lengths, wraps)
    try:
        data = x.data[parts]
    except IndexError as error:
        shapes = f"x {x.shape} and index {index.shape}"
        raise ShapeError(f"{who}: expected shapes that broadcast but for axis {dim}, got {shapes}") from error
    return record(data, _pick_along_backward, (x, index), (x.data.shape, parts, index))


def places_along(
    who: str, x: Tensor, dim: int, index: Tensor, lengths: tuple[int, ...], wraps: bool = False
) -> tuple[Array, ...]:
    """The index of x that is `index` along dim, and counts to these lengths along the other axes.

    Args:
        wraps: An index of -1 is the last.

    Raises:
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    length = x.data.shape[dim] if x.ndim else 1
    check_range(who, "indexes", index.data, -length if wraps else 0, length)
    xp = array_module(x.data)
    parts: list[Array] = []
    for axis, length in enumerate(lengths):
        steps = tuple(-1 if i == axis else 1 for i in range(len(lengths)))
        parts.append(index.data if axis == dim else xp.arange(length).reshape(steps))
    return tuple(parts)


def _pick_along_backward(node: Node, grad: Array) -> None:
    shape, parts, _ = node.saved
    _add_at(node.inputs[0], shape, parts, grad)


@method
def index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    """The slices of x along dim that an integer vector names; dx adds up g for each.

    Shapes:
        x: (A, N, B), index: (K,) -> (A, K, B) for dim = 1; x: () counts as (1,), and of one index gives ()

    Raises:
        ShapeError: an index with more than one axis, or several indexes of x without axes.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    x = as_operand("index_select", x)
    index = check_index("index_select", index, x)
    dim = normalize_axis("index_select", dim, x.ndim)
    if index.ndim > 1 or (not x.ndim and index.data.size != 1):
        raise ShapeError(f"index_select: expected x (..., N, ...) and index (K,), got {x.shape} and {index.shape}")
    if not x.ndim:
        return reshape(index_select(reshape(x, 1), 0, index), ())
    picked = index.data.reshape(-1)
    check_range("index_select", "indexes", picked, 0, x.data.shape[dim])
    return record(x.data.take(picked, dim), _index_select_backward, (x, index), (x.data.shape, dim, picked, index))


def _index_select_backward(node: Node, grad: Array) -> None:
    shape, dim, picked, _ = node.saved
    _add_rows(node.inputs[0], shape, dim, picked, grad)


def embedding(weight: Tensor, index: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of a table that an integer tensor names; dweight adds up g for each row.

    Args:
        padding_idx: A row that gets no gradient.

    Shapes:
        weight: (V, D), index: (...) -> (..., D)

    Raises:
        ShapeError: weight has not two axes.
        IndexRangeError: an index outside [0, V); on a GPU when the host next reads from it.
    """
    weight = as_operand("embedding", weight)
    index = check_index("embedding", index, weight)
    if weight.ndim != 2:
        raise ShapeError(f"embedding: expected weight (V, D), got {weight.shape}")
    rows = weight.shape[0]
    if padding_idx is not None and not -rows <= as_integer("embedding", "padding_idx", padding_idx) < rows:
        raise IndexRangeError(f"embedding: expected padding_idx in [0, {rows}), got {padding_idx}")
    if kernels_for(weight.data) is not None and rows:
        with checked_by_kernel("embedding", "indexes", index.data, 0, rows) as found:
            data = pick_rows(weight.data, index.data, found)
    else:
        check_range("embedding", "indexes", index.data, 0, rows)
        data = weight.data.take(index.data, 0)
    saved = (index, weight.shape, padding_idx)
    return record(data, _embedding_backward, (weight, index), saved)


def _embedding_backward(node: Node, grad: Array) -> None:
    index, shape, padding_idx = node.saved
    skipped = None if padding_idx is None else padding_idx % shape[0]
    if skipped is not None and kernels_for(grad) is None:
        grad = masked(grad, (index.data != skipped)[..., None])
    _add_rows(node.inputs[0], shape, 0, index.data, grad, skipped)


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """1 at the place that each integer names and 0 elsewhere, along a new last axis, as int64.

    Args:
        num_classes: Length of the new axis; -1 means the greatest + 1, for which a GPU is waited for.

    Shapes:
        x: (...) -> (..., num_classes)

    Raises:
        IndexRangeError: an integer outside [0, num_classes); on a GPU when the host next reads from it.
        ArgumentError: num_classes below 1 other than -1, or left out where x is empty.
    """
    x = as_operand("one_hot", x)
    check_index("one_hot", x, x)
    num_classes = as_integer("one_hot", "num_classes", num_classes)
    if num_classes == -1 and x.data.size:
        num_classes = int(to_host(x.data.max())) + 1
    if num_classes < 1 and x.data.size == 0:
        raise ArgumentError(f"one_hot: expected num_classes >= 1, got {num_classes} for a tensor of shape {x.shape}")
    check_range("one_hot", "classes", x.data, 0, num_classes)
    xp = array_module(x.data)
    return Tensor((x.data[..., None] == xp.arange(num_classes)).astype(np.int64))
