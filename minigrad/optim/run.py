"""FlatRun: a run of a flat buffer, as an optimizer sees it that trains these elements alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.nn.companions import Attached
from minigrad.nn.flat import FlatBuffer
from minigrad.nn.parameter import Parameter


class FlatRun:
    """The elements [start, stop) of a flat buffer in the form of one: where ranks share the work of an optimizer.

    The elements of a parameter are those of them that lie in the run: all, some, or none.

    Args:
        flat: Where they lie.
        start, stop: Which elements; there may be none.
        params: Whose steps are counted here, in the order of the layout, also of those that have no element in it.

    Attributes:
        count: stop - start.
        position: The place of each parameter in params, by its id.
    """

    def __init__(self, flat: FlatBuffer, start: int, stop: int, params: Sequence[Parameter]) -> None:
        self.flat, self.start, self.stop, self.params = flat, start, stop, list(params)
        self.device: Device = flat.device
        self.dtype: np.dtype[Any] = flat.dtype
        self.count = stop - start
        self.position = {id(param): i for i, param in enumerate(self.params)}

    @property
    def data(self) -> Array:
        """The values, which stay where they are."""
        return self.flat.data[self.start : self.stop]

    @property
    def grad(self) -> Array:
        """The gradients, which stay where they are."""
        return self.flat.grad[self.start : self.stop]

    @property
    def companions(self) -> Attached:
        """Those of the flat buffer."""
        return self.flat.companions

    @companions.setter
    def companions(self, companions: Attached) -> None:
        self.flat.companions = companions

    def check(self) -> None:
        """Nothing: who cuts a flat buffer into runs has it checked once for all of them."""

    def span(self, param: Parameter) -> tuple[int, int]:
        """The elements [start, stop) of a parameter in this run; start = stop where it has none here."""
        start, stop = (min(max(at, self.start), self.stop) - self.start for at in self.flat.span(param))
        return start, stop

    def piece(self, param: Parameter) -> slice:
        """The same, as elements of the parameter."""
        start, stop = self.span(param)
        first = self.start + start - self.flat.span(param)[0]
        return slice(first, first + stop - start) if stop > start else slice(0, 0)

    def runs(self, params: Iterable[Parameter]) -> list[tuple[int, int]]:
        """The maximal ranges [start, stop) of this run that cover these parameters, with the padding after each."""
        found = []
        for first, last in self.flat.runs(params):
            start, stop = max(first, self.start), min(last, self.stop)
            if start < stop:
                found.append((start - self.start, stop - self.start))
        return found
