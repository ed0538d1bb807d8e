"""Part of the ranks of a communicator, with a communicator of their own: who is in which group, and how one begins.

What fails a communicator fails the groups that were split off it, at once, and to close it closes them: a group lasts
as long as its parent. It is not so the other way round: a mismatch, a rank that is late or gone, an abort or a close
in a group ends that group, and its parent goes on. Where a process has died, the parent notices for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.arguments import as_integer
from minigrad.distributed.comm.checks import decode_object, encode_object
from minigrad.distributed.comm.failure import Failure
from minigrad.distributed.comm.protocol import Communicator
from minigrad.errors import ArgumentError, DistributedError

Exchange = Callable[[bytes], list[bytes]]
WHAT = "split", ""  # the call, in words
_NAMED = 8  # ranks, in the name of a group
_BUSY, _READY = b"b", b"r"


@dataclass(frozen=True)
class Group:
    """Some of the ranks of a communicator.

    Attributes:
        ranks: Of the communicator that is split, in order of their rank in the group.
        rank: This rank's in the group.
        global_ranks: The same ranks, as the communicator knows them that no other was split into.
    """

    ranks: tuple[int, ...]
    rank: int
    global_ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        """It in words, by global ranks.

        Example:
            >>> Group((1, 0), 0, (3, 2)).name
            'group [3, 2]'
        """
        first = ", ".join(map(str, self.global_ranks[:_NAMED]))
        more = len(self.global_ranks) - _NAMED
        return f"group [{first}, and {more} more]" if more > 0 else f"group [{first}]"


def group_of(rank: int, asked: Sequence[tuple[int | None, int]], global_ranks: Sequence[int]) -> Group | None:
    """The group of a rank: all of its color, in order of key, and those of one key in order of rank.

    Args:
        asked: Color and key of each rank; color None is in no group.
        global_ranks: Of each rank.

    Example:
        >>> group_of(0, [(7, 1), (None, 0), (7, 0)], [4, 5, 6])
        Group(ranks=(2, 0), rank=1, global_ranks=(6, 4))
    """
    color = asked[rank][0]
    if color is None:
        return None
    ranks = sorted((r for r, (other, _) in enumerate(asked) if other == color), key=lambda r: (asked[r][1], r))
    return Group(tuple(ranks), ranks.index(rank), tuple(global_ranks[r] for r in ranks))


def _asked(color: int | None, key: int) -> tuple[int | None, int]:
    """Color and key as they are.

    Raises:
        ArgumentError: no integer >= 0, or none; no integer.
    """
    key = as_integer("split", "key", key)
    return (None if color is None else as_integer("split", "color, where it is not None,", color, 0)), key


class Turns:
    """Small bytes among the ranks of each group, in calls that all ranks of the communicator make.

    Args:
        gather: Brings the bytes of all ranks together.
        group: This rank's.
    """

    def __init__(self, gather: Exchange, group: Group | None) -> None:
        self._gather, self._group = gather, group

    def exchange(self, data: bytes) -> list[bytes]:
        """The data of the ranks of this group, in order of rank; blocks.

        Raises:
            DistributedError: one of them could not go on.
        """
        assert self._group is not None
        came = self._gather(_BUSY + data)
        for rank in self._group.ranks:
            if came[rank][:1] == _READY:
                raise DistributedError(came[rank][1:].decode() or f"rank {rank} has not exchanged what the others have")
        return [came[rank][1:] for rank in self._group.ranks]

    def finish(self, problem: str) -> dict[int, str]:
        """Return when no rank exchanges anything any more: the problems of those that had one."""
        while True:
            came = self._gather(_READY + problem.encode())
            if all(data[:1] == _READY for data in came):
                return {rank: data[1:].decode() for rank, data in enumerate(came) if data[1:]}


class Groups(Communicator):
    """What a `Front` has of groups.

    Attributes:
        group: This communicator's name in errors, where it is one of a group; else empty.
        groups: The communicators of groups that were split off this one, and are open.
        parent: What this one was split off, while it is open.
        failure: See `Front`.
    """

    group: str = ""
    groups: tuple[Groups, ...] = ()
    parent: Any = None
    failure: Failure
    _closed: bool
    _ranks: tuple[int, ...] = ()

    @property
    def global_ranks(self) -> tuple[int, ...]:
        """Its ranks, as the communicator knows them that no other was split into."""
        return self._ranks or tuple(range(self.world_size))

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """The communicator of the ranks of one color, in order of key."""
        self._check("split")
        try:
            told: list[Any] = [*_asked(color, key), ""]
        except ArgumentError as error:
            told = [None, 0, str(error)]
        came = [decode_object(part) for part in self._gather_bytes(WHAT, encode_object("split", self.rank, told))]
        for rank, (_, _, problem) in enumerate(came):
            if problem:
                raise ArgumentError(f"rank {self.rank}: {problem} on rank {rank}")
        group = group_of(self.rank, [(other, at) for other, at, _ in came], self.global_ranks)
        return self._begin(group)

    def _begin(self, group: Group | None) -> Communicator | None:
        """Make the communicator of a group, while all ranks make theirs; where one can't, none has any."""
        turns = Turns(lambda data: self._gather_bytes(WHAT, data), group)
        made, problem = None, ""
        try:
            made = self._split(group, turns.exchange)
        except Exception as error:
            self.failure.raise_on(self.rank)
            problem = str(error) or repr(error)
        if made is not None and group is not None:
            made.group, made._ranks, made.timeout_s = group.name, group.global_ranks, self.timeout_s
            made.parent, self.groups = self, (*self.groups, made)
            self.failure.passes_to(made.failure, group.name)
        problems = turns.finish(problem)
        if problems:
            if made is not None:
                made.close()
            rank, problem = next(iter(problems.items()))
            raise DistributedError(
                f"rank {self.rank}: split: expected all groups to begin, got on rank {rank}: {problem}"
            )
        return made

    def _close_groups(self) -> None:
        """Close all groups, and part from the parent: what is closed holds no memory, and is not held."""
        for group in self.groups:
            group.close()
        self.groups = ()
        if self.parent is not None:
            self.parent.groups = tuple(group for group in self.parent.groups if group is not self)
            self.parent = None

    # ------------------------------------------------------------------------------- what a transport implements

    def _split(self, group: Group | None, exchange: Exchange) -> Groups | None:
        """Make the communicator of a group; all ranks call it, those that are in none with None.

        Args:
            exchange: All-gathers small bytes over the ranks of the group.
        """
        raise DistributedError(f"expected a transport that can be split, got {type(self).__name__}: it lacks _split")

    # ------------------------------------------------------------------------------------- what the front has of it

    def _check(self, who: str, /) -> Any:
        """See `Front`."""
        raise NotImplementedError

    def _gather_bytes(self, what: tuple[str, str], data: bytes) -> list[bytes]:
        """See `Front`."""
        raise NotImplementedError
