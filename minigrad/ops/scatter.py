"""Writing to positions in a copy: scatter, index_add. In place: `scatter_`, `index_add_`, x[index] = value."""

from __future__ import annotations

from minigrad.arguments import as_real, is_number
from minigrad.autograd import Node, accumulate
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted
from minigrad.backend.flags import check_range
from minigrad.errors import DtypeError, ShapeError
from minigrad.ops.arithmetic import mul, pass_on
from minigrad.ops.axes import normalize_axis
from minigrad.ops.index import check_fits, check_index, places_along
from minigrad.ops.methods import method
from minigrad.ops.operands import TensorLike, as_operand, operands, same_device
from minigrad.ops.shape import reshape
from minigrad.tensor import Tensor, record

__all__ = ["index_add", "scatter"]


@method
def scatter(x: Tensor, dim: int, index: Tensor, src: TensorLike) -> Tensor:
    """x with z[i, index[i, j, ...], ...] = src[i, j, ...] for dim = 1, and alike for others: the reverse of `gather`.

    dx is g, but 0 where something was written; dsrc is g where it went. Which of several values for one place stays
    is not said.

    Args:
        src: A tensor, or one number for all places.

    Shapes:
        index: as many axes as x, none longer than in x but for dim, and none longer than in src

    Raises:
        ShapeError: as said above.
        DtypeError: src is of another dtype than x.
        IndexRangeError: an index outside [0, x.shape[dim]); on a GPU when the host next reads from it.
    """
    x = as_operand("scatter", x)
    index = check_index("scatter", index, x)
    dim = normalize_axis("scatter", dim, x.ndim)
    check_fits("scatter", x, dim, index)
    value = operands("scatter", x, src)[1] if is_number(src) else as_operand("scatter", src)
    _check_source("scatter", x, value)
    wanted = index.data.shape
    if value is src and (value.ndim != len(wanted) or any(n < m for n, m in zip(value.data.shape, wanted))):
        raise ShapeError(f"scatter: expected src at least as long as index {wanted}, got {value.shape}")
    parts = places_along("scatter", x, dim, index, wanted)
    used = tuple(slice(n) for n in wanted) if value is src else ()
    data = x.data.copy()
    data[parts] = value.data[used]
    return record(data, _scatter_backward, (x, value, index), (parts, used, value.data.shape, index))


def _scatter_backward(node: Node, grad: Array) -> None:
    parts, used, shape, _ = node.saved
    dx, dsrc = node.inputs[:2]
    if dsrc is not None:
        whole = array_module(grad).zeros(shape, grad.dtype)
        whole[used] = grad[parts]
        accumulate(dsrc, whole)
    if dx is not None:
        kept = grad.copy()
        kept[parts] = 0
        accumulate(dx, kept)


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


def _check_source(who: str, x: Tensor, source: Tensor) -> None:
    same_device(who, x, source)
    if source.data.dtype != x.data.dtype:
        raise DtypeError(f"{who}: expected a source of {x.dtype.name}, got {source.dtype.name}")
