"""Writing to positions in a copy: scatter, scatter_add, index_add, index_fill.

In place: `scatter_` and its kin, x[index] = value.
"""

from __future__ import annotations


from minigrad.arguments import as_real, is_number
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted
from minigrad.backend.flags import check_range
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.arithmetic import mul, pass_on
from minigrad.ops.axes import normalize_axis
from minigrad.ops.index import check_fits, check_index, places_along
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, as_truth, operands, same_device
from minigrad.ops.shape import reshape
from minigrad.tensor import Tensor, record

__all__ = ["index_add", "index_copy", "index_fill", "scatter", "scatter_add"]


@method
def scatter(
    x: Tensor, dim: int, index: Tensor, src: TensorLike | None = None, *, value: float | None = None
) -> Tensor:
    """x with z[i, index[i, j, ...], ...] = src[i, j, ...] for dim = 1, and alike for others: the reverse of `gather`.

    dx is g, but 0 where something was written; dsrc is g where it went. Which of several values for one place stays
    is not said.

    Args:
        src: A tensor, or one number for all places.
        value: That number, by another name.

    Shapes:
        index: as many axes as x, none longer than in x but for dim, and none longer than in src

    Raises:
        ShapeError: as said above.
        ArgumentError: both src and value, or neither.
        DtypeError: src is of another dtype than x, or value is no number.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    if (src is None) == (value is None):
        raise ArgumentError(f"scatter: expected src or value, got {'neither' if src is None else 'both'}")
    if src is None and not is_number(value):
        raise DtypeError(f"scatter: expected a number as value, got {type(value).__name__}: write src for a tensor")
    src = value if src is None else src
    x, dim, index = _positions("scatter", x, dim, index)
    source = operands("scatter", x, as_truth(x, src))[1] if is_number(src) else as_operand("scatter", src)
    _check_source("scatter", x, source)
    used = () if is_number(src) else _used("scatter", source, index)
    parts = places_along("scatter", x, dim, index, index.data.shape)
    data = x.data.copy()
    data[parts] = source.data[used]
    return record(data, _scatter_backward, (x, source, index), (parts, used, source.data.shape, index))


def _scatter_backward(node: Node, grad: Array) -> None:
    parts, used, shape, _ = node.saved
    dx, dsrc = node.inputs[:2]
    if dsrc is not None:
        accumulate(dsrc, _given_back(grad, parts, used, shape))
    if dx is not None:
        kept = grad.copy()
        kept[parts] = 0
        accumulate(dx, kept)


@method
def scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    """x with src[i, j, ...] added to z[i, index[i, j, ...], ...] for dim = 1, and alike for others. dx = g.

    dsrc is g where it went. Half floats are summed in float32.

    Shapes:
        index: as many axes as x, none longer than in x but for dim, and none longer than in src

    Raises:
        ShapeError: as said above.
        DtypeError: src is of another dtype than x.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    x, dim, index = _positions("scatter_add", x, dim, index)
    source = as_operand("scatter_add", src)
    _check_source("scatter_add", x, source)
    used = _used("scatter_add", source, index)
    parts = places_along("scatter_add", x, dim, index, index.data.shape)
    saved = (parts, used, source.data.shape, index)
    return record(_added(x.data, parts, source.data[used]), _scatter_add_backward, (x, source, index), saved)


def _scatter_add_backward(node: Node, grad: Array) -> None:
    parts, used, shape, _ = node.saved
    dx, dsrc = node.inputs[:2]
    if dx is not None:
        pass_on(dx, grad, grad.shape)
    if dsrc is not None:
        accumulate(dsrc, _given_back(grad, parts, used, shape))


def _positions(who: str, x: TensorLike, dim: int, index: TensorLike) -> tuple[Tensor, int, Tensor]:
    x = as_operand(who, x)
    index = check_index(who, index, x)
    dim = normalize_axis(who, dim, x.ndim)
    check_fits(who, x, dim, index)
    return x, dim, index


def _used(who: str, source: Tensor, index: Tensor) -> tuple[slice, ...]:
    """The part of a source that an index reaches."""
    wanted = index.data.shape
    if source.ndim != len(wanted) or any(n < m for n, m in zip(source.data.shape, wanted)):
        raise ShapeError(f"{who}: expected src at least as long as index {wanted}, got {source.shape}")
    return tuple(slice(n) for n in wanted)


def _given_back(grad: Array, parts: tuple[Array, ...], used: tuple[slice, ...], shape: tuple[int, ...]) -> Array:
    """The gradient of a source of this shape, of which a part was used."""
    whole = array_module(grad).zeros(shape, grad.dtype)
    whole[used] = grad[parts]
    return whole


# ------------------------------------------------------------------------------------------- slices along an axis


