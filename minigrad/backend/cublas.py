"""cuBLAS: matrix products on the current stream of a GPU, by ctypes in the library that CuPy has loaded.

CuPy's own bindings refuse every call while a stream is captured as a graph. Here a thread has a handle of its own on
each device, and each stream that it multiplies on a workspace that is kept. So a product allocates nothing, can be
captured, and has the same bits each time.

`using_cublas` puts another one in its place: tests multiply in host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import load_cupy
from minigrad.backend.dtypes import Array
from minigrad.errors import DeviceError, KernelError

# cudaDataType_t, cublasComputeType_t, cublasOperation_t, cublasGemmAlgo_t and cublasMath_t: numbers of CUDA's binary
# interface
DATA_TYPES = {"float16": 2, "bfloat16": 14, "float32": 0, "float64": 1}
COMPUTE_32F, COMPUTE_64F, COMPUTE_32F_FAST_TF32 = 68, 70, 77
AS_IT_LIES, TRANSPOSED = 0, 1
_DEFAULT_ALGORITHM = -1
_NO_HALF_SUMS = 16  # partial sums of halves are not rounded to halves either

_STATUS = {
    **{1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR"},
    **{13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR"},
}
_LONGEST = 2**31 - 1  # beyond it the functions with 64-bit lengths are called

_address, _number, _enum, _step = ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_longlong


class Operand(NamedTuple):
    """Matrices as cuBLAS is told of them, in elements, but for the place.

    Attributes:
        at: Bytes from the start of the array to the first one.
        operation: AS_IT_LIES or TRANSPOSED.
        leading: From one line to the next.
        step: From one matrix to the next.
        data_type: Of DATA_TYPES.
    """

    at: int
    operation: int
    leading: int
    step: int
    data_type: int


class Gemm(NamedTuple):
    """One call: its function, and its arguments before, between and after the addresses of A, B and C."""

    function: str
    head: tuple[Any, ...]
    after_a: tuple[Any, ...]
    after_b: tuple[Any, ...]
    tail: tuple[Any, ...]
    at: tuple[int, int, int]


def prepare(
    a: Operand, b: Operand, c: Operand, sizes: tuple[int, int, int], count: int, compute: int, listed: bool = False
) -> Gemm:
    """C = op(A) @ op(B), columns first, for each of a batch.

    Args:
        sizes: m, n, k: C is (m, n).
        count: Matrices of the batch, >= 1.
        compute: COMPUTE_32F, COMPUTE_64F or COMPUTE_32F_FAST_TF32.
        listed: Lists of addresses on the device stand for A, B and C; each is a multiple of 16 bytes.
    """
    long = max(*sizes, a.leading, b.leading, c.leading, count) > _LONGEST
    number = _step if long else _number
    one, zero = _scalars(compute == COMPUTE_64F)
    batched = count > 1 or listed
    lines = [
        (_enum(part.data_type), number(part.leading), *((_step(part.step),) if batched and not listed else ()))
        for part in (a, b, c)
    ]
    name = "cublasGemmBatchedEx" if listed else "cublasGemmStridedBatchedEx" if batched else "cublasGemmEx"
    return Gemm(
        name + ("_64" if long else ""),
        (_enum(a.operation), _enum(b.operation), *map(number, sizes), _address(one.ctypes.data)),
        lines[0],
        (*lines[1], _address(zero.ctypes.data)),
        (*lines[2], *((number(count),) if batched else ()), _enum(compute), _enum(_DEFAULT_ALGORITHM)),
        (a.at, b.at, c.at),
    )


@functools.cache
def _scalars(double: bool) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """1 and 0 in host memory, where cuBLAS reads them."""
    dtype = np.float64 if double else np.float32
    return np.ones(1, dtype), np.zeros(1, dtype)


def _parameters(number: Any, batched: bool, listed: bool = False) -> list[Any]:
    line = [_address, _enum, number, *([_step] if batched and not listed else [])]
    middle = [_enum, _enum, number, number, number, _address, *line, *line, _address, *line]
    return [_address, *middle, *([number] if batched else []), _enum, _enum]


FUNCTIONS: dict[str, list[Any]] = {
    "cublasCreate_v2": [ctypes.POINTER(_address)],
    "cublasSetStream_v2": [_address, _address],
    "cublasSetWorkspace_v2": [_address, _address, ctypes.c_size_t],
    "cublasSetMathMode": [_address, _enum],
    "cublasGemmEx": _parameters(_number, False),
    "cublasGemmEx_64": _parameters(_step, False),
    "cublasGemmStridedBatchedEx": _parameters(_number, True),
    "cublasGemmStridedBatchedEx_64": _parameters(_step, True),
    "cublasGemmBatchedEx": _parameters(_number, True, listed=True),
    "cublasGemmBatchedEx_64": _parameters(_step, True, listed=True),
}


def open_library() -> Any:
    """The library that CuPy's bindings are linked to, found by way of them, with the types of its functions.

    Raises:
        DeviceError: it is not there.
    """
    load_cupy()
    try:
        from cupy_backends.cuda.libs import cublas

        library = ctypes.CDLL(cublas.__file__)  # a symbol is looked for in what this one is linked to, too
        for name, parameters in FUNCTIONS.items():
            getattr(library, name).argtypes = parameters
    except (ImportError, OSError, AttributeError) as error:
        raise DeviceError(
            "cuBLAS: expected CUDA's libcublas of the major version that CuPy is made for, got none "
            f"({str(error).strip()}): pip install 'minigrad[cuda12-toolkit]' or 'minigrad[cuda13-toolkit]'"
        ) from error
    return library


def _refused(name: str, status: int) -> KernelError:
    return KernelError(f"cuBLAS: expected {name} to succeed, got CUBLAS_STATUS_{_STATUS.get(status, status)}")


class _Handle:
    """A handle of cuBLAS, what it was told last, and a workspace for each stream; its thread's, as long as that lives.

    It is given back rather than destroyed, which would wait for the GPU, and at the end of the process fail.
    """

    __slots__ = ("address", "stream", "workspaces", "_free")

    def __init__(self, address: ctypes.c_void_p, free: list[ctypes.c_void_p]) -> None:
        self.address, self._free = address, free
        self.stream: int | None = None
        self.workspaces: dict[int, Array] = {}

    def __del__(self) -> None:
        self._free.append(self.address)


class Cublas:
    """Multiplies matrices on the current stream of the current device, which is that of the arrays.

    Args:
        open: Gives the library, at the first product.
    """

    def __init__(self, open: Callable[[], Any] = open_library) -> None:
        self._open = open
        self._thread = threading.local()
        self._free: dict[int, list[ctypes.c_void_p]] = {}
        self._lock = threading.Lock()
        self._functions: dict[str, Any] = {}

    def multiply(self, gemms: Sequence[Gemm], a: Array, b: Array, c: Array) -> None:
        """Queue calls on the memory of three arrays.

        Raises:
            DeviceError: they live on another device, or the library is not there.
            KernelError: cuBLAS refuses a call.
        """
        device, stream = self._here()
        handle = self._handle(device)
        if handle.stream != stream:
            self._move(handle, device, stream)
        start_a, start_b, start_c = self._place(a, device), self._place(b, device), self._place(c, device)
        for function, head, after_a, after_b, tail, (at_a, at_b, at_c) in gemms:
            places = _address(start_a + at_a), _address(start_b + at_b), _address(start_c + at_c)
            status = self._functions[function](
                handle.address, *head, places[0], *after_a, places[1], *after_b, places[2], *tail
            )
            if status:
                raise _refused(function, status)

    def multiply_listed(self, gemm: Gemm, lists: tuple[Array, Array, Array], arrays: Sequence[Array]) -> None:
        """Queue a call on lists of addresses, which lie in these arrays.

        Raises:
            DeviceError, KernelError: as `multiply`.
        """
        self.multiply((gemm,), *lists)

    @contextlib.contextmanager
    def own_workspace(self) -> Iterator[Array]:
        """Give products of this thread, on the stream that is current, a workspace of their own inside the block.

        A graph that is captured keeps its address: whoever captures enters the block first, and keeps the array as
        long as the graph.
        """
        device, stream = self._here()
        handle = self._handle(device)
        outer = handle.workspaces.pop(stream, None)
        handle.workspaces[stream] = own = self._memory(device)
        handle.stream = None
        try:
            yield own
        finally:
            handle.workspaces.pop(stream)
            if outer is not None:
                handle.workspaces[stream] = outer
            handle.stream = None

    def _call(self, name: str, *args: Any) -> None:
        status = self._functions[name](*args)
        if status:
            raise _refused(name, status)

    def _handle(self, device: int) -> _Handle:
        """Of this thread, on the current device."""
        try:
            handles: dict[int, _Handle] = self._thread.handles
        except AttributeError:
            handles = self._thread.handles = {}
        handle = handles.get(device)
        if handle is None:
            handle = handles[device] = self._make(device)
        return handle

    def _make(self, device: int) -> _Handle:
        with self._lock:
            if not self._functions:
                library = self._open()
                self._functions = {name: getattr(library, name) for name in FUNCTIONS}
            free = self._free.setdefault(device, [])
        try:
            return _Handle(free.pop(), free)
        except IndexError:
            address = _address()
            self._call("cublasCreate_v2", ctypes.byref(address))
            self._call("cublasSetMathMode", address, _NO_HALF_SUMS)
            return _Handle(address, free)

    def _move(self, handle: _Handle, device: int, stream: int) -> None:
        """Let a handle work on a stream, with the workspace that is kept for it; to set a stream forgets the last."""
        handle.stream = None
        workspace = handle.workspaces.get(stream)
        if workspace is None:
            workspace = handle.workspaces[stream] = self._memory(device)
        self._call("cublasSetStream_v2", handle.address, stream)
        self._call("cublasSetWorkspace_v2", handle.address, self._start(workspace), workspace.nbytes)
        handle.stream = stream

    # ------------------------------------------------------------------- what is there: the device, its memory

    def _here(self) -> tuple[int, int]:
        """The current device, and the address of its current stream."""
        cuda = load_cupy().cuda
        return cuda.runtime.getDevice(), cuda.get_current_stream().ptr

    def _place(self, array: Array, device: int) -> int:
        """Where an array begins."""
        memory = array.data
        if memory.device_id != device:
            raise DeviceError(
                f"cuBLAS: expected arrays on the current device cuda:{device}, got one on cuda:{memory.device_id}: "
                "write with device.current():"
            )
        return memory.ptr  # type: ignore[no-any-return]

    def _start(self, workspace: Array) -> int:
        return workspace.data.ptr  # type: ignore[no-any-return]

    def _memory(self, device: int) -> Array:
        """A workspace, as large as NVIDIA advises, or more."""
        cupy = load_cupy()
        major = cupy.cuda.runtime.getDeviceProperties(device)["major"]
        return cupy.empty((32 if major >= 9 else 8) << 20, np.uint8)


_on_cuda = Cublas()
_current: ContextVar[Cublas] = ContextVar("minigrad_cublas", default=_on_cuda)
current_cublas = _current.get


@contextlib.contextmanager
def using_cublas(cublas: Cublas) -> Iterator[Cublas]:
    """Let another one multiply inside the block, in this context."""
    token = _current.set(cublas)
    try:
        yield cublas
    finally:
        _current.reset(token)
