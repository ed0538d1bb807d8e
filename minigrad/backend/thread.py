"""Threads: each begins where the one that made it is, in a copy of its context and on its device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController

from minigrad.backend.device import Device


def new_thread(body: Callable[..., object], *args: Any, name: str | None = None) -> threading.Thread:
    """A daemon thread, not started yet, that calls body(*args) with what is ambient here.

    Modes and random streams are those of a copy of this context. The GPU that is current here is current there too: in
    CUDA a new thread is on the first one.
    """
    device = _chosen_gpu()
    steps = (body, *args) if device is None else (_begin_on, device, body, *args)
    return threading.Thread(target=copy_context().run, args=steps, name=name, daemon=True)


def with_blas_threads(limit: int) -> AbstractContextManager[Any]:
    """Inside the block BLAS uses no more than so many threads, whichever thread calls it."""
    limited: AbstractContextManager[Any] = _libraries(len(sys.modules)).limit(limits=limit, user_api="blas")
    return limited


@lru_cache(maxsize=1)
def _libraries(modules: int) -> ThreadpoolController:
    """What is loaded, which is looked for again, for a millisecond, where modules have been imported since."""
    return ThreadpoolController()


def _begin_on(device: Device, body: Callable[..., object], *args: Any) -> None:
    device.use()
    body(*args)


def _chosen_gpu() -> Device | None:
    """The GPU that is current here and would not be in a new thread; None where it is the first, or there is none.

    To make the first one current would start CUDA on it, for a thread that may never use it.
    """
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return None
    try:
        index = cupy.cuda.runtime.getDevice()
    except cupy.cuda.runtime.CUDARuntimeError:  # no driver, no device; or a child of a fork, where CUDA does not work
        return None
    return Device(f"cuda:{index}") if index else None
