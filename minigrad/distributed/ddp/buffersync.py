"""Buffers of a module, such as running statistics: kept alike on all ranks, at a chosen cadence.

They travel in flat memory, in one collective for each device and dtype.

They are synchronised at the end of a synchronising pass, where every rank is, rather than before a forward: an
evaluation on one rank then makes no collective, and ranks with different numbers of batches do not wait in forward.
"""

from __future__ import annotations

from typing import Literal

from minigrad.arguments import as_integer, check_choice
from minigrad.backend.dtypes import is_float
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.buffers import BufferMemory
from minigrad.distributed.ddp.passes import Pass
from minigrad.nn.inventory import Inventory

BufferPolicy = Literal["broadcast", "mean", "none"]


def policy_of(policy: BufferPolicy | bool) -> str:
    """A policy by its name.

    Raises:
        ArgumentError: it is none.
    """
    name = {True: "broadcast", False: "none"}[policy] if isinstance(policy, bool) else policy
    check_choice("DistributedDataParallel", ("broadcast", "mean", "none"), broadcast_buffers=name)
    return name


class BufferSync:
    """What happens to the buffers after each pass.

    Args:
        policy: "broadcast": the buffers of the lowest rank that still has data win. "mean": floats are averaged with
            equal weights, and integers, such as counters, are broadcast. "none": each rank keeps its own.
            True and False stand for "broadcast" and "none", as in PyTorch.
        every: Passes between two synchronisations, >= 1.

    Attributes:
        alike: Whether the last pass made the buffers alike.

    Raises:
        ArgumentError: another policy, or a cadence below 1.
    """

    def __init__(self, inventory: Inventory, comm: Communicator, policy: BufferPolicy | bool, every: int) -> None:
        self.policy = policy_of(policy)
        self.comm, self._memory = comm, BufferMemory(inventory)
        self.every = as_integer("DistributedDataParallel", "buffer_cadence", every, 1)
        self._passes = 0
        self.alike = False

    def after_pass(self, one: Pass) -> None:
        """Synchronise the buffers where they are due; every rank calls it after each pass."""
        self._passes += 1
        self.alike = self.policy != "none" and self._passes % self.every == 0
        if self.alike:
            self._make_alike(one.active_ranks[0], averages=self.policy == "mean")

    def broadcast(self, root: int) -> None:
        """Overwrite the buffers of all ranks by the root's, whatever the policy and the cadence."""
        self._make_alike(root, averages=False)

    def _make_alike(self, root: int, averages: bool) -> None:
        pieces = self._memory.pieces()
        works = [
            self.comm.all_reduce(piece.pack(), ReduceOp.AVG)
            if averages and is_float(piece.dtype)
            else self.comm.broadcast(piece.pack(), root)
            for piece in pieces
        ]
        for work, piece in zip(works, pieces):
            work.wait()
            piece.unpack()
