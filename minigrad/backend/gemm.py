"""Batched matrix products of floats: by cuBLAS on a GPU, and the reference in host memory.

CuPy's own batched product copies its operands to C order, computes half precision by way of float32, and fails on
bfloat16. Here cuBLAS reads views as they lie: transposed matrices, gaps between rows, batch axes that are broadcast.

cuBLAS counts columns first. To it the memory of a row-major matrix holds the transpose, so A @ B = C is asked for as
Bᵀ @ Aᵀ = Cᵀ: B goes in first, and a matrix that lies in row order counts as not transposed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import check_switch
from minigrad.backend import cublas
from minigrad.backend.cublas import Cublas, Gemm, Operand
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted, is_float, widened
from minigrad.backend.fused.addresses import MatrixPlaces, list_addresses
from minigrad.backend.memory import address_of
from minigrad.errors import DtypeError, ShapeError

_ALIGNED = 16  # bytes, at multiples of which matrices for tensor cores start, where they are listed

_tf32: ContextVar[bool] = ContextVar("minigrad_tf32", default=False)


@contextmanager
def allow_tf32(allowed: bool = True) -> Iterator[None]:
    """Let a GPU round float32 operands of matrix products to 10 bits of mantissa inside the block, in this context.

    That is several times faster on tensor cores, with a relative error of about 1e-3 instead of 1e-7. Sums stay in
    float32. Backward is asked separately: put it into the block as well. Nothing changes on a CPU.
    """
    check_switch("allow_tf32", allowed=allowed)
    token = _tf32.set(allowed)
    try:
        yield
    finally:
        _tf32.reset(token)


def bmm(
    a: Array,
    b: Array,
    out: Array | None = None,
    *,
    tf32: bool | None = None,
    blas: Cublas | None = None,
    addresses: Addresses | None = None,
) -> Array:
    """a @ b for batches of matrices; sums of half precision are in float32.

    Shapes:
        a: (..., N, K), b: (..., K, M) -> (..., N, M); batch axes broadcast

    Args:
        a, b: Of one float dtype and device; strides as they come, only what cuBLAS can't read is copied.
        out: Of the result's shape, and of its dtype or the one that it is summed in; apart from a and b, strides as
            they come.
        tf32: See `allow_tf32`, which also says what None stands for.
        blas: What multiplies, on the addresses of the arrays; cuBLAS on a GPU, and NumPy on a CPU, by default.
        addresses: What `listed` gave for these arrays among others.

    Raises:
        ShapeError: the shapes do not fit as above.
        DtypeError: the dtypes differ or are no floats.
    """
    if blas is None:
        if a.__class__ is np.ndarray:
            _result(_shape_of(a), _shape_of(b), None if out is None else _shape_of(out))
            return _reference(a, b, out)
        blas = cublas.current_cublas()
    allowed = _tf32.get() if tf32 is None else tf32
    plan = _planned(_facts(a), _facts(b), None if out is None else _facts(out), allowed)
    xp = array_module(a)
    target = xp.empty(plan.shape, a.dtype) if out is None else out
    if plan.fill is not None:
        target[...] = plan.fill
        return target
    if addresses is not None and plan.listed is not None and addresses.fit(a.dtype, allowed):
        rows = [addresses.rows.get((address_of(x), steps)) for x, steps in zip((a, b, target), plan.steps)]
        if all(row is not None for row in rows):
            blas.multiply_listed(plan.listed, (rows[1], rows[0], rows[2]), (b, a, target))
            return target
    inside = xp.empty(plan.shape, target.dtype) if plan.apart else target
    first = xp.ascontiguousarray(a) if plan.copies[0] else a
    second = xp.ascontiguousarray(b) if plan.copies[1] else b
    blas.multiply(plan.gemms, second, first, inside)
    if plan.apart:
        target[...] = inside
    return target


class Addresses(NamedTuple):
    """Those of matrices on a GPU.

    Attributes:
        rows: The list of an array, by where it starts and the steps in bytes along the batch axes.
        aligned: Whether all matrices start at multiples of 16 bytes.
    """

    rows: dict[tuple[int, tuple[int, ...]], Array]
    aligned: bool

    def fit(self, dtype: np.dtype[Any], tf32: bool) -> bool:
        """Whether cuBLAS takes them for operands of a dtype."""
        return self.aligned or not (dtype.itemsize == 2 or tf32)


def listed(batch: tuple[int, ...], *arrays: Array) -> Addresses | None:
    """List where the matrices of arrays lie, by one launch for all products of them.

    One call of cuBLAS walks along one batch axis. Where two do not fold into one in all arrays, as samples and heads
    that lie side by side, such a list lets it take all matrices at once.

    Args:
        batch: The batch axes of all products, to which those of the arrays broadcast.
        arrays: At most ten; a transposed view of one needs no list of its own.

    Returns:
        None where nothing is gained: in host memory, where the axes fold, or where there are more than two; and
        where matrices of halves, or of float32 in TF32, do not start at multiples of 16 bytes, as cuBLAS asks for.
    """
    if arrays[0].__class__ is np.ndarray:
        return None
    places = _places(batch, tuple(map(_facts, arrays)))
    if places is None:
        return None
    starts = [address_of(x) for x in arrays]
    lines = {(start, steps): MatrixPlaces(start, *two) for start, (steps, two) in zip(starts, places.steps)}
    table = array_module(arrays[0]).empty((len(lines), math.prod(places.lengths)), np.uint64)
    found = Addresses(dict(zip(lines, table)), places.aligned and not any(start % _ALIGNED for start in starts))
    if not found.fit(arrays[0].dtype, _tf32.get()):
        return None
    list_addresses(table, places.lengths, list(lines.values()))
    return found


class _Lying(NamedTuple):
    """What a plan depends on of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


