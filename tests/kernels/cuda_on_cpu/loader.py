"""Loaders that put this runner in the place of CuPy's RawModule, under the launch code of the framework."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minigrad.backend.kernels import KernelLoader, kernel_source
from tests.kernels.cuda_on_cpu.arguments import Counts
from tests.kernels.cuda_on_cpu.module import CpuModule

_MODULES: dict[tuple[Any, ...], CpuModule] = {}  # by name, text and kernels; a session compiles each once


def cpu_module(name: str, source: str, only: Sequence[str] = ()) -> CpuModule:
    """The module of a kernel file, compiled once in a session; of some of its kernels, where not all are wanted."""
    module = _MODULES.get((name, source, *only))
    if module is None:
        module = _MODULES[(name, source, *only)] = CpuModule(name, source, only)
    return module


@functools.cache
def _module_of(file: str) -> CpuModule:
    """The module of a kernel file as it is: its text is read once in a session."""
    return cpu_module(file, kernel_source(file))


class HostKernels(KernelLoader):
    """Runs the kernels on NumPy arrays.

    Args:
        order: Of the threads, see `CpuKernel`.
        threads, max_blocks: The shape of launches.
        compile: Makes a module from the name and the text of a file.

    Attributes:
        launches: The names of the kernels that ran.
        counts: None, or a dict that collects accesses by the address of the array.
    """

    on_host = True

    def __init__(
        self,
        order: int = 0,
        threads: int = 64,
        max_blocks: int = 3,
        compile: Callable[[str, str], CpuModule] = cpu_module,
    ) -> None:
        super().__init__(compile, threads, max_blocks)
        self.order = order
        self.launches: list[str] = []
        self.counts: dict[int, Counts] | None = None

    def get(self, file: str, name: str) -> Any:
        """The kernel `name` of `kernels/<file>.cu`."""
        if self._compile is cpu_module and file not in self._modules:
            self._modules[file] = _module_of(file)
        return super().get(file, name)

    def launch(
        self, file: str, name: str, blocks: int, threads: int, args: Sequence[Any], reaches: Sequence[Any] = ()
    ) -> None:
        """Run a kernel on the CPU."""
        self.launches.append(name)
        kernel = self.get(file, name)
        kernel((blocks,), (threads,), args, reaches=reaches, order=self.order, counts=self.counts)


class StandInKernels(HostKernels):
    """Runs the kernels on the arrays of the stand-in for CuPy, on its current stream, and on no others."""

    on_host = False

    def launch(
        self, file: str, name: str, blocks: int, threads: int, args: Sequence[Any], reaches: Sequence[Any] = ()
    ) -> None:
        """Queue a kernel on the memory of stand-in arrays, all of which live on the current device."""
        from tests.strict_cupy.call import lower
        from tests.strict_cupy.streams import perform

        low_args = [arg if _is_struct(arg) else lower(name, arg) for arg in args]
        low_reaches = [lower(name, array) for array in reaches]
        perform(lambda: self._run(file, name, blocks, threads, low_args, low_reaches), name, low_args, out=low_args)

    def _run(self, *launch: Any) -> None:
        super().launch(*launch)


def _is_struct(arg: Any) -> bool:
    """Whether CuPy passes the bytes of an array: it is NumPy's, of one element."""
    return isinstance(arg, np.ndarray) and arg.size == 1 and arg.dtype.names is not None
