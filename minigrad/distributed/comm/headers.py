"""What ranks compare beside their collectives, where the communicator does not compare each of them: see comm/nccl."""

from __future__ import annotations

import numpy as np

from minigrad.distributed.comm.base import Communicator


def check_headers(comm: Communicator, layout: str = "") -> None:
    """Compare what the ranks have called so far, where the communicator does not do so in each call.

    All ranks call it at the same place, and wait for each other: the reducer does when it has made a plan.

    Args:
        layout: An id that all ranks have to agree on.

    Raises:
        CollectiveMismatchError: the calls, or the layouts, differ.
    """
    compare = getattr(comm, "check_headers", None)
    if compare is not None:
        compare(layout)


def end_pass(comm: Communicator, layout: str, mark: float | None, news: bool) -> list[float] | None:
    """Note the end of a pass where the communicator compares what ranks have called later, and lets none wait.

    Args:
        layout: An id that all ranks have to agree on.
        mark: A number that may differ, but has to be looked into then; None where all ranks know those of all.
        news: Whether something has come up on this rank that may not be alike: it is looked into at once.

    Returns:
        The marks of all ranks where they are to be looked into here, on all ranks; empty where they are not. None
        where the communicator compares each call.
    """
    note = getattr(comm, "end_pass", None)
    marks: list[float] | None = note(layout, mark, news) if note is not None else None
    return marks


def check_same(comm: Communicator, who: str) -> None:
    """Before something is kept of this rank: raise where ranks have parted, even where that was not compared yet.

    A rank calls it when it likes; it waits until the others have come as far as this one.

    Raises:
        CollectiveMismatchError, ReplicaMismatchError: they have parted. CollectiveTimeoutError: one does not come.
    """
    compare = getattr(comm, "check_same", None)
    if compare is not None:
        compare(who)


def announce(comm: Communicator, what: str) -> None:
    """Say to the other ranks what comes next on all of them: one that does something else is told so, in words.

    Raises:
        CollectiveMismatchError: another rank makes another call.
    """
    check_headers(comm, what)
    with comm.device.current() as xp:
        comm.all_reduce(xp.zeros(1, np.float64), layout=what).wait()