_Facts = Any  # the fields of _Lying as a plain tuple, which takes a third of the time to make
_facts = attrgetter("shape", "dtype", "strides")


def _shape_of(x: Array) -> _Lying:
    return _Lying(x.shape, x.dtype, ())


def _result(a: _Lying, b: _Lying, out: _Lying | None) -> tuple[int, ...]:
    """The shape of the result."""
    if a.dtype != b.dtype or not is_float(a.dtype):
        raise DtypeError(f"bmm: expected operands of one float dtype, got {a.dtype.name} and {b.dtype.name}")
    if min(len(a.shape), len(b.shape)) < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"bmm: expected (..., N, K) @ (..., K, M), got {a.shape} @ {b.shape}")
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError as error:
        raise ShapeError(f"bmm: expected batch axes that broadcast, got {a.shape} @ {b.shape}") from error
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is not None and (out.shape != shape or out.dtype not in (a.dtype, accumulator_dtype(a.dtype))):
        raise ShapeError(f"bmm: expected out of {a.dtype.name} {shape}, got {out.dtype.name} {out.shape}")
    return shape


def _reference(a: Array, b: Array, out: Array | None) -> Array:
    """On NumPy, whose BLAS knows no half precision: that is multiplied in float32 and rounded once."""
    if a.dtype.itemsize > 2:
        return np.matmul(a, b, out=out)
    if out is not None and out.dtype.itemsize > 2:
        return np.matmul(widened(a), widened(b), out=out)
    product = converted(np.matmul(widened(a), widened(b)), a.dtype)
    if out is None:
        return product
    out[...] = product
    return out


# ------------------------------------------------------------------------------------------------- what to ask cuBLAS


class _Plan(NamedTuple):
    """What a product of arrays that lie in some way takes.

    Attributes:
        shape: Of the result.
        gemms: The calls, of b, a and the result.
        copies: Whether a and b are copied first, since cuBLAS can't read them.
        apart: Whether the result is made in memory of its own, since cuBLAS can't write it where it belongs.
        fill: What it is everywhere, where there is nothing to multiply.
        listed: The one call that does the work of several, with lists of addresses.
        steps: Of a, b and the result along the batch axes, in bytes.
    """

    shape: tuple[int, ...]
    gemms: tuple[Gemm, ...] = ()
    copies: tuple[bool, bool] = (False, False)
    apart: bool = False
    fill: float | None = None
    listed: Gemm | None = None
    steps: tuple[tuple[int, ...], ...] = ()


@functools.lru_cache(maxsize=4096)
def _planned(of_a: _Facts, of_b: _Facts, of_out: _Facts | None, tf32: bool) -> _Plan:
    a, b, out = _Lying(*of_a), _Lying(*of_b), None if of_out is None else _Lying(*of_out)
    shape = _result(a, b, out)
    if not a.shape[-1] or 0 in shape:
        return _Plan(shape, fill=0.0)
    batch = shape[:-2]
    target = out if out is not None else _in_c_order(shape, a.dtype)
    found = _matrices(target)
    apart = found is None or bool(found.operation)
    if found is None or apart:
        found = _matrices(_in_c_order(shape, target.dtype))
        assert found is not None
    (left, copy_a), (right, copy_b) = _readable(a, batch), _readable(b, batch)
    wide = accumulator_dtype(target.dtype)
    compute = cublas.COMPUTE_64F if wide == np.float64 else cublas.COMPUTE_32F
    if tf32 and a.dtype == np.float32:
        compute = cublas.COMPUTE_32F_FAST_TF32
    gemms = _calls(left, right, found, (*shape, a.shape[-1]), compute)
    by_list, steps = None, tuple([_batch_steps(x, batch) for x in (a, b, target)])
    if len(gemms) > 1 and not (copy_a or copy_b or apart):
        first, second, third = (
            Operand(0, x.operation, x.leading, 0, cublas.DATA_TYPES[x.dtype.name]) for x in (right, left, found)
        )
        sizes = (shape[-1], shape[-2], a.shape[-1])
        by_list = cublas.prepare(first, second, third, sizes, math.prod(batch), compute, listed=True)
    return _Plan(shape, gemms, (copy_a, copy_b), apart, listed=by_list, steps=steps)