@method
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1.0) -> Tensor:
    """x with alpha times the slices of source added along dim, to where an integer vector says. dx = g.

    dsource = alpha times the slices of g that index names. Half floats are summed in float32.

    Shapes:
        x: (A, N, B), index: (K,), source: (A, K, B) -> (A, N, B) for dim = 1; x and source of no axes count as (1,)

    Raises:
        ShapeError: as said above.
        DtypeError: source is of another dtype than x.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    x, source = as_operand("index_add", x), as_operand("index_add", source)
    index = check_index("index_add", index, x)
    dim = normalize_axis("index_add", dim, x.ndim)
    if not x.ndim and not source.ndim and index.numel() == 1:
        return reshape(index_add(reshape(x, 1), 0, index, reshape(source, 1), alpha=alpha), ())
    wanted = (*x.data.shape[:dim], index.numel(), *x.data.shape[dim + 1 :])
    if index.ndim > 1 or not x.ndim or source.data.shape != wanted:
        shapes = f"{x.shape}, {index.shape} and {source.shape}"
        raise ShapeError(f"index_add: expected x (..., N, ...), index (K,) and source (..., K, ...), got {shapes}")
    if as_real("index_add", "alpha", alpha) != 1.0:
        source = mul(source, alpha)
    _check_source("index_add", x, source)
    picked = index.data.reshape(-1)
    check_range("index_add", "indexes", picked, 0, x.data.shape[dim])
    data = _added(x.data, (slice(None),) * dim + (picked,), source.data)
    return record(data, _index_add_backward, (x, source, index), (dim, picked, index))


def _added(x: Array, index: tuple[slice | Array, ...], source: Array) -> Array:
    total = x.astype(accumulator_dtype(x.dtype), copy=True)
    array_module(x).add.at(total, index, source.astype(total.dtype, copy=False))
    return total if total.dtype == x.dtype else converted(total, x.dtype)


def _index_add_backward(node: Node, grad: Array) -> None:
    dim, picked, _ = node.saved
    dx, dsource = node.inputs[:2]
    if dx is not None:
        pass_on(dx, grad, grad.shape)
    if dsource is not None:
        accumulate(dsource, grad.take(picked, dim))


@method
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with the slices of source along dim in the places that an integer vector names.

    dx is g, but 0 there; dsource = the slices of g that index names. Which of several slices for one place stays is
    not said.

    Shapes:
        x: (A, N, B), index: (K,), source: (A, K, B) -> (A, N, B) for dim = 1; x and source of no axes count as (1,)

    Raises:
        ShapeError: as said above.
        DtypeError: source is of another dtype than x.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    x, source = as_operand("index_copy", x), as_operand("index_copy", source)
    index = check_index("index_copy", index, x)
    dim = normalize_axis("index_copy", dim, x.ndim)
    if not x.ndim and not source.ndim and index.numel() == 1:
        return reshape(index_copy(reshape(x, 1), 0, index, reshape(source, 1)), ())
    wanted = (*x.data.shape[:dim], index.numel(), *x.data.shape[dim + 1 :])
    if index.ndim > 1 or not x.ndim or source.data.shape != wanted:
        shapes = f"{x.shape}, {index.shape} and {source.shape}"
        raise ShapeError(f"index_copy: expected x (..., N, ...), index (K,) and source (..., K, ...), got {shapes}")
    _check_source("index_copy", x, source)
    picked = index.data.reshape(-1)
    check_range("index_copy", "indexes", picked, 0, x.data.shape[dim])
    places = (slice(None),) * dim + (picked,)
    data = x.data.copy()
    data[places] = source.data
    return record(data, _index_copy_backward, (x, source, index), (dim, places, index))


def _index_copy_backward(node: Node, grad: Array) -> None:
    dim, places, _ = node.saved
    dx, dsource = node.inputs[:2]
    if dsource is not None:
        accumulate(dsource, grad.take(places[dim], dim))
    if dx is not None:
        kept = grad.copy()
        kept[places] = 0
        accumulate(dx, kept)


@method
def index_fill(x: Tensor, dim: int, index: Tensor, value: TensorLike) -> Tensor:
    """x with one value in the slices along dim that an integer vector names. dx is g, but 0 there.

    Args:
        value: A number, or a tensor of no axes, to which the sum of g there flows back.

    Shapes:
        x: (A, N, B), index: (K,) -> (A, N, B) for dim = 1

    Raises:
        ShapeError: an index with more than one axis, or a value with axes.
        DtypeError: value does not fit into x's dtype.
        IndexRangeError: an index outside [-x.shape[dim], x.shape[dim]); on a GPU when the host next reads from it.
    """
    x = as_operand("index_fill", x)
    index = check_index("index_fill", index, x)
    dim = normalize_axis("index_fill", dim, x.ndim)
    given = operands("index_fill", x, as_truth(x, value))[1] if is_number(value) else as_operand("index_fill", value)
    _check_source("index_fill", x, given)
    if not x.ndim:
        return reshape(index_fill(reshape(x, 1), 0, index, value), ())
    if index.ndim > 1 or given.ndim:
        shapes = f"{x.shape}, {index.shape} and {given.shape}"
        raise ShapeError(f"index_fill: expected x (..., N, ...), index (K,) and a value of no axes, got {shapes}")
    picked, length = index.data.reshape(-1), x.data.shape[dim]
    check_range("index_fill", "indexes", picked, -length, length)
    places = (slice(None),) * dim + (picked,)
    data = x.data.copy()
    data[places] = given.data
    return record(data, _index_fill_backward, (x, given, index), (places, index))


def _index_fill_backward(node: Node, grad: Array) -> None:
    places, _ = node.saved
    dx, dvalue = node.inputs[:2]
    kept = grad.copy()
    kept[places] = 0
    if dvalue is not None:
        accumulate(dvalue, (grad - kept).sum(dtype=grad.dtype))
    if dx is not None:
        accumulate(dx, kept)


def _check_source(who: str, x: Tensor, source: Tensor) -> None:
    same_device(who, x, source)
    if source.data.dtype != x.data.dtype:
        raise DtypeError(f"{who}: expected a source of {x.dtype.name}, got {source.dtype.name}")
