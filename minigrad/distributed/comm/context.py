"""The communicator of this context: the thread's inside `run`, or what `init` made; where there are two, the last."""

from __future__ import annotations

from typing import Union

from minigrad.arguments import as_integer
from minigrad.backend.ranks import ranks_here
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.errors import ArgumentError


class NonMember:
    """What a rank has in place of the communicator of a group that it is not in; there is one."""

    def __repr__(self) -> str:
        return "GroupMember.NON_GROUP_MEMBER"


NON_MEMBER = NonMember()
MaybeGroup = Union[Communicator, NonMember, None]  # a group as functions of PyTorch's names take it


def communicator_for(who: str, given: MaybeGroup) -> Communicator:
    """The communicator that was given, else this context's.

    Raises:
        ArgumentError: this context has none, or something else was given.
    """
    comm: MaybeGroup = ranks_here() if given is None else given
    if comm is None:
        raise ArgumentError(
            f"{who}: expected a communicator in this context, got none: call distributed.init() first, in this thread, "
            "start the ranks with distributed.run(fn, world_size), or give one"
        )
    if isinstance(comm, NonMember):
        raise ArgumentError(
            f"{who}: expected a group that this rank is in, got {comm!r}: call it on its ranks alone, where "
            "get_rank(group) >= 0"
        )
    check_is_communicator(who, comm)
    return comm


def rank_within(
    who: str,
    comm: Communicator,
    name: str,
    global_rank: int | None,
    group_rank: int | None = None,
    default: int | None = None,
) -> int:
    """The rank in a communicator that a global rank has, by which PyTorch names src and dst.

    Args:
        name: Of the argument.
        group_rank: In place of global_rank, the rank in the communicator itself.
        default: The global rank where neither is given; None where one has to be.

    Raises:
        ArgumentError: it has none; or both are given, or neither.
    """
    if global_rank is None and group_rank is None:
        global_rank = default
    if (global_rank is None) == (group_rank is None):
        raise ArgumentError(f"{who}: expected either {name} or group_{name}, got {global_rank!r} and {group_rank!r}")
    if global_rank is None:
        return as_integer(who, f"group_{name}", group_rank, 0, comm.world_size)
    rank = as_integer(who, name, global_rank)
    if rank not in comm.global_ranks:
        raise ArgumentError(
            f"{who}: expected {name} to be one of the global ranks {list(comm.global_ranks)}, got {rank}"
        )
    return comm.global_ranks.index(rank)
