"""What a case is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """One call of one operation.

    op: its name in `minigrad.ops.__all__`. label: unique within the op. inputs: makes the arguments from a generator;
    float64 arrays are differentiated, integer and bool arrays are passed as tensors too. ours and theirs: the same
    computation on minigrad tensors and on torch tensors (theirs gets the torch module first), each giving one tensor.
    differentiable: False where the output has no gradient (comparisons, argmax).
    """

    op: str
    label: str
    inputs: Callable[[np.random.Generator], list[Any]]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    differentiable: bool = True

    @property
    def id(self) -> str:
        return f"{self.op}-{self.label}"

    def draw(self) -> list[Any]:
        """The arguments, the same in every run."""
        return self.inputs(np.random.Generator(np.random.Philox(key=sum(self.id.encode()))))


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Any]]:
    """Standard normal arguments of these shapes."""
    return lambda rng: [np.asarray(rng.standard_normal(shape)) for shape in shapes]


def uniform(low: float, high: float, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], list[Any]]:
    """Uniform arguments of these shapes."""
    return lambda rng: [np.asarray(rng.uniform(low, high, shape)) for shape in shapes]
