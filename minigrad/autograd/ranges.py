"""Backward by nodes on the timeline of a profiler: each backward function with its name around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.backend.nvtx import nvtx_range


class Ranged:
    """The backward function of a node, in a range of its own."""

    __slots__ = ("backward", "__name__")

    def __init__(self, backward: Any) -> None:
        self.backward, self.__name__ = backward, backward.__name__

    def __call__(self, node: Any, grad: Array) -> None:
        with nvtx_range(f"{self.__name__.strip('_').removesuffix('_backward')} backward"):
            self.backward(node, grad)


def name_nodes(nodes: Iterable[Any]) -> None:
    """Put a range around the backward function of each node that has none."""
    for node in nodes:
        if not isinstance(node.backward, Ranged):
            node.backward = Ranged(node.backward)
