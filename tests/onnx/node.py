"""What the functions of a family get, and how they say that a node can't be expressed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minigrad import ops

Function = Callable[..., Any]  # (node, *inputs) to an output, or a tuple of them


class Inexpressible(Exception):
    """No few public calls do what a node asks for; the message says why, in the words of the table."""


@dataclass(frozen=True)
class Node:
    """One node: its type, its attributes as Python values, how many outputs it has, the version of its operators."""

    kind: str
    attributes: dict[str, Any]
    outputs: int
    version: int

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)


def ints(x: Any) -> list[int]:
    """The integers of an input that says axes, sizes or positions."""
    return [int(value) for value in np.asarray(x.data).reshape(-1)]


def is_float(x: Any) -> bool:
    """Whether a tensor holds floating-point numbers."""
    return x.dtype.kind == "f" or x.dtype.name == "bfloat16"


def by_name(**names: str) -> dict[str, Function]:
    """The functions of nodes that have no attribute: for each type the name of the operation that it is."""
    return {kind: functools.partial(_call, name) for kind, name in names.items()}


def _call(name: str, node: Node, *inputs: Any) -> Any:
    return getattr(ops, name)(*inputs)
