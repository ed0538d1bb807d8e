"""What a backward looks for before it walks: who watches it, a capture as a graph, a profiler to name nodes for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from minigrad.backend.capturing import current_capture
from minigrad.backend.nvtx import current_nvtx

_watching: ContextVar[Any] = ContextVar("minigrad_watching_backwards", default=None)
current_watcher = _watching.get


@contextmanager
def watching_backwards(watcher: Any) -> Iterator[None]:
    """Let a `BackwardListener` hear of every backward in the block, in this context only, whatever leaves it reaches.

    Of begin and of each leaf it hears before those who listen to that leaf; of end after them.
    """
    token = _watching.set(watcher)
    try:
        yield
    finally:
        _watching.reset(token)


def before_walk(nodes: dict[int, Any], reached: Any) -> None:
    """A backward is about to walk these nodes, by number, and to reach what the tape's `Reached` has."""
    capture = current_capture()
    if capture is not None:
        from minigrad.autograd.captured import gradients_of

        gradients_of(capture).reach(reached.numbers, reached)
    if current_nvtx() is not None:
        from minigrad.autograd.ranges import name_nodes

        name_nodes(nodes.values())
