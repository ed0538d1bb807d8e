"""What a node does that has no module: it merges branches, by adding, averaging or joining them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

from minigrad.errors import DtypeError, ShapeError
from minigrad.graph.plan import PlanNode
from minigrad.ops.join import cat
from minigrad.tensor import Tensor

MERGES = ("add", "mean", "cat")
FEATURES = 1  # the axis along which "cat" joins unless told otherwise


def merge(node: PlanNode, values: Sequence[Any]) -> Tensor:
    """The values of several branches as one.

    Shapes:
        add, mean: K times (...) -> (...)
        cat: (N, D, ...), (N, E, ...), ... -> (N, D + E + ..., ...) for dim = 1

    Raises:
        ShapeError: shapes that differ; nothing is broadcast.
        DtypeError: a value that is no tensor, or dtypes that differ.
    """
    for source, value in zip(node.inputs, values):
        if not isinstance(value, Tensor):
            raise DtypeError(f"merge: expected tensors, got {type(value).__name__} from {source}")
    if node.op == "cat":
        return cat(values, FEATURES if node.dim is None else node.dim)
    if any(value.shape != values[0].shape for value in values):
        listed = ", ".join(f"{value.shape} from {source}" for source, value in zip(node.inputs, values))
        raise ShapeError(f"merge: expected outputs of one shape, got {listed}")
    total: Tensor = functools.reduce(operator.add, values)
    return total / len(values) if node.op == "mean" else total
