"""What calls of attention have in common, whoever computes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.workspace import empty_in_order, memory_order


class Shape(NamedTuple):
    """What the arguments of a call agree on.

    Attributes:
        batch: The axes before the last two of the result: samples and heads.
        heads: Those of keys and values where several queries' share one, else None.
    """

    batch: tuple[int, ...]
    queries: int
    keys: int
    heads: int | None

    @property
    def weights(self) -> tuple[int, ...]:
        """Of one for each query and key."""
        return (*self.batch, self.queries, self.keys)

    @property
    def products(self) -> tuple[int, ...]:
        """The axes before the last two in a product, where queries that share a head are rows of one matrix."""
        return self.batch if self.heads is None else (*self.batch[:-1], self.heads)

    def shared(self, x: Array) -> Array:
        """(..., query heads, L, D) as (..., key heads, L of all that share one, D)."""
        if self.heads is None:
            return x
        *others, heads, length, width = x.shape
        return x.reshape(*others, self.heads, heads // self.heads * length, width)

    def rows(self, query: Array) -> Array:
        """Queries as the rows of products."""
        found = self.shared(query)
        if found.shape[:-2] == self.products:
            return found
        return array_module(query).broadcast_to(found, (*self.products, *found.shape[-2:]))

    def apart(self, x: Array) -> Array:
        """The way back from `shared`."""
        return x if self.heads is None else x.reshape(*self.batch, self.queries, x.shape[-1])


class Form(NamedTuple):
    """What backward has to know of a call beside its arrays; mask: its shape and dtype, where there is one."""

    factor: float
    shape: Shape
    mask: tuple[tuple[int, ...], np.dtype[Any]] | None


def alike(model: Array, shape: tuple[int, ...]) -> Array | None:
    """An array of a shape, but for its last axis that of a model, as which it lies; None if there is none to follow."""
    if model.ndim < 3 or shape[:-1] != model.shape[:-1]:
        return None
    return empty_in_order(array_module(model), shape, memory_order(model), model.dtype)
