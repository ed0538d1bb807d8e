"""Messages from one rank to another by PyTorch's names, on the communicator of this context; see `process_group`.

Two ranks that both wait in `send` for the other to take what they sent wait for each other, here as there, and are
told so after the timeout: use `isend`, or `batch_isend_irecv`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.arguments import as_sequence
from minigrad.distributed.comm.context import communicator_for, rank_within
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.process_group import PendingWork
from minigrad.errors import ArgumentError


def isend(
    tensor: Any, dst: int | None = None, group: Communicator | None = None, tag: int = 0, group_dst: int | None = None
) -> PendingWork:
    """Let rank dst have the elements of tensor, which is to be left alone until the work is done.

    Args:
        dst: A rank of all ranks, also where `group` has fewer.
        group_dst: In place of dst, a rank of the group.

    Raises:
        ArgumentError: dst is this rank, or none, or not in the group; a tag out of range.

    Example:
        >>> from minigrad.distributed import run
        >>> def body(comm):
        ...     mine, theirs = np.array([comm.rank]), np.empty(1, int)
        ...     work = isend(mine, 1 - comm.rank)
        ...     sender = recv(theirs, 1 - comm.rank)
        ...     work.wait()
        ...     return theirs.tolist(), sender
        >>> run(body, 2)
        [([1], 1), ([0], 0)]
    """
    comm = communicator_for("isend", group)
    return PendingWork(comm.send(tensor, rank_within(f"rank {comm.rank}: isend", comm, "dst", dst, group_dst), tag))


def irecv(
    tensor: Any, src: int | None = None, group: Communicator | None = None, tag: int = 0, group_src: int | None = None
) -> PendingWork:
    """Overwrite tensor by what rank src sends, once the work is done; see `isend`.

    Raises:
        ArgumentError: src is this rank, or none, or not in the group; a tag out of range.
    """
    comm = communicator_for("irecv", group)
    return PendingWork(comm.recv(tensor, rank_within(f"rank {comm.rank}: irecv", comm, "src", src, group_src), tag))


def send(
    tensor: Any, dst: int | None = None, group: Communicator | None = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Return when rank dst has taken the elements of tensor; see `isend`."""
    isend(tensor, dst, group, tag, group_dst).wait()


def recv(
    tensor: Any, src: int | None = None, group: Communicator | None = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Return when tensor is what rank src has sent; see `isend`.

    Returns:
        The rank that sent it, of all ranks.
    """
    comm = communicator_for("recv", group)
    rank = rank_within(f"rank {comm.rank}: recv", comm, "src", src, group_src)
    comm.recv(tensor, rank, tag).wait()
    return comm.global_ranks[rank]


class P2POp:
    """A message to be sent or taken by `batch_isend_irecv`.

    Args:
        op: `isend` or `irecv`.
        tensor: What is sent, or overwritten.
        peer: The other rank, of all ranks, also where `group` has fewer.
        group_peer: In place of that, a rank of the group.

    Raises:
        ArgumentError: another op, no tensor, or neither peer nor group_peer.
    """

    def __init__(
        self,
        op: Callable[..., PendingWork],
        tensor: Any,
        peer: int | None = None,
        group: Communicator | None = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op is not isend and op is not irecv:
            raise ArgumentError(f"P2POp: expected op to be isend or irecv, got {op!r:.100}")
        if (peer is None) == (group_peer is None):
            raise ArgumentError(f"P2POp: expected either peer or group_peer, got {peer!r} and {group_peer!r}")
        if not hasattr(tensor, "dtype") or not hasattr(tensor, "shape"):
            raise ArgumentError(f"P2POp: expected a tensor or an array, got {tensor!r:.100}")
        self.op, self.tensor, self.group, self.tag = op, tensor, group, tag
        self.peer, self.group_peer = peer, group_peer


def batch_isend_irecv(p2p_op_list: Sequence[P2POp]) -> list[PendingWork]:
    """Start messages in the order of the list; none of them waits for another.

    Returns:
        The work of each.

    Raises:
        ArgumentError: something else than a list of P2POps, or an empty one.
    """
    as_sequence("batch_isend_irecv", "p2p_op_list", p2p_op_list)
    if not p2p_op_list or not all(isinstance(each, P2POp) for each in p2p_op_list):
        raise ArgumentError(f"batch_isend_irecv: expected a list of P2POps, got {p2p_op_list!r:.100}")
    return [each.op(each.tensor, each.peer, each.group, each.tag, each.group_peer) for each in p2p_op_list]
