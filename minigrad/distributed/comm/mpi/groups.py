"""Groups of MPI ranks: MPI splits its communicator, in the threads in which all ranks make their calls."""

from __future__ import annotations

from typing import Any

from minigrad.distributed.comm.groups import WHAT, Exchange, Group, Groups


class MpiGroups(Groups):
    """What a `MpiCommunicator` has of groups.

    Attributes:
        inner: MPI's own communicator.
    """

    inner: Any

    def _split(self, group: Group | None, exchange: Exchange) -> Any:
        comm: Any = self
        color, key = (comm.mpi.UNDEFINED, 0) if group is None else (group.ranks[0], group.rank)
        parts: list[Any] = []
        comm._post(WHAT, None, lambda: parts.append(self.inner.Split(color, key))).wait()
        if group is None:
            return None
        made = type(comm)(parts[0], timeout_s=self.timeout_s, clock=self.clock)  # which has a duplicate of it
        parts[0].Free()
        return made
