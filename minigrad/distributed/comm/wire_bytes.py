"""What a call moves over a rank's link, by closed forms. Pure."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from minigrad.arguments import as_integer, check_choice

_LINKS: dict[str, Callable[[int], Fraction]] = {  # how many links carry what a rank hands in, for so many ranks
    "all_reduce": lambda ranks: Fraction(2 * (ranks - 1), ranks),
    **dict.fromkeys(
        ("reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
        lambda ranks: Fraction(ranks - 1, ranks),
    ),
    **dict.fromkeys(("all_gather", "all_gather_object"), lambda ranks: Fraction(ranks - 1)),
    "send": lambda ranks: Fraction(1),
    **dict.fromkeys(("recv", "barrier", "split"), lambda ranks: Fraction(0)),
}


def wire_bytes(kind: str, nbytes: int, world_size: int) -> Fraction:
    """Bytes that a rank sends for a call in which all ranks hand in as many, on average over the ranks; exact.

    Of W ranks, on a ring: an all_reduce of n bytes sends 2(W - 1)/W · n, a reduce_scatter of n (W - 1)/W · n, and an
    all_gather of parts of n, which makes W · n, (W - 1) · n. Where W does not divide the elements some ranks send one
    element a round more and others one less; added up over the ranks, the number is what they send.

    A broadcast or a reduce of n goes over W - 1 links, and so counts (W - 1)/W · n on each rank, whoever is the root; a
    gather of parts of n likewise, W - 1 of which are sent to the root. To scatter n the root sends (W - 1)/W · n, and
    the others, which hand in nothing, nothing; an all_to_all takes as much of each rank. A message counts where it is
    sent; a barrier and a split have no bytes.
    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.

    Args:
        kind: Name of the method of a communicator.
        nbytes: That the rank hands in, >= 0.
        world_size: Ranks that take part, >= 1.

    Raises:
        ArgumentError: another kind, or a number out of its range.

    Example:
        >>> wire_bytes("all_reduce", 8, 4), wire_bytes("all_gather", 2, 4)
        (Fraction(12, 1), Fraction(6, 1))
    """
    check_choice("wire_bytes", tuple(_LINKS), kind=kind)
    ranks = as_integer("wire_bytes", "world_size", world_size, 1)
    return _LINKS[kind](ranks) * as_integer("wire_bytes", "nbytes", nbytes, 0)
