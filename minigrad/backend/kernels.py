"""The CUDA kernels: their sources, and how they are compiled and launched.

The sources lie in `kernels/` of a checkout, and an installation puts them into the package as `minigrad.kernels`. A
header is copied into the text rather than found by an include path: CuPy keys its cache of compiled kernels by the text
alone, and would not notice that a header has changed. `#line` keeps the compiler's messages true to the files.

`kernels_for(array)` gives the loader whose kernels run on an array: CuPy's on a GPU, none in host memory. Tests put
another in its place by `using_kernels`, and so run the same launches without a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from minigrad.backend.device import load_cupy
from minigrad.backend.dtypes import Array
from minigrad.errors import KernelError

# Multiply and add are not contracted: elementwise kernels give the bits of NumPy, and memory is what limits them.
OPTIONS = ("--std=c++17", "--fmad=false")

_INCLUDE = re.compile(r'[ \t]*#[ \t]*include[ \t]*"([^"]+)"')


def kernel_dir() -> Path:
    """The folder of the CUDA sources: inside the installed package, or beside it in a checkout.

    Raises:
        KernelError: it is in neither place.
    """
    package = Path(__file__).parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / "common.cuh").is_file():
            return folder
    raise KernelError(f"kernels: expected the CUDA sources inside {package} or beside it, got neither: install again")


def kernel_names() -> list[str]:
    """The names of the kernel files, without `.cu`, sorted."""
    return sorted(path.stem for path in kernel_dir().glob("*.cu"))


def kernel_source(name: str) -> str:
    """The text of `kernels/<name>.cu`, each header of ours in place of the first line that includes it.

    Raises:
        KernelError: the file, or a header that it includes, does not exist.
    """
    return "".join(_expand(f"{name}.cu", f"the kernel {name!r}", set()))


def _expand(file: str, wanted_by: str, seen: set[str]) -> list[str]:
    """The lines of a file, with the headers not seen before in place."""
    seen.add(file)
    lines = [f'#line 1 "{file}"\n']
    for number, line in enumerate(_read(file, wanted_by).splitlines(keepends=True), start=1):
        include = _INCLUDE.match(line)
        if include is None:
            lines.append(line)
        elif include[1] in seen:
            lines.append("\n")
        else:
            lines += [*_expand(include[1], f"{file}, line {number}", seen), f'\n#line {number + 1} "{file}"\n']
    return lines


def _read(file: str, wanted_by: str) -> str:
    try:
        return (kernel_dir() / file).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        present = ", ".join(kernel_names()) or "none"
        raise KernelError(
            f"kernel_source: expected kernels/{file} for {wanted_by}, got no such file: the kernels are {present}"
        ) from error


# --------------------------------------------------------------------------------------------- compiling, launching


class Kernel(Protocol):
    """A kernel as CuPy's RawKernel is called."""

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], args: Sequence[Any]) -> None:
        """Queue it on the current stream. Scalars are of NumPy, for their bytes are passed as they are."""


class KernelModule(Protocol):
    """The kernels of one file."""

    def get_function(self, name: str) -> Any:
        """The kernel of a name."""


