"""What a backward does before it walks, where it is captured as a graph, or named for a profiler; else two looks."""

from __future__ import annotations

from typing import Any

from minigrad.backend.capturing import current_capture
from minigrad.backend.nvtx import current_nvtx


def before_walk(nodes: dict[int, Any], reached: Any) -> None:
    """A backward is about to walk these nodes, by number, and to reach what the tape's `Reached` has."""
    capture = current_capture()
    if capture is not None:
        from minigrad.autograd.captured import gradients_of

        gradients_of(capture).reach(reached.numbers, reached)
    if current_nvtx() is not None:
        from minigrad.autograd.ranges import name_nodes

        name_nodes(nodes.values())
