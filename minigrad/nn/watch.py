"""Who hears of the calls of modules: a clock that charges what they cost, say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol


class CallWatcher(Protocol):
    """What hears of the outermost calls of modules that have parameters."""

    def call(self, samples: float) -> AbstractContextManager[None]:
        """Around one of them, on so many samples."""


_watching: ContextVar[CallWatcher | None] = ContextVar("minigrad_watching_calls", default=None)
current_watcher = _watching.get


@contextmanager
def watching_calls(watcher: CallWatcher | None) -> Iterator[None]:
    """Let one hear of the calls of modules inside the block, in this context only; None for nobody."""
    token = _watching.set(watcher)
    try:
        yield
    finally:
        _watching.reset(token)
