"""Parameter and Buffer: the tensors that a Module registers when they are assigned to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minigrad.backend.dtypes import Array
from minigrad.tensor import Tensor

if TYPE_CHECKING:
    from minigrad.nn.flat import FlatBuffer


class Parameter(Tensor):
    """A tensor that a Module owns and an optimizer changes.

    Args:
        data: A Tensor, whose memory it takes, or an array; a float dtype.
        requires_grad: Whether it is trained.

    Attributes:
        name: Its first dotted name in the module that flattened or wrapped it, for messages; None before.
        flat: The flat buffer in which it lies, None before there is one.

    Raises:
        DtypeError: requires_grad with an integer dtype.
    """

    __slots__ = ("flat", "name")

    def __init__(self, data: Tensor | Array, requires_grad: bool = True) -> None:
        super().__init__(data.data if isinstance(data, Tensor) else data, requires_grad)
        self.flat: FlatBuffer | None = None
        self.name: str | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = Parameter(self.data.copy(), self.requires_grad)
        copy.name = self.name
        memo[id(self)] = copy
        return copy


class Buffer(Tensor):
    """A tensor that belongs to a Module's state but is not trained, such as running statistics.

    Args:
        data: A Tensor, whose memory it takes, or an array.
        persistent: Whether it is part of the module's state_dict.
    """

    __slots__ = ("persistent",)

    def __init__(self, data: Tensor | Array, persistent: bool = True) -> None:
        super().__init__(data.data if isinstance(data, Tensor) else data)
        self.persistent = persistent

    def __deepcopy__(self, memo: dict[int, Any]) -> Buffer:
        copy = Buffer(self.data.copy(), self.persistent)
        memo[id(self)] = copy
        return copy
