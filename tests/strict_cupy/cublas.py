"""libcublas, as ctypes calls it: the functions that the framework uses, on the memory behind addresses.

What cuBLAS answers by a status is answered so. What it would do in silence is an error: lengths that ctypes would cut,
a handle of another thread or device or on another than the current stream, addresses outside the arrays of the call, a
product that would take memory while a stream is captured.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tests.strict_cupy.device import current_id
from tests.strict_cupy.errors import CaptureError, StrictError
from tests.strict_cupy.streams import get_current_stream, perform, refuse_while_capturing

SUCCESS, NOT_INITIALIZED, INVALID_VALUE, NOT_SUPPORTED = 0, 1, 7, 15

# cudaDataType_t, with the types of computation that it takes, and the dtype of alpha and beta
_TYPES: dict[int, tuple[Any, tuple[int, ...], Any]] = {
    0: (np.float32, (68, 77), np.float32),
    1: (np.float64, (70,), np.float64),
    2: (np.float16, (68,), np.float32),
    14: (ml_dtypes.bfloat16, (68,), np.float32),
}
_WIDER = {2: 0, 14: 0}  # results that float16 and bfloat16 may have too, by cuBLAS's table of types
_NO_HALF_SUMS = 16
_WORDS = {"p": ctypes.c_void_p, "i": ctypes.c_int, "e": ctypes.c_int, "s": ctypes.c_longlong, "z": ctypes.c_size_t}

_GEMM = "p:handle e:transa e:transb i:m i:n i:k p:alpha p:A e:Atype i:lda {0}p:B e:Btype i:ldb {1}p:beta p:C e:Ctype "
_GEMM += "i:ldc {2}{3}e:compute e:algo"


class _Handle:
    """What cuBLAS knows of a handle."""

    def __init__(self) -> None:
        self.device, self.thread = current_id(), threading.get_ident()
        self.stream = self.workspace = self.mode = 0


class Library:
    """The library.

    Args:
        on_host: It works on NumPy's arrays, at once, and has no streams.

    Attributes:
        calls: The lengths of each product.
        made: How many handles there are.
    """

    def __init__(self, on_host: bool = False) -> None:
        self._on_host = on_host
        self._addresses, self._handles = itertools.count(1 << 40, 1 << 12), dict[int, _Handle]()
        self._held = threading.local()
        self.calls: list[dict[str, int]] = []
        strides = ("s:strideA ", "s:strideB ", "s:strideC ", "i:batch ")
        for name, parts in (
            ("cublasGemmEx", ("",) * 4),
            ("cublasGemmStridedBatchedEx", strides),
            ("cublasGemmBatchedEx", ("",) * 3 + ("i:batch ",)),
        ):
            text = _GEMM.format(*parts)
            setattr(self, name, self._function(name, text, self._gemm))
            setattr(self, f"{name}_64", self._function(f"{name}_64", text.replace("i:", "s:"), self._gemm))
        for name, text, body in (
            ("cublasSetStream_v2", "p:handle p:stream", self._set_stream),
            ("cublasSetWorkspace_v2", "p:handle p:workspace z:size", self._set_workspace),
            ("cublasSetMathMode", "p:handle e:mode", self._set_mode),
        ):
            setattr(self, name, self._function(name, text, body))

    @property
    def made(self) -> int:
        """How many handles there are."""
        return len(self._handles)

    @contextlib.contextmanager
    def holding(self, *arrays: np.ndarray[Any, Any]) -> Iterator[None]:
        """The memory that addresses of this thread may reach inside the block, and that lives until it was used."""
        self._held.arrays = arrays
        try:
            yield
        finally:
            del self._held.arrays

    def cublasCreate_v2(self, handle: Any) -> int:
        """A handle of the current device."""
        refuse_while_capturing("cublasCreate", "handle made")
        handle._obj.value = next(self._addresses)
        self._handles[handle._obj.value] = _Handle()
        return SUCCESS

    def _function(self, name: str, parameters: str, body: Callable[..., int]) -> Callable[..., int]:
        kinds = _kinds(parameters)

        def function(*args: Any) -> int:
            if len(args) != len(kinds):
                raise StrictError(f"{name}: expected {len(kinds)} arguments, got {len(args)}")
            values = {
                label: _value(f"{name}, {label}", _WORDS[kind], value) for (kind, label), value in zip(kinds, args)
            }
            handle = self._handles.get(values.pop("handle"))
            return NOT_INITIALIZED if handle is None else body(handle, **values)

        return function

    def _set_stream(self, handle: _Handle, stream: int) -> int:
        handle.stream, handle.workspace, handle.thread = stream, 0, threading.get_ident()
        return SUCCESS

    def _set_workspace(self, handle: _Handle, workspace: int, size: int) -> int:
        handle.workspace = workspace if size else 0
        return SUCCESS

    def _set_mode(self, handle: _Handle, mode: int) -> int:
        handle.mode = mode
        return SUCCESS if mode in (0, 1, 2, 3, 16, 17, 18, 19) else INVALID_VALUE

    def _gemm(self, handle: _Handle, **values: int) -> int:
        """C = op(A) @ op(B) for each of a batch: C is (m, n), and A (m, k) and B (k, n) unless transposed."""
        m, n, k, batch = values["m"], values["n"], values["k"], values.get("batch", 1)
        kinds = [values[name] for name in ("Atype", "Btype", "Ctype")]
        dtype, computations, wide = _TYPES.get(kinds[0], (None, (), None))
        fits = kinds[0] == kinds[1] and kinds[2] in (kinds[0], _WIDER.get(kinds[0]))
        if not fits or values["compute"] not in computations or values["algo"] not in (-1, 99):
            return NOT_SUPPORTED
        shapes = [(k, m) if values["transa"] else (m, k), (n, k) if values["transb"] else (k, n), (m, n)]
        leading = [values[f"ld{name}"] for name in "abc"]
        if min(m, n, k, batch) < 0 or any(line < max(1, shape[0]) for line, shape in zip(leading, shapes)):
            return INVALID_VALUE
        if (_scalar(values["alpha"], wide), _scalar(values["beta"], wide)) != (1, 0):
            raise StrictError("gemm: expected alpha 1 and beta 0, got other numbers, or of another dtype")
        listed = "batch" in values and "strideC" not in values
        if batch > 1 and not listed and not values["strideC"]:
            raise StrictError("gemm: expected the results of a batch side by side, got all in one place")
        self._check(handle)
        held, count = self._held.arrays, 1 if listed else batch

        def triples() -> Iterator[list[np.ndarray[Any, Any]]]:
            places = [[values[name]] for name in "ABC"]
            if listed:
                aligned = 16 if kinds[0] in _WIDER or values["compute"] == 77 else np.dtype(dtype).itemsize
                places = [_listed(values[name], batch, aligned, held) for name in "ABC"]
            for starts in zip(*places):
                yield [
                    _columns(start, line, values.get(f"stride{name}", 0), shape, count, _TYPES[kind][0], held)
                    for name, start, line, shape, kind in zip("ABC", starts, leading, shapes, kinds)
                ]

        if not listed:  # a kernel writes a list, perhaps later
            next(triples())
        compute = np.float64 if values["compute"] == 70 else np.float32

        def work() -> None:
            for a, b, c in triples():  # held keeps the memory alive until then
                left, right = a.mT if values["transa"] else a, b.mT if values["transb"] else b
                with np.errstate(all="ignore"):
                    c[...] = np.matmul(left.astype(compute), right.astype(compute))

        if self._on_host:
            work()
        else:
            perform(work, "gemm", list(held), held[2])
        sizes = {"m": m, "n": n, "k": k, "batch": batch, "lda": leading[0], "ldb": leading[1]}
        self.calls.append({**sizes, "compute": values["compute"]})
        return SUCCESS

    def _check(self, handle: _Handle) -> None:
        if handle.thread != threading.get_ident() or handle.device != current_id():
            raise StrictError("gemm: expected a handle of this thread on the current device, got another")
        if handle.mode != _NO_HALF_SUMS:
            raise StrictError(f"gemm: expected sums of halves not to be rounded to halves, got the mode {handle.mode}")
        if self._on_host:
            return
        stream = get_current_stream()
        if handle.stream != stream.ptr:
            raise StrictError("gemm: expected a handle on the current stream, got one on another")
        if stream.is_capturing() and not handle.workspace:
            raise CaptureError("gemm: expected a workspace while a stream is captured, got none: cuBLAS would take one")


def _columns(
    address: int, leading: int, step: int, shape: tuple[int, int], batch: int, dtype: Any, held: Sequence[Any]
) -> np.ndarray[Any, Any]:
    """The matrices at an address, columns first: (batch, rows, columns)."""
    rows, columns = shape
    size = np.dtype(dtype).itemsize
    memory = _memory(address, step * (batch - 1) + leading * (columns - 1) + rows, dtype, held)
    return np.lib.stride_tricks.as_strided(memory, (batch, rows, columns), (step * size, size, leading * size))


def _listed(address: int, batch: int, aligned: int, held: Sequence[Any]) -> list[int]:
    """A list of addresses in the memory of the device; for tensor cores they are multiples of 16, says the manual."""
    addresses: list[int] = _memory(address, batch, np.dtype(np.uint64), held).tolist()
    if any(address % aligned for address in addresses):
        raise StrictError(f"gemm: expected listed matrices at multiples of {aligned} bytes, got others")
    return addresses


def _memory(address: int, count: int, dtype: Any, held: Sequence[Any]) -> np.ndarray[Any, Any]:
    nbytes = count * np.dtype(dtype).itemsize
    bounds = [np.lib.array_utils.byte_bounds(array) for array in held]
    if not any(start <= address and address + nbytes <= stop for start, stop in bounds):
        raise StrictError("gemm: expected addresses inside the arrays of the call, got others")
    return np.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype)


@functools.cache
def _kinds(parameters: str) -> list[list[str]]:
    """Letter and name of each parameter."""
    return [part.split(":") for part in parameters.split()]


def _value(who: str, kind: Any, value: Any) -> int:
    """The number that the C function gets."""
    if isinstance(value, kind):
        return value.value or 0
    bits = 8 * ctypes.sizeof(kind)
    least = 0 if kind in (ctypes.c_void_p, ctypes.c_size_t) else -(2 ** (bits - 1))
    if type(value) is not int or not least <= value < least + 2**bits:
        raise StrictError(f"{who}: expected {kind.__name__}, got {value!r}, which ctypes would cut or refuse")
    return value


def _scalar(address: int, dtype: Any) -> Any:
    size = np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)[0]
