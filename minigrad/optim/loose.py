"""Loose: a tensor that is no Parameter, as an optimizer of bare tensors sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from minigrad.backend.device import Device
from minigrad.backend.dtypes import Array
from minigrad.backend.memory import duplicate
from minigrad.errors import LayoutError
from minigrad.nn.companions import Attached
from minigrad.tensor import Tensor


class Loose:
    """One tensor in its own memory in the form of a `nn.flat.FlatBuffer`, without padding.

    Nobody else knows of it: a Parameter can be trained by several, such as an optimizer and a data-parallel wrapper,
    for whom it keeps its flat buffer.

    Attributes:
        params: The tensor alone.
        data, grad: Its values and its gradient as vectors; grad is there where the tensor has one.
    """

    def __init__(self, x: Tensor) -> None:
        self.params: list[Any] = [x]
        self.device: Device = x.device
        self.dtype: np.dtype[Any] = x.dtype
        self.count = x.numel()
        self.position = {id(x): 0}
        self.companions: Attached = ()
        self.check()

    @property
    def data(self) -> Array:
        """The values, which stay where they are."""
        return self.params[0].data.reshape(-1)

    @property
    def grad(self) -> Array:
        """The gradient, of which nobody else sees the memory from now on."""
        x = self.params[0]
        if not (x.grad_array.flags.c_contiguous and (x.grad_owned or x.grad_given is not None)):
            with self.device.current():
                x.grad_array, x.grad_owned = duplicate(x.grad_array), True
        return x.grad_array.reshape(-1)

    def check(self) -> None:
        """Refuse a tensor that can't be changed where it is.

        Raises:
            LayoutError: it became one of another shape, dtype or device, or its elements do not lie in a row.
        """
        x = self.params[0]
        if (x.device, x.dtype, x.numel()) != (self.device, self.dtype, self.count) or not x.data.flags.c_contiguous:
            raise LayoutError(
                f"optimizer: expected a tensor of {self.count} {self.dtype.name} on {self.device} in a row, got "
                f"{x.dtype.name} {x.shape} on {x.device}{'' if x.data.flags.c_contiguous else ': write .contiguous()'}"
            )

    def span(self, x: Tensor) -> tuple[int, int]:
        """All elements."""
        return 0, self.count

    def runs(self, params: Iterable[Tensor]) -> list[tuple[int, int]]:
        """All elements."""
        return [(0, self.count)]
