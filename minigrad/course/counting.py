"""A communicator that notes what a student's code calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.distributed import Communicator
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper

_PASSES = {"all_reduce": 2.0, "all_to_all": 1.0, "reduce_scatter": 1.0, "scatter": 1.0}  # others gather


class Counting(Wrapper):
    """Notes each call.

    Attributes:
        calls: So far, in order.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self.calls: list[Call] = []

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Note it, and make it."""
        self.calls.append(call)
        return make()

    @property
    def kinds(self) -> list[str]:
        """The kind of each call."""
        return [call.kind for call in self.calls]

    @property
    def handed_in_bytes(self) -> int:
        """What this rank has handed in."""
        return sum(call.nbytes for call in self.calls)

    @property
    def sent_bytes(self) -> float:
        """What a rank sends on a ring.

        An array of n bytes costs 2(W-1)/W·n in an all-reduce, (W-1)/W·n in a reduce-scatter or all-to-all, and
        (W-1)·n in an all-gather of one such array a rank. Source: Thakur, Rabenseifner and Gropp, "Optimization of
        collective communication operations in MPICH", 2005.
        """
        ranks = self.world_size
        return sum(call.nbytes * (ranks - 1) * _PASSES.get(call.kind, ranks) / ranks for call in self.calls)
