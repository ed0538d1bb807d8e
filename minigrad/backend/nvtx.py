"""Ranges on the timeline of NVIDIA's profilers, by NVTX through CuPy: of this context, while they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from minigrad.backend.device import load_cupy
from minigrad.errors import MissingPackageError

_NOTHING = nullcontext()
_emitting: ContextVar[Any] = ContextVar("minigrad_nvtx", default=None)
current_nvtx = _emitting.get  # CuPy's module while ranges are wanted, else None


@contextmanager
def emitting_nvtx() -> Iterator[None]:
    """Tell ranges inside the block.

    Raises:
        DeviceError: CuPy is not installed. MissingPackageError: it finds no NVTX.
    """
    nvtx = load_cupy().cuda.nvtx
    if not getattr(nvtx, "available", True):
        raise MissingPackageError("nvtx: expected a CuPy that has NVTX, got one without: see the profiler's own trace")
    token = _emitting.set(nvtx)
    try:
        yield
    finally:
        _emitting.reset(token)


def nvtx_range(name: str) -> AbstractContextManager[None]:
    """A range around a block; where none are wanted, one that does nothing."""
    nvtx = _emitting.get()
    return _NOTHING if nvtx is None else _Range(nvtx, name)


class _Range:
    """A range, which ends by an error too."""

    __slots__ = ("_nvtx", "_name")

    def __init__(self, nvtx: Any, name: str) -> None:
        self._nvtx, self._name = nvtx, name

    def __enter__(self) -> None:
        self._nvtx.RangePush(self._name)

    def __exit__(self, *error: object) -> None:
        self._nvtx.RangePop()
