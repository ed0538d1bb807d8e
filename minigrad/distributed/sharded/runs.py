"""Which elements of each bucket a rank owns, as a value. Pure.

A bucket that is cut evenly travels by one collective, which gives every rank equally many elements: W parts of ⌈n/W⌉ of
them, with padding behind the last. Of any other each run travels by itself; see `rooted_runs.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minigrad.arguments import as_integer, check_shares
from minigrad.distributed.balance.shares import check_caps, compute_shard_sizes
from minigrad.errors import ArgumentError

Run = tuple[int, int]  # the elements [start, stop) of a bucket


@dataclass(frozen=True)
class Ownership:
    """Which elements of each bucket a rank owns.

    Attributes:
        sizes: The elements of each bucket.
        runs: For each bucket and each rank the runs that are its own, in ascending order; none of them is empty.

    Raises:
        ArgumentError: an element of a bucket is owned by nobody, or twice, or two buckets have other ranks.

    Example:
        >>> owned = Ownership((5,), ((((0, 3),), ((3, 5),)),))
        >>> owned.width(0), owned.wire_elements(0), owned.elements(1)
        (3, 6, 2)
    """

    sizes: tuple[int, ...]
    runs: tuple[tuple[tuple[Run, ...], ...], ...]

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.runs) or len(set(map(len, self.runs))) > 1:
            raise ArgumentError(f"Ownership: expected the runs of every rank for {len(self.sizes)} buckets, got others")
        for bucket, (size, of_ranks) in enumerate(zip(self.sizes, self.runs)):
            reached = 0
            for start, stop in sorted(run for runs in of_ranks for run in runs):
                if start != reached or stop <= start:
                    raise ArgumentError(
                        f"Ownership: expected each element of bucket {bucket} to have one owner, got [{start}, {stop}) "
                        f"after {reached} of them"
                    )
                reached = stop
            if reached != size or any(list(runs) != sorted(runs) for runs in of_ranks):
                raise ArgumentError(
                    f"Ownership: expected ascending runs that cover the {size} elements of bucket {bucket}, got "
                    f"{of_ranks!r:.200}"
                )

    @property
    def world_size(self) -> int:
        """How many ranks there are; 0 without buckets."""
        return len(self.runs[0]) if self.runs else 0

    def elements(self, rank: int) -> int:
        """How many a rank owns."""
        return sum(stop - start for of_ranks in self.runs for start, stop in of_ranks[rank])

    def is_rooted(self, bucket: int) -> bool:
        """Whether each run travels by itself, as a bucket is cut otherwise than evenly."""
        return self.runs[bucket] != own_evenly([self.sizes[bucket]], self.world_size).runs[0]

    def width(self, bucket: int) -> int:
        """⌈n/W⌉: the elements of a rank's part of a bucket that is cut evenly."""
        return -(-self.sizes[bucket] // self.world_size)

    def wire_elements(self, bucket: int) -> int:
        """What a bucket is as it travels, padding included."""
        return self.sizes[bucket] if self.is_rooted(bucket) else self.width(bucket) * self.world_size


def own_evenly(sizes: Sequence[int], world_size: int) -> Ownership:
    """One run a rank of each bucket, of ⌈n/W⌉ elements, the last ones shorter or empty: at most W - 1 are padding.

    Args:
        sizes: n, the elements of each bucket, >= 0.
        world_size: W, >= 1.

    Raises:
        ArgumentError: an argument out of its range.

    Example:
        >>> own_evenly([5], 4).runs
        ((((0, 2),), ((2, 4),), ((4, 5),), ()),)
    """
    world = as_integer("own_evenly", "world_size", world_size, 1)
    ends = []
    for size in sizes:
        width = -(-as_integer("own_evenly", "each size", size, 0) // world)
        ends.append([min(rank * width, size) for rank in range(1, world + 1)])
    return _of_ends(sizes, ends)


def own_by_shares(
    sizes: Sequence[int], shares: Sequence[float], caps: Sequence[int | None] | None = None
) -> Ownership:
    """One run a rank of each bucket, in proportion to shares: for ranks with unequal memory.

    Args:
        sizes: The elements of each bucket, >= 0.
        shares: Of each rank, >= 0, of sum 1.
        caps: The most elements that a rank may own in all; None for no limit. What is over goes to the others.

    Raises:
        ArgumentError: an argument out of its range, or caps that leave no room.

    Example:
        >>> own_by_shares([8, 7], [0.5, 0.5], caps=[10, 5]).runs
        ((((0, 4),), ((4, 8),)), (((0, 6),), ((6, 7),)))
    """
    who = "own_by_shares"
    check_shares(who, shares)
    total = sum(as_integer(who, "each size", size, 0) for size in sizes)
    left = check_caps(who, caps, len(shares), total)
    if sum(left) < total:
        raise ArgumentError(f"{who}: expected caps of {len(shares)} ranks for {total} elements, got {caps!r}")
    ends = []
    for size in sizes:
        counts = compute_shard_sizes(size, shares, caps=left)
        left = [cap - count for cap, count in zip(left, counts)]
        ends.append([sum(counts[: rank + 1]) for rank in range(len(counts))])
    return _of_ends(sizes, ends)


def _of_ends(sizes: Sequence[int], ends: Sequence[Sequence[int]]) -> Ownership:
    """One run a rank, by where each of them ends."""
    runs = [
        tuple(((start, stop),) if start < stop else () for start, stop in zip([0, *of_ranks], of_ranks))
        for of_ranks in ends
    ]
    return Ownership(tuple(sizes), tuple(runs))
