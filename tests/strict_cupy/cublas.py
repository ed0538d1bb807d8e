"""The one function of cuBLAS that the framework calls itself, on the memory behind addresses, columns first."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from tests.strict_cupy.errors import StrictError
from tests.strict_cupy.streams import get_current_stream, refuse_while_capturing
from tests.strict_cupy.work import add

# cudaDataType_t, with the types of computation that it takes, and the dtype of alpha and beta
_TYPES: dict[int, tuple[Any, tuple[int, ...], Any]] = {
    0: (np.float32, (68, 77), np.float32),
    1: (np.float64, (70,), np.float64),
    2: (np.float16, (68,), np.float32),
    14: (ml_dtypes.bfloat16, (68,), np.float32),
}
_WIDER = {2: 0, 14: 0}  # results that float16 and bfloat16 may have too, by cuBLAS's table of types

calls: list[dict[str, int]] = []  # the lengths of each call, for tests


def gemmStridedBatchedEx(
    handle: int,
    transa: int,
    transb: int,
    m: int,
    n: int,
    k: int,
    alpha: int,
    A: int,
    Atype: int,
    lda: int,
    strideA: int,
    B: int,
    Btype: int,
    ldb: int,
    strideB: int,
    beta: int,
    C: int,
    Ctype: int,
    ldc: int,
    strideC: int,
    batchCount: int,
    computeType: int,
    algo: int,
) -> None:
    """C = op(A) @ op(B) for each of a batch: C is (m, n), and A (m, k) and B (k, n) unless transposed."""
    _check_integers(dict(locals()))
    refuse_while_capturing("gemm", "call of cuBLAS")
    dtype, computations, wide = _TYPES[Atype]
    fits = Atype == Btype and Ctype in (Atype, _WIDER.get(Atype))
    if not fits or computeType not in computations or algo not in (-1, 99):
        raise StrictError(f"gemm: CUBLAS_STATUS_NOT_SUPPORTED: types {Atype} {Btype} {Ctype}, computing {computeType}")
    if (_memory(alpha, 1, wide)[0], _memory(beta, 1, wide)[0]) != (1, 0):
        raise StrictError("gemm: expected alpha 1 and beta 0, got other numbers, or of another dtype")
    get_current_stream().finish()  # addresses keep no memory alive, so this does not run late
    a = _columns(A, lda, strideA, (k, m) if transa else (m, k), batchCount, dtype)
    b = _columns(B, ldb, strideB, (n, k) if transb else (k, n), batchCount, dtype)
    c = _columns(C, ldc, strideC, (m, n), batchCount, _TYPES[Ctype][0])
    if batchCount > 1 and not strideC:
        raise StrictError("gemm: expected the results of a batch side by side, got all in one place")
    compute = np.float64 if computeType == 70 else np.float32
    with np.errstate(all="ignore"):
        left, right = (x.astype(compute) for x in (a.mT if transa else a, b.mT if transb else b))
        c[...] = np.matmul(left, right)
    add("gemm", a.nbytes + b.nbytes + c.nbytes)
    calls.append({"m": m, "n": n, "k": k, "batch": batchCount, "compute": computeType, "lda": lda, "ldb": ldb})


def _check_integers(arguments: dict[str, Any]) -> None:
    for name, value in arguments.items():
        wide = name in ("handle", "alpha", "beta", "A", "B", "C") or name.startswith("stride")
        if type(value) is not int or not 0 <= value + (name == "algo") < 2 ** (63 if wide else 31):
            raise StrictError(f"gemm: expected {name} to be an integer of C, got {value!r}")


def _columns(address: int, leading: int, step: int, shape: tuple[int, int], batch: int, dtype: Any) -> Any:
    """The matrices at an address, columns first: (batch, rows, columns)."""
    rows, columns = shape
    if leading < max(1, rows):
        raise StrictError(f"gemm: CUBLAS_STATUS_INVALID_VALUE: leading dimension {leading} of {rows} rows")
    size = np.dtype(dtype).itemsize
    memory = _memory(address, step * (batch - 1) + leading * (columns - 1) + rows, dtype)
    return np.lib.stride_tricks.as_strided(memory, (batch, rows, columns), (step * size, size, leading * size))


def _memory(address: int, count: int, dtype: Any) -> Any:
    nbytes = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)
