"""Which rank owns what has to stay whole, such as a matrix that is made orthogonal, and what lies beside it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minigrad.arguments import as_integer, as_list
from minigrad.distributed.balance.shares import check_caps
from minigrad.distributed.sharded.runs import Ownership, Run, own_evenly
from minigrad.errors import ArgumentError


class Extent(NamedTuple):
    """The elements of one parameter in a bucket, padding behind it included.

    Attributes:
        elements: How many.
        is_whole: Whether one rank has to own them all.
    """

    elements: int
    is_whole: bool


def owners_of(sizes: Sequence[int], world_size: int, caps: Sequence[int | None] | None = None) -> tuple[int, ...]:
    """The rank that owns each of some arrays whole, such that all own about as many elements.

    The largest goes first, each to the rank that owns least so far: no rank then has more than the mean and the largest
    together, and the most is at most 4/3 - 1/(3·W) of the least possible most. Equal arrays go in their order, and to
    the lower of ranks that own as much. Ranks that an array would bring above their cap are left out.
    Source: Graham, "Bounds on multiprocessing timing anomalies", 1969.

    Args:
        sizes: Elements of each array, >= 0.
        world_size: Ranks, >= 1.
        caps: The most elements that each rank can own, None for no limit.

    Returns:
        One rank for each array, in their order.

    Raises:
        ArgumentError: an argument out of its range, or an array for which no rank had room when its turn came; another
            assignment, less even, may have some.

    Example:
        >>> owners_of([3, 9, 4, 2], 2)
        (1, 0, 1, 1)
        >>> owners_of([3, 9, 4, 2], 2, caps=[None, 8])
        (1, 0, 1, 0)
    """
    counts = [as_integer("owners_of", "each size", size, 0) for size in as_list("owners_of", "sizes", sizes)]
    ranks = range(as_integer("owners_of", "world_size", world_size, 1))
    room = check_caps("owners_of", caps, len(ranks), sum(counts))
    owned, owners = [0] * len(ranks), [0] * len(counts)
    for index in sorted(range(len(counts)), key=lambda i: (-counts[i], i)):
        size = counts[index]
        free = [rank for rank in ranks if owned[rank] + size <= room[rank]]
        if not free:
            left = [most - has for most, has in zip(room, owned)]
            raise ArgumentError(
                f"owners_of: expected caps with room for an array of {size} elements on one rank, got {left} left of "
                f"{room}: raise a cap, or use more ranks"
            )
        owners[index] = min(free, key=lambda rank: owned[rank])
        owned[owners[index]] += size
    return tuple(owners)


def own_whole(
    buckets: Sequence[Sequence[Extent]], world_size: int, caps: Sequence[int | None] | None = None
) -> Ownership:
    """What has to stay whole goes to one rank each, by `owners_of` over all buckets; the rest is cut where it is large.

    A bucket of which nothing has to stay whole is cut evenly, as by `own_evenly`. In the others, what need not stay
    whole and is larger than all that has to is cut evenly too, and the rest is given away like what has to.

    Args:
        buckets: Of each the parameters, in the order of the layout.
        world_size: Ranks, >= 1.
        caps: The most elements that each rank may own in all; None for no limit.

    Raises:
        ArgumentError: an argument out of its range, or no room.

    Example:
        >>> own_whole([[Extent(4, True), Extent(2, False), Extent(3, True)]], 2).runs
        ((((0, 4),), ((4, 6), (6, 9))),)
    """
    ranks = range(as_integer("own_whole", "world_size", world_size, 1))
    largest = max((one.elements for extents in buckets for one in extents if one.is_whole), default=0)
    given: list[tuple[int, Run]] = []  # the bucket, and where in it
    owned: list[list[list[Run]]] = [[[] for _ in ranks] for _ in buckets]
    for bucket, extents in enumerate(buckets):
        kept = [one for one in extents if one.elements]
        start, is_mixed = 0, any(one.is_whole for one in kept)
        for length, is_whole in kept if is_mixed else [Extent(sum(one.elements for one in kept), False)]:
            if is_whole or (is_mixed and length <= largest):
                given.append((bucket, (start, start + length)))
            else:
                for runs, own in zip(owned[bucket], own_evenly([length], world_size).runs[0]):
                    runs += [(start + first, start + last) for first, last in own]
            start += length
    sizes = tuple(sum(one.elements for one in extents) for extents in buckets)
    room = check_caps("own_whole", caps, world_size, sum(sizes))
    cut = [sum(stop - start for of_ranks in owned for start, stop in of_ranks[rank]) for rank in ranks]
    if any(has > most for has, most in zip(cut, room)):
        raise ArgumentError(f"own_whole: expected caps with room for what is cut evenly, {cut} elements, got {room}")
    lengths = [stop - start for _, (start, stop) in given]
    owners = owners_of(lengths, world_size, [most - has for has, most in zip(cut, room)])
    for (bucket, run), owner in zip(given, owners):
        owned[bucket][owner].append(run)
    return Ownership(sizes, tuple(tuple(tuple(sorted(runs)) for runs in of_ranks) for of_ranks in owned))
