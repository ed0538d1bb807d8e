"""From the text of a kernel file to a shared library, by g++, kept between sessions."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from minigrad.errors import KernelError

HERE = Path(__file__).parent
HEADERS = [HERE / "runtime.h", HERE / "cuda.h", HERE / "include" / "cuda_fp16.h", HERE / "include" / "cuda_bf16.h"]
RUNTIME = [HERE / "scheduler.cpp", HERE / "memory.cpp"]

COMPILER = os.environ.get("CXX", "g++")
# no-gnu-unique, hidden: two loaded libraries must not share the state of the scheduler
FLAGS = ["-std=c++17", "-O1", "-fPIC", "-fno-gnu-unique", "-fvisibility=hidden", "-fno-strict-aliasing",
         "-ffp-contract=off", "-fcf-protection=none", "-U_FORTIFY_SOURCE", "-Wall", "-Wno-unknown-pragmas",
         "-Wno-unused-function"]
CHECKS = ["-fsanitize=thread,bounds,alignment"]

_SYSTEM_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]*>.*$", re.MULTILINE)
_DYNAMIC_SHARED = re.compile(r"\bextern\s+__shared__")
_KERNEL = re.compile(r'extern\s*"C"\s*CPU_GLOBAL\s*void\s*(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(')


def build(name: str, source: str, only: Sequence[str] = ()) -> Path:
    """The library of a kernel file, from the cache where it was built before.

    Args:
        name: Of the file, for messages and for the library.
        source: Its text, with headers of ours in place.
        only: The kernels that are wanted, where not all are: code for others takes most of the time.

    Raises:
        KernelError: g++ is not there, or refuses the text; its messages are in the error.
    """
    source = source.replace("#pragma once", "")  # g++ warns of it outside of a header
    parts = [source, *(path.read_text() for path in HEADERS + RUNTIME), *FLAGS, *CHECKS, *only, _compiler_version()]
    library = cache_folder() / f"{name}-{_key(*parts)}.so"
    if not library.exists():
        if _DYNAMIC_SHARED.search(source):
            raise KernelError(f"{name}.cu: expected shared memory of a fixed size, got `extern __shared__`")
        with tempfile.TemporaryDirectory() as folder:
            _compile(name, source, only, Path(folder))
            install(Path(folder, "kernel.so"), library)
    return library


def kernel_names(name: str, source: str) -> list[str]:
    """The `extern "C" __global__` functions of a file, once its macros are expanded."""
    text = _SYSTEM_INCLUDE.sub("", source)
    expanded = _run(name, ["-E", "-P", "-x", "c++", "-D__global__=CPU_GLOBAL", "-"], text)
    return list(dict.fromkeys(_KERNEL.findall(expanded)))


def _compile(name: str, source: str, only: Sequence[str], folder: Path) -> None:
    exports = "".join(f"CPU_EXPORT({kernel})\n" for kernel in only or kernel_names(name, source))
    text = f'{source}\n#line 1 "exports of {name}.cu"\n{exports}'
    flags = [*FLAGS, *CHECKS, *(["-fwhole-program"] if only else [])]  # by which what is not exported is not needed
    include = ["-I", str(HERE / "include"), "-include", str(_prepared_header())]
    _run(name, [*flags, *include, "-x", "c++", "-c", "-", "-o", str(folder / "kernel.o")], text)
    objects = [str(folder / "kernel.o"), *map(str, _runtime_objects())]
    _run(name, ["-shared", *objects, "-o", str(folder / "kernel.so")])


@functools.lru_cache(maxsize=1)
def _prepared_header() -> Path:
    """A header that includes cuda.h, and beside it what g++ made of it, which is read in its place."""
    text = f'#include "{HERE / "cuda.h"}"\n'
    parts = [text, *(path.read_text() for path in HEADERS[:2]), *FLAGS, *CHECKS, _compiler_version()]
    header = cache_folder() / f"cuda-{_key(*parts)}.h"
    prepared = header.with_name(f"{header.name}.gch")
    if not prepared.exists():
        with tempfile.TemporaryDirectory() as folder:
            source, built = Path(folder, "cuda.h"), Path(folder, "cuda.h.gch")
            source.write_text(text)
            _run(header.name, [*FLAGS, *CHECKS, "-x", "c++-header", str(source), "-o", str(built)])
            install(source, header)
            install(built, prepared)
    return header


@functools.lru_cache(maxsize=1)
def _runtime_objects() -> list[Path]:
    """Scheduler and memory, compiled without the checks that they serve."""
    objects = []
    for path in RUNTIME:
        parts = [path.read_text(), HEADERS[0].read_text(), *FLAGS, _compiler_version()]
        target = cache_folder() / f"{path.stem}-{_key(*parts)}.o"
        if not target.exists():
            with tempfile.TemporaryDirectory() as folder:
                built = Path(folder, "runtime.o")
                _run(path.name, [*FLAGS, "-Wextra", "-c", str(path), "-o", str(built)])
                install(built, target)
        objects.append(target)
    return objects


def _key(*parts: str) -> str:
    """What a result is kept by: all that it depends on."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@functools.lru_cache(maxsize=1)
def _compiler_version() -> str:
    return _run(COMPILER, ["-dumpfullversion", "-dumpmachine"])


def _run(name: str, arguments: Sequence[str], text: str = "") -> str:
    """What the compiler prints; its warnings are errors, as they are under NVRTC."""
    try:
        done = subprocess.run([COMPILER, *arguments], input=text, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise KernelError(f"{name}: expected {COMPILER}, by which kernels run on a CPU, got no such program") from error
    if done.returncode or done.stderr:
        raise KernelError(f"{name}: expected {COMPILER} to compile it, got:\n{done.stderr}")
    return done.stdout


@functools.lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Where results of compilers are kept between sessions: $MINIGRAD_CPU_KERNEL_CACHE, or a temporary folder."""
    default = Path(tempfile.gettempdir(), f"minigrad-cpu-kernels-{os.getuid()}")
    folder = Path(os.environ.get("MINIGRAD_CPU_KERNEL_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def install(built: Path, target: Path) -> None:
    """Put a file into the cache at once, as another process may build the same."""
    partial = target.with_suffix(f".{os.getpid()}")
    shutil.copy(built, partial)
    os.replace(partial, target)
