"""What a wrapper looks after besides gradients: buffers, the layers of SyncBatchNorm, the bits of the replicas.

Buffers are synchronised at the end of a synchronising pass, where every rank is, rather than before a forward: an
evaluation on one rank then makes no collective, and ranks with different numbers of batches do not wait in forward.
"""

from __future__ import annotations

from typing import Literal

from minigrad.arguments import as_integer, check_choice
from minigrad.backend.capturing import refuse_in_capture
from minigrad.backend.dtypes import is_float
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.ddp.buffers import BufferMemory
from minigrad.distributed.ddp.captured import ReplayedPasses
from minigrad.distributed.ddp.lanes import DeviceLane
from minigrad.distributed.ddp.layer_waits import listen_inside
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.distributed.ddp.syncbn import join_sync_batch_norms, leave_sync_batch_norms
from minigrad.distributed.ddp.timekeeper import attach
from minigrad.distributed.record.fingerprint import ReplicaCheck
from minigrad.distributed.record.timeline import Timeline
from minigrad.nn.inventory import Inventory
from minigrad.nn.module import Module

BufferPolicy = Literal["broadcast", "mean", "none"]


def policy_of(policy: BufferPolicy | bool) -> str:
    """A policy by its name.

    Raises:
        ArgumentError: it is none.
    """
    name = {True: "broadcast", False: "none"}[policy] if isinstance(policy, bool) else policy
    check_choice("DistributedDataParallel", ("broadcast", "mean", "none"), broadcast_buffers=name)
    return name


class Upkeep:
    """Keeps the buffers of a module alike, compares replicas, and tells SyncBatchNorm layers whom to ask.

    Args:
        policy: "broadcast": the buffers of the lowest rank that still has data win. "mean": floats are averaged with
            equal weights, and integers, such as counters, are broadcast. "none": each rank keeps its own.
            True and False stand for "broadcast" and "none", as in PyTorch.
        every: Passes between two synchronisations, >= 1.
        check_every: See `ReplicaCheck`.
        timeline: Where passes are noted; see `timekeeper.attach`.

    Attributes:
        inventory: Of the module.
        check: What compares replicas.

    Raises:
        ArgumentError: another policy, or a cadence below 1.
    """

    def __init__(
        self,
        module: Module,
        reducer: Reducer,
        policy: BufferPolicy | bool,
        every: int,
        check_every: int | None,
        timeline: Timeline | None = None,
    ) -> None:
        self.inventory = Inventory(module)
        reducer.in_order = join_sync_batch_norms(module, reducer.comm, reducer)
        self._removals = [] if timeline is None else attach(timeline, module, reducer)
        self._removals += [] if timeline is None else listen_inside(timeline, reducer.comm, module)
        if isinstance(reducer.lane, DeviceLane):
            reducer.lane.replays = ReplayedPasses(reducer)
        self._module, self._comm, self._booked = module, reducer.comm, reducer.lane.booked
        self._policy, self._memory = policy_of(policy), BufferMemory(self.inventory)
        self._every = as_integer("DistributedDataParallel", "buffer_cadence", every, 1)
        self.check = ReplicaCheck(module, self._booked, check_every)

    def after_pass(self, active_ranks: list[int], passes: int) -> None:
        """Do what is due after so many passes; every rank calls it, with the ranks that have data."""
        who, every = "DistributedDataParallel", self.check.every
        if self._every > 1:
            refuse_in_capture(who, f"buffer_cadence={self._every}", "synchronise in every pass, or never")
        if every is not None:
            refuse_in_capture(who, f"check_replicas_every={every}", "compare replicas outside of it")
        synchronised = self._policy != "none" and passes % self._every == 0
        if synchronised and self.inventory.buffers():
            self._make_alike(active_ranks[0], averages=self._policy == "mean")
        if len(active_ranks) == self._comm.world_size:  # those that wait in join() have stopped to step
            self.check.after_pass(buffers=synchronised)

    def broadcast(self, root: int) -> None:
        """Overwrite the buffers of all ranks by the root's, whatever the policy and the cadence."""
        self._make_alike(root, averages=False)

    def leave(self) -> None:
        """Let the SyncBatchNorm layers go, and remove what was attached."""
        for removal in self._removals:
            removal()
        leave_sync_batch_norms(self._module, self._comm)

    def _make_alike(self, root: int, averages: bool) -> None:
        pieces = self._memory.pieces()
        works = [
            self._booked.all_reduce(piece.pack(), ReduceOp.AVG)
            if averages and is_float(piece.dtype)
            else self._booked.broadcast(piece.pack(), root)
            for piece in pieces
        ]
        for work, piece in zip(works, pieces):
            work.wait()
            piece.unpack()