class KernelLoader:
    """Compiles each kernel file once, at its first use, and launches kernels.

    Args:
        compile: Makes a module from the name and the text of a file.
        threads: In a block, a multiple of 32.
        max_blocks: Blocks of a launch; more elements are taken in turns. A constant rather than a property of the
            device, so sums over blocks have the same bits on every GPU.
    """

    on_host = False  # whether it runs on NumPy arrays

    def __init__(self, compile: Callable[[str, str], KernelModule], threads: int = 256, max_blocks: int = 2048) -> None:
        self.threads, self.max_blocks = threads, max_blocks
        self._compile = compile
        self._lock = threading.Lock()
        self._modules: dict[str, KernelModule] = {}
        self._kernels: dict[tuple[str, str], Any] = {}

    def get(self, file: str, name: str) -> Any:
        """The kernel `name` of `kernels/<file>.cu`.

        Raises:
            KernelError: there is no such file or kernel, or it does not compile; the compiler's lines are in the error.
        """
        kernel = self._kernels.get((file, name))
        if kernel is None:
            with self._lock:
                if file not in self._modules:
                    self._modules[file] = self._compile(file, kernel_source(file))
                kernel = self._kernels[file, name] = self._modules[file].get_function(name)
        return kernel

    def is_in_use(self, file: str) -> bool:
        """Whether a kernel of a file was asked for before."""
        return file in self._modules

    def launch(
        self, file: str, name: str, blocks: int, threads: int, args: Sequence[Any], reaches: Sequence[Any] = ()
    ) -> None:
        """Queue a kernel on the current stream of the current device.

        Args:
            args: Contiguous arrays, scalars of NumPy of exactly the parameter's type, None for a null pointer, for a
                struct an array of NumPy of one element.
            reaches: Arrays to which addresses among args point; whoever launches keeps them until the work is done.
        """
        kernel = self._kernels.get((file, name)) or self.get(file, name)
        kernel((blocks,), (threads,), args)

    def blocks(self, work: int) -> int:
        """The blocks for a number of threads' work, at least one."""
        return max(1, min(self.max_blocks, -(-work // self.threads)))


def _cuda_module(name: str, source: str) -> KernelModule:
    """A RawModule, compiled for the current device."""
    cupy = load_cupy()
    module: KernelModule = cupy.RawModule(code=source, options=OPTIONS)
    try:
        module.compile()  # type: ignore[attr-defined]
    except cupy.cuda.compiler.CompileException as error:
        raise KernelError(f"{name}.cu: expected NVRTC to compile it, got:\n{error}") from error
    return module


_on_cuda = KernelLoader(_cuda_module)
_loader: ContextVar[KernelLoader] = ContextVar("minigrad_kernels", default=_on_cuda)


def kernels_for(array: Array) -> KernelLoader | None:
    """The loader of the kernels that run on an array; None where its operations are array functions."""
    loader = _loader.get()
    return loader if array.__class__ is not np.ndarray or loader.on_host else None


def loader_for(array: Array) -> KernelLoader:
    """`kernels_for` of an array for which the caller knows that there are some."""
    loader = _loader.get()
    assert array.__class__ is not np.ndarray or loader.on_host
    return loader


def get_kernel(file: str, name: str) -> Any:
    """The kernel `name` of `kernels/<file>.cu`, compiled at the first call: a RawKernel on a GPU.

    Raises:
        KernelError: there is no such file or kernel, or it does not compile; the compiler's lines are in the error.
        DeviceError: CuPy is not installed.
    """
    return _loader.get().get(file, name)


@contextlib.contextmanager
def using_kernels(loader: KernelLoader) -> Iterator[KernelLoader]:
    """Take kernels from another loader inside the block, in this context."""
    token = _loader.set(loader)
    try:
        yield loader
    finally:
        _loader.reset(token)


@functools.lru_cache(maxsize=4096)
def launch_of(
    loader: KernelLoader, file: str, name: str, dtype: np.dtype[Any], work: int
) -> tuple[str, str, int, int]:
    """What `launch` takes before the arguments, for a kernel of a dtype and the work of so many threads: found once."""
    return file, f"{name}_{suffix_of(dtype)}", loader.blocks(work), loader.threads


# Scalars as kernels take them, kept: NumPy makes one in a fifth of a microsecond.
int32 = functools.lru_cache(maxsize=4096)(np.int32)
int64 = functools.lru_cache(maxsize=4096)(np.int64)


def suffix_of(dtype: np.dtype[Any]) -> str:
    """How the names of kernels end for a float dtype: f16, bf16, f32 or f64."""
    suffix = _suffixes.get(dtype)
    if suffix is None:
        suffix = _suffixes[dtype] = _SUFFIXES[dtype.name]
    return suffix


_SUFFIXES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
_suffixes: dict[np.dtype[Any], str] = {}  # a dtype's name takes 2 µs to find
