"""Models of the programs: as small as can be."""

from __future__ import annotations

from typing import Any

from minigrad import nn
from minigrad.tensor import Tensor


class Net(nn.Module):
    """Two layers, of which the second need not be used."""

    def __init__(self, norm: nn.Module | None = None, drop: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.norm = norm or nn.Identity()
        self.drop = nn.Dropout(drop)
        self.second = nn.Linear(4, 4)

    def forward(self, x: Tensor, both: bool = True) -> Tensor:
        """See `Module`."""
        hidden: Tensor = self.drop(self.norm(self.first(x)))
        return self.second(hidden) if both else hidden


class Plain(nn.Module):
    """A module without wrapper, under the name that a wrapper has it by."""

    def __init__(self, comm: Any) -> None:
        super().__init__()
        self.module, self.comm = Net(), comm

    def forward(self, x: Tensor) -> Tensor:
        """See `Module`."""
        return self.module(x)  # type: ignore[no-any-return]
