"""The communicator of this context: the thread's inside `run`, or what `init` made; where there are two, the last."""

from __future__ import annotations

from minigrad.backend.ranks import ranks_here
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.errors import ArgumentError


def communicator_for(who: str, given: Communicator | None) -> Communicator:
    """The communicator that was given, else this context's.

    Raises:
        ArgumentError: this context has none, or something else was given.
    """
    comm: Communicator | None = ranks_here() if given is None else given
    if comm is None:
        raise ArgumentError(
            f"{who}: expected a communicator in this context, got none: call distributed.init() first, in this thread, "
            "start the ranks with distributed.run(fn, world_size), or give one"
        )
    check_is_communicator(who, comm)
    return comm