class _Places(NamedTuple):
    """The lengths of an outer and an inner batch axis; of each array the steps along all, and along these two."""

    lengths: tuple[int, int]
    steps: tuple[tuple[tuple[int, ...], tuple[int, int]], ...]
    aligned: bool


@functools.lru_cache(maxsize=1024)
def _places(batch: tuple[int, ...], arrays: tuple[_Facts, ...]) -> _Places | None:
    steps = [_batch_steps(_Lying(*x), batch) for x in arrays]
    axes = _folded(batch, *steps)
    if len(axes) != 2 or 0 in batch:
        return None
    (outer, *outers), (inner, *inners) = axes
    aligned = not any(step % _ALIGNED for step in (*outers, *inners))
    return _Places((outer, inner), tuple(zip(steps, zip(outers, inners))), aligned)


def _batch_steps(x: _Lying, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Along each batch axis, in bytes, 0 where there is one step or none."""
    return tuple([0 if n == 1 else step for n, step in zip(batch, _stretched(x, batch).strides)])


def _in_c_order(shape: tuple[int, ...], dtype: np.dtype[Any]) -> _Lying:
    strides = [dtype.itemsize]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return _Lying(shape, dtype, tuple(reversed(strides)))


class _Matrices(NamedTuple):
    """How matrices lie: transposed or not, from line to line, and the steps along the batch, in elements."""

    operation: int
    leading: int
    steps: tuple[int, ...]
    dtype: np.dtype[Any]


def _readable(x: _Lying, batch: tuple[int, ...]) -> tuple[_Matrices, bool]:
    """An operand stretched over the batch, and whether it is copied: its matrices have no rows or columns in one piece.
    """
    found = _matrices(_stretched(x, batch))
    if found is not None:
        return found, False
    found = _matrices(_stretched(_in_c_order(x.shape, x.dtype), batch))
    assert found is not None
    return found, True


def _stretched(x: _Lying, batch: tuple[int, ...]) -> _Lying:
    own = len(x.shape) - 2
    strides = [0 if length == 1 else stride for length, stride in zip(x.shape[:own], x.strides)]
    missing = len(batch) - own
    return _Lying((*batch, *x.shape[own:]), x.dtype, (*(0,) * missing, *strides, *x.strides[own:]))


def _matrices(x: _Lying) -> _Matrices | None:
    """How matrices lie; None where cuBLAS can't read them so."""
    size = x.dtype.itemsize
    if any(stride < 0 or stride % size for stride in x.strides):
        return None
    rows, columns = x.shape[-2:]
    *steps, down, across = (stride // size for stride in x.strides)
    for operation, (lines, length, line_step, step) in (
        (cublas.AS_IT_LIES, (rows, columns, down, across)),
        (cublas.TRANSPOSED, (columns, rows, across, down)),
    ):
        leading = line_step if lines > 1 else length  # of a single line nobody asks how far the next one is
        if (step == 1 or length == 1) and length <= leading:
            return _Matrices(operation, leading, tuple(steps), x.dtype)
    return None


def _folded(shape: Sequence[int], *steps: Sequence[int]) -> list[tuple[int, ...]]:
    """Batch axes as (length, step of each array): those of length 1 left out, neighbours joined where all allow it."""
    axes: list[tuple[int, ...]] = []
    for length, *inner in zip(shape, *steps):
        if length == 1:
            continue
        if axes and all(outer == step * length for outer, step in zip(axes[-1][1:], inner)):
            axes[-1] = (axes[-1][0] * length, *inner)
        else:
            axes.append((length, *inner))
    return axes


def _calls(a: _Matrices, b: _Matrices, out: _Matrices, sizes: tuple[int, ...], compute: int) -> tuple[Gemm, ...]:
    """One call along the longest batch axis, for each index of the others that do not fold into it.

    Args:
        sizes: (..., rows, columns, inner).
    """
    *batch, rows, columns, inner = sizes
    *others, (count, *steps) = sorted(_folded(batch, a.steps, b.steps, out.steps)) or [(1, 0, 0, 0)]

    operands = [
        Operand(0, part.operation, part.leading, steps[which], cublas.DATA_TYPES[part.dtype.name])
        for which, part in enumerate((a, b, out))
    ]
    gemm = cublas.prepare(operands[1], operands[0], operands[2], (columns, rows, inner), count, compute)

    def bytes_to(part: _Matrices, which: int, index: tuple[int, ...]) -> int:
        return part.dtype.itemsize * sum(i * axis[1 + which] for i, axis in zip(index, others))

    return tuple(
        gemm._replace(at=(bytes_to(b, 1, index), bytes_to(a, 0, index), bytes_to(out, 2, index)))
        for index in np.ndindex(*(length for length, *_ in others))
    )
