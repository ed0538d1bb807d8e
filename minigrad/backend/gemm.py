"""Batched matrix products of floats: by cuBLAS on a GPU, and the reference in host memory.

CuPy's own batched product copies its operands to C order, computes half precision by way of float32, and fails on
bfloat16. Here cuBLAS reads views as they lie: transposed matrices, gaps between rows, batch axes that are broadcast.

cuBLAS counts columns first. To it the memory of a row-major matrix holds the transpose, so A @ B = C is asked for as
Bᵀ @ Aᵀ = Cᵀ: B goes in first, and a matrix that lies in row order counts as not transposed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import check_switch
from minigrad.backend.device import array_module, load_cupy
from minigrad.backend.dtypes import Array, accumulator_dtype, converted, is_float, widened
from minigrad.backend.memory import address_of
from minigrad.errors import DtypeError, ShapeError

# cudaDataType_t, cublasComputeType_t, cublasOperation_t and cublasGemmAlgo_t: numbers of CUDA's binary interface
_DATA_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
_COMPUTE_32F, _COMPUTE_64F, _COMPUTE_32F_FAST_TF32 = 68, 70, 77
_AS_IT_LIES, _TRANSPOSED = 0, 1
_DEFAULT_ALGORITHM = -1
_LONGEST = 2**31 - 1  # row of a matrix, gap included

Gemm = Callable[..., Any]  # called as cupy_backends.cuda.libs.cublas.gemmStridedBatchedEx

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


is_tf32_allowed = _tf32.get


class _Matrices(NamedTuple):
    """Matrices as cuBLAS is told of them: where the first lies, how, and the steps along the batch in elements."""

    array: Array
    transposed: int
    leading: int
    steps: tuple[int, ...]


def bmm(a: Array, b: Array, out: Array | None = None, *, tf32: bool | None = None, gemm: Gemm | None = None) -> Array:
    """a @ b for batches of matrices; sums of half precision are in float32.

    Shapes:
        a: (..., N, K), b: (..., K, M) -> (..., N, M); batch axes broadcast

    Args:
        a, b: Of one float dtype and device; strides as they come, only what cuBLAS can't read is copied.
        out: Of the result's shape, and of its dtype or the one that it is summed in; apart from a and b, strides as
            they come.
        tf32: See `allow_tf32`, which also says what None stands for.
        gemm: What multiplies, on the addresses of the arrays; cuBLAS on a GPU, and NumPy on a CPU, by default.

    Raises:
        ShapeError: the shapes do not fit as above.
        DtypeError: the dtypes differ or are no floats.
    """
    batch = _check(a, b, out)
    if gemm is None and a.__class__ is np.ndarray:
        return _reference(a, b, out)
    xp = array_module(a)
    target = xp.empty((*batch, a.shape[-2], b.shape[-1]), a.dtype) if out is None else out
    if not target.size:
        return target
    if not a.shape[-1]:
        target[...] = 0
        return target
    found = _matrices(target)
    if found is None or found.transposed:
        target[...] = bmm(a, b, xp.empty(target.shape, target.dtype), tf32=tf32, gemm=gemm)
        return target
    allowed = _tf32.get() if tf32 is None else tf32
    _multiply(_readable(a, batch), _readable(b, batch), found, allowed, _cublas() if gemm is None else gemm)
    return target


def _check(a: Array, b: Array, out: Array | None) -> tuple[int, ...]:
    """The batch axes of the result."""
    if a.dtype != b.dtype or not is_float(a.dtype):
        raise DtypeError(f"bmm: expected operands of one float dtype, got {a.dtype.name} and {b.dtype.name}")
    if min(a.ndim, b.ndim) < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"bmm: expected (..., N, K) @ (..., K, M), got {a.shape} @ {b.shape}")
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError as error:
        raise ShapeError(f"bmm: expected batch axes that broadcast, got {a.shape} @ {b.shape}") from error
    shape = (*batch, a.shape[-2], b.shape[-1])
    if out is not None and (out.shape != shape or out.dtype not in (a.dtype, accumulator_dtype(a.dtype))):
        raise ShapeError(f"bmm: expected out of {a.dtype.name} {shape}, got {out.dtype.name} {out.shape}")
    return batch


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


# ----------------------------------------------------------------------------------------------------- how arrays lie


def _readable(x: Array, batch: tuple[int, ...]) -> _Matrices:
    """An operand stretched over the batch; copied where its matrices have neither rows nor columns in one piece."""
    xp = array_module(x)
    found = _matrices(xp.broadcast_to(x, (*batch, *x.shape[-2:])))
    return found if found is not None else _readable(xp.ascontiguousarray(x), batch)


def _matrices(x: Array) -> _Matrices | None:
    """How matrices lie; None where cuBLAS can't read them so."""
    if any(stride < 0 or stride % x.itemsize for stride in x.strides):
        return None
    rows, columns = x.shape[-2:]
    *steps, down, across = (stride // x.itemsize for stride in x.strides)
    for transposed, (lines, length, line_step, step) in (
        (_AS_IT_LIES, (rows, columns, down, across)),
        (_TRANSPOSED, (columns, rows, across, down)),
    ):
        leading = line_step if lines > 1 else length  # of a single line nobody asks how far the next one is
        if (step == 1 or length == 1) and length <= leading <= _LONGEST:
            return _Matrices(x, transposed, leading, tuple(steps))
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


# ---------------------------------------------------------------------------------------------------------- by cuBLAS


def _multiply(a: _Matrices, b: _Matrices, out: _Matrices, tf32: bool, gemm: Gemm) -> None:
    """One call along the longest batch axis, for each index of the others that do not fold into it."""
    axes = sorted(_folded(out.array.shape[:-2], a.steps, b.steps, out.steps)) or [(1, 0, 0, 0)]
    *others, (count, *steps) = axes
    wide = accumulator_dtype(out.array.dtype)
    compute = _COMPUTE_64F if wide == np.float64 else _COMPUTE_32F
    if tf32 and a.array.dtype == np.float32:
        compute = _COMPUTE_32F_FAST_TF32
    one, zero = (scalar.ctypes.data for scalar in _scalars(wide))
    data_type, out_type = (_DATA_TYPES[part.array.dtype.name] for part in (a, out))
    rows, columns = out.array.shape[-2:]
    inner = a.array.shape[-1]
    places = [address_of(part.array) for part in (a, b, out)]
    sizes = [part.array.itemsize for part in (a, b, out)]
    handle = 0 if out.array.__class__ is np.ndarray else load_cupy().cuda.device.get_cublas_handle()
    for index in np.ndindex(*(length for length, *_ in others)):
        moved = (sum(i * axis[part] for i, axis in zip(index, others)) for part in (1, 2, 3))
        at_a, at_b, at_out = (place + size * elements for place, size, elements in zip(places, sizes, moved))
        gemm(
            *(handle, b.transposed, a.transposed, columns, rows, inner, one),
            *(at_b, data_type, b.leading, steps[1]),
            *(at_a, data_type, a.leading, steps[0], zero),
            *(at_out, out_type, out.leading, steps[2]),
            *(count, compute, _DEFAULT_ALGORITHM),
        )


def _cublas() -> Gemm:
    from cupy_backends.cuda.libs import cublas

    return cublas.gemmStridedBatchedEx  # type: ignore[no-any-return]


@functools.cache
def _scalars(dtype: np.dtype[Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """1 and 0 in host memory, where cuBLAS reads them."""
    return np.ones(1, dtype), np.zeros(1, dtype)
