"""PyTorch's names for groups of ranks: one is a communicator that `split` gives; see `process_group`.

`src` and `dst` of the functions of PyTorch's names are global ranks, also where `group=` is given, as PyTorch has it;
the methods of a communicator count its own ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from minigrad.arguments import as_integer, as_sequence, check_switch
from minigrad.backend.device import Device
from minigrad.distributed.comm.context import NON_MEMBER, NonMember, communicator_for, rank_within
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.process_group import get_backend
from minigrad.errors import ArgumentError

GroupMember = SimpleNamespace(WORLD=None, NON_GROUP_MEMBER=NON_MEMBER)  # what a rank gets that is in no group


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: None = None,
    use_local_synchronization: bool = False,
    group_desc: None = None,
    device_id: Device | str | None = None,
    sort_ranks: bool = True,
) -> Communicator | NonMember:
    """The communicator of some ranks, for `group=`; all ranks call it, also those that are not in it.

    Args:
        ranks: Which; None for all.
        timeout, backend, device_id: None, or those of all ranks.
        sort_ranks: Whether the lowest is the group's rank 0, or the first in `ranks`.

    Returns:
        On a rank that is not in it, GroupMember.NON_GROUP_MEMBER: `get_rank` of that is -1, collectives refuse it.

    Raises:
        ArgumentError: no ranks, or an argument that asks for what is not there. ReplicaMismatchError: ranks differ in
            what they give; on all of them.

    Example:
        >>> from minigrad.distributed import get_rank, init, run
        >>> def body(comm):
        ...     init()
        ...     return get_rank(new_group([1, 2]))
        >>> run(body, 3)
        [-1, 0, 1]
    """
    who = "new_group"
    comm = communicator_for(who, None)
    named = list(ranks) if isinstance(ranks, Sequence) else ranks
    given = {"ranks": named, "backend": backend, "sort_ranks": sort_ranks, "timeout": timeout}
    gather_alike(who, "arguments", comm, given)
    known: dict[str, tuple[Any, ...]] = {
        "timeout": (None, timedelta(seconds=comm.timeout_s)),
        "backend": (None, get_backend(comm), *(["gloo"] if comm.device.type == "cpu" else [])),
        "device_id": (None, comm.device, str(comm.device)),
        "pg_options": (None,),
        "group_desc": (None,),
        "use_local_synchronization": (False,),
    }
    asked: dict[str, Any] = {
        "timeout": timeout,
        "backend": backend,
        "device_id": device_id,
        "pg_options": pg_options,
        "group_desc": group_desc,
        "use_local_synchronization": use_local_synchronization,
    }
    for name, value in asked.items():
        if value not in known[name]:
            raise ArgumentError(f"{who}: expected {name} to be {known[name][-1]}, got {value!r:.100}: leave it out")
    check_switch(who, sort_ranks=sort_ranks)
    members = list(comm.global_ranks) if ranks is None else _members(who, comm, ranks)
    members = sorted(members) if sort_ranks else members
    here = comm.global_ranks[comm.rank]
    group = comm.split(0, members.index(here)) if here in members else comm.split(None)
    return NON_MEMBER if group is None else group


def _members(who: str, comm: Communicator, ranks: Sequence[int]) -> list[int]:
    """Global ranks, each once."""
    listed = as_sequence(who, "ranks", list(ranks) if isinstance(ranks, range) else ranks)
    members = [as_integer(who, "each of ranks", rank) for rank in listed]
    strangers = [rank for rank in members if rank not in comm.global_ranks]
    if strangers or not members or len(set(members)) < len(members):
        raise ArgumentError(f"{who}: expected each of ranks to be one of {comm.world_size}, once, got {members}")
    return members


def get_group_rank(group: Communicator | None, global_rank: int) -> int:
    """The rank in a group that a global rank has.

    Raises:
        ArgumentError: it is not in the group.
    """
    return rank_within("get_group_rank", communicator_for("get_group_rank", group), "global_rank", global_rank)


def get_global_rank(group: Communicator | None, group_rank: int) -> int:
    """The global rank of a rank of a group.

    Raises:
        ArgumentError: the group has no such rank.
    """
    comm = communicator_for("get_global_rank", group)
    return comm.global_ranks[as_integer("get_global_rank", "group_rank", group_rank, 0, comm.world_size)]


def get_process_group_ranks(group: Communicator | None = None) -> list[int]:
    """The global ranks of a group, in order of their rank in it."""
    return list(communicator_for("get_process_group_ranks", group).global_ranks)
