"""The schedules that are known: ring, tree, halving and doubling, all pairs, and a hierarchy of them.

Rounds and bytes are those of Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
MPICH" (2005); n is the array, p the ranks:

    ring                2 (p - 1) rounds of n / p
    tree                2 ceil(log2 p) rounds of n
    halving_doubling    2 log2 p rounds, of n / 2, n / 4, ... and back; where p is no power of two, 2 floor(log2 p) and
                        two of n
    all_pairs           2 rounds; in each a rank sends p - 1 times n / p
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from minigrad.arguments import as_integer, check_choice
from minigrad.distributed.algorithms.schedule import WHOLE, Chunk, CollectiveSchedule, Op, Round, Transfer


def ring(world_size: int) -> CollectiveSchedule:
    """Parts go round the ring of ranks: first each is added up on its way, then the sums go round.

    Each rank sends to its right neighbour only, 2 (p - 1) / p of the array in all, which is the least that any
    schedule can (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).

    Example:
        >>> len(ring(4).rounds), ring(4).sent_elements(8)
        (6, [12, 12, 12, 12])
    """
    size = as_integer("ring", "world_size", world_size, 1)
    rounds = []
    for step in range(2 * (size - 1)):
        op = Op.COMBINE if step < size - 1 else Op.REPLACE
        parts = ((rank, (rank - step) % size) for rank in range(size))
        rounds.append(tuple(Transfer(rank, (rank + 1) % size, _part(part, size), op) for rank, part in parts))
    return CollectiveSchedule("ring", size, tuple(rounds))


def tree(world_size: int) -> CollectiveSchedule:
    """Sums go up a binomial tree to rank 0, neighbours first, and the result comes down again.

    The order of the sums is that of `minigrad.distributed.collectives`, so it has their bits.

    Example:
        >>> len(tree(6).rounds), tree(6).is_in_order
        (6, True)
    """
    size = as_integer("tree", "world_size", world_size, 1)
    up = list[Round]()
    distance = 1
    while distance < size:
        starts = range(0, size - distance, 2 * distance)
        up.append(tuple(Transfer(rank + distance, rank, WHOLE, Op.COMBINE) for rank in starts))
        distance *= 2
    return CollectiveSchedule("tree", size, (*up, *(_turned(transfers) for transfers in reversed(up))))


def halving_doubling(world_size: int) -> CollectiveSchedule:
    """Pairs of ranks exchange halves of what they still add up, and then, the other way round, what they have.

    Neighbours first: for a power of two the order of the sums is that of `minigrad.distributed.collectives`. Where the
    number is no power of two, the first ranks are joined in pairs before, and told the result afterwards (Rabenseifner,
    "Optimization of collective reduction operations", 2004).

    Example:
        >>> len(halving_doubling(8).rounds), len(halving_doubling(6).rounds)
        (6, 6)
    """
    size = as_integer("halving_doubling", "world_size", world_size, 1)
    depth = size.bit_length() - 1
    power = 1 << depth
    extra = size - power
    acting = [2 * i for i in range(extra)] + list(range(2 * extra, size))  # the rank of each of a power of two
    joined = tuple(Transfer(2 * i + 1, 2 * i, WHOLE, Op.COMBINE) for i in range(extra))
    halvings = list[Round]()
    ranges = [(0, power)] * power  # that each still adds up, in parts of 1 / power
    for step in range(depth):
        halves = [_halves(ranges[me], bool(me >> step & 1)) for me in range(power)]
        halvings.append(
            tuple(
                Transfer(acting[me], acting[me ^ 1 << step], Chunk(*given, power), Op.COMBINE)
                for me, (_, given) in enumerate(halves)
            )
        )
        ranges = [kept for kept, _ in halves]
    rounds = [joined, *halvings, *(_turned(transfers) for transfers in reversed(halvings)), _turned(joined)]
    return CollectiveSchedule("halving_doubling", size, tuple(transfers for transfers in rounds if transfers))


def all_pairs(world_size: int) -> CollectiveSchedule:
    """Each rank adds up one part, which all others send to it at once, and sends the sum to all.

    Example:
        >>> len(all_pairs(5).rounds), len(all_pairs(5).rounds[0])
        (2, 20)
    """
    size = as_integer("all_pairs", "world_size", world_size, 1)
    others = [(rank, (rank + k) % size) for k in range(1, size) for rank in range(size)]
    there = tuple(Transfer(rank, owner, _part(owner, size), Op.COMBINE) for rank, owner in others)
    back = tuple(Transfer(owner, rank, _part(owner, size), Op.REPLACE) for owner, rank in others)
    return CollectiveSchedule("all_pairs", size, (there, back) if others else ())


FLAT: dict[str, Callable[[int], CollectiveSchedule]] = {
    "ring": ring,
    "tree": tree,
    "halving_doubling": halving_doubling,
    "all_pairs": all_pairs,
}


def hierarchical(world_size: int, ranks_per_node: int, inner: str = "ring", outer: str = "ring") -> CollectiveSchedule:
    """Within each node, then between the first ranks of the nodes, then down a tree into each node.

    Ranks of a node are consecutive; the last node may have fewer.

    Args:
        inner, outer: Within nodes and between them: "ring", "tree", "halving_doubling" or "all_pairs".

    Raises:
        ArgumentError: a number below 1, or another name.

    Example:
        >>> len(hierarchical(8, 4).rounds)  # 2 * 3 within, 2 between, 2 down
        10
    """
    size = as_integer("hierarchical", "world_size", world_size, 1)
    each = as_integer("hierarchical", "ranks_per_node", ranks_per_node, 1)
    check_choice("hierarchical", tuple(FLAT), inner=inner)
    check_choice("hierarchical", tuple(FLAT), outer=outer)
    nodes = [range(start, min(start + each, size)) for start in range(0, size, each)]
    within = _beside([_among(FLAT[inner](len(node)).rounds, node) for node in nodes])
    between = _among(FLAT[outer](len(nodes)).rounds, [node[0] for node in nodes])
    downs = [tree(len(node)).rounds for node in nodes] if len(nodes) > 1 else []
    down = _beside([_among(rounds[len(rounds) // 2 :], node) for rounds, node in zip(downs, nodes)])
    return CollectiveSchedule("hierarchical", size, (*within, *between, *down))


# ---------------------------------------------------------------------------------------------------------- parts


def _part(number: int, of: int) -> Chunk:
    return Chunk(number, number + 1, of)


def _halves(whole: tuple[int, int], upper: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """The half that a rank keeps, and the one that it gives away."""
    first, stop = whole
    middle = (first + stop) // 2
    parts = (first, middle), (middle, stop)
    return (parts[1], parts[0]) if upper else parts


def _turned(transfers: Round) -> Round:
    """The same transfers the other way, where what was combined is given back."""
    return tuple(Transfer(target, source, chunk, Op.REPLACE) for source, target, chunk, _ in transfers)


def _among(rounds: Sequence[Round], ranks: Sequence[int]) -> tuple[Round, ...]:
    """Rounds of ranks 0, 1, ... as those of other ranks."""
    return tuple(
        tuple(transfer._replace(source=ranks[transfer.source], target=ranks[transfer.target]) for transfer in transfers)
        for transfers in rounds
    )


def _beside(schedules: Sequence[Sequence[Round]]) -> Iterator[Round]:
    """Rounds of groups of ranks that have nothing to do with each other, at the same time."""
    for transfers in zip_longest(*schedules, fillvalue=()):
        yield tuple(transfer for each in transfers for transfer in each)
