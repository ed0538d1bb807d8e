"""CuPy's RawModule and RawKernel, on NumPy arrays."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.errors import KernelError
from tests.kernels.cuda_on_cpu.arguments import Arguments, Counts
from tests.kernels.cuda_on_cpu.compiler import build


class _Launch(ctypes.Structure):
    """cpu::Launch of runtime.h."""

    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("order", ctypes.c_uint)]


class CpuModule:
    """The kernels of one file.

    Args:
        only: Those that are wanted, where not all are.

    Attributes:
        names: Of its kernels.

    Raises:
        KernelError: it does not compile.
    """

    def __init__(self, name: str, source: str, only: Sequence[str] = ()) -> None:
        self.name = name
        path = str(build(name, source, only))
        library = ctypes.CDLL(path)
        library.cpu_name.restype = library.cpu_parameters.restype = library.cpu_error.restype = ctypes.c_char_p
        library.cpu_launch.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int]
        kernels = [CpuKernel(library, i, _lock_of(path)) for i in range(library.cpu_count())]
        self._kernels = {kernel.name: kernel for kernel in kernels}
        self.names = list(self._kernels)

    def get_function(self, name: str) -> CpuKernel:
        """One kernel of the file.

        Raises:
            KernelError: there is none of that name.
        """
        if name not in self._kernels:
            raise KernelError(f"{self.name}.cu: expected one of {', '.join(self._kernels)}, got {name}")
        return self._kernels[name]


class CpuKernel:
    """One kernel; called as a RawKernel is."""

    def __init__(self, library: ctypes.CDLL, index: int, lock: threading.Lock) -> None:
        self._library, self._index, self._lock = library, index, lock
        self.name: str = library.cpu_name(index).decode()
        self.parameters: list[str] = library.cpu_parameters(index).decode().split()

    def __call__(
        self,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        *,
        reaches: Sequence[Any] = (),
        order: int = 0,
        counts: dict[int, Counts] | None = None,
    ) -> None:
        """Run it on every thread, and bring the results to the arrays.

        Args:
            reaches: Arrays to which a table of addresses among args points.
            order: Of the threads: 0 breadth first, 1 depth first and backwards, other numbers seed a shuffle.
            counts: Gets for each array, by its address, how often its elements were touched.

        Raises:
            TypeError: an argument that the kernel would misread.
            ValueError: a grid or a block that no GPU takes.
            RuntimeError: what the kernel did wrong, and in which thread.
        """
        launch = _Launch((ctypes.c_uint * 3)(*_extent(grid)), (ctypes.c_uint * 3)(*_extent(block)), order)
        _check_shape(self.name, list(launch.grid), list(launch.block))
        arguments = Arguments(self.name, self.parameters, args, reaches, counts is not None)
        with self._lock:
            failed = self._library.cpu_launch(
                self._index, ctypes.byref(launch), arguments.pointers, arguments.regions, len(arguments.regions)
            )
            if failed:
                raise RuntimeError(f"{self.name}: {self._library.cpu_error().decode()}")
        arguments.copy_back()
        if counts is not None:
            for array in (value for value in (*args, *reaches) if isinstance(value, np.ndarray) and value.size):
                if array.dtype.names is None:
                    counts[array.ctypes.data] = arguments.counts(array)


@functools.cache
def _lock_of(library: str) -> threading.Lock:
    """A library runs one launch at a time, however often it was loaded."""
    return threading.Lock()


def _extent(extent: Sequence[int]) -> list[int]:
    return [*extent, 1, 1][:3]


def _check_shape(name: str, grid: list[int], block: list[int]) -> None:
    threads = block[0] * block[1] * block[2]
    if not 0 < threads <= 1024 or block[2] > 64 or min(grid) < 1 or max(grid[1:]) > 65535:
        raise ValueError(f"{name}: expected a grid and a block that a GPU takes, got {grid} and {block}")
