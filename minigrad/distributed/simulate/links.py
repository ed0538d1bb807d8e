"""What a collective, or a message, costs on a network, by the alpha-beta model. Pure.

A message of m bytes takes alpha + beta·m seconds (Hockney, 1994). The costs of the collectives are those of Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005), with p ranks:

    "ring": parts of the array are passed on, one n/p at a time: (p - 1)(alpha + beta·n/p), and an all_reduce twice
        that. To gather and to scatter the root takes, or sends, one part after the other; all_to_all goes in pairs.
    "tree": the distance doubles with each message. An all_reduce is a reduction and a broadcast of the whole; to gather
        and to scatter doubles and halves what is sent, ceil(log2 p)·alpha + beta·n·(p - 1)/p; all_to_all is Bruck's:
        message k carries each part whose way has bit k set.
    broadcast, reduce and barrier go along a tree in either case: ceil(log2 p)(alpha + beta·n).
    "hierarchical": each within the nodes and between them; what comes from between goes back into the nodes. A gather
        between nodes has what was gathered in each; an all_to_all gathers in each node, goes between, and scatters.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minigrad.arguments import as_amount, as_integer, as_real, check_choice, keep_as
from minigrad.distributed.comm.wrappers import COLLECTIVES
from minigrad.errors import ArgumentError

Topology = Literal["ring", "tree", "hierarchical"]


@dataclass(frozen=True)
class Link:
    """The network between ranks.

    Attributes:
        latency_s: alpha, seconds for a message of no bytes, >= 0.
        bandwidth_bytes_s: 1 / beta, bytes in a second, > 0; infinity is allowed.
        topology: How collectives go.
        ranks_per_node: For "hierarchical": ranks that share a node; their link is `inner`.
        inner: The link within a node; latency and bandwidth above are then those between nodes.
    """

    latency_s: float = 0.0
    bandwidth_bytes_s: float = math.inf
    topology: Topology = "ring"
    ranks_per_node: int = 1
    inner: Link | None = None

    def __post_init__(self) -> None:
        keep_as(self, as_amount, "latency_s")
        keep_as(self, as_real, "bandwidth_bytes_s", above=0.0)
        keep_as(self, as_integer, "ranks_per_node", least=1)
        check_choice("Link", ("ring", "tree", "hierarchical"), topology=self.topology)
        if self.topology == "hierarchical":
            if not isinstance(self.inner, Link):
                raise ArgumentError(f"Link: expected an inner link for 'hierarchical', got {self.inner!r}")
        elif self.inner is not None or self.ranks_per_node != 1:
            raise ArgumentError(f"Link: expected inner, ranks_per_node for 'hierarchical' only, got {self.topology!r}")

    def cost_s(self, kind: str, nbytes: float, world_size: int, ranks: Sequence[int] = ()) -> float:
        """Seconds that a collective takes once all ranks have called it.

        Args:
            kind: "all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_gather_object", "barrier", "reduce",
                "gather", "scatter" or "all_to_all".
            nbytes: Bytes of the whole array: of the gathered one, the one to scatter; of what one rank hands in to an
                all_to_all.
            world_size: Ranks that take part, >= 1.
            ranks: Which they are, where they are a group of more: of a hierarchy, rank // ranks_per_node is its node,
                and of nodes with different numbers of them that with the most counts.

        Raises:
            ArgumentError: another kind, or an argument out of its range.
        """
        check_choice("Link.cost_s", COLLECTIVES, kind=kind)
        as_amount("Link.cost_s", "nbytes", nbytes)
        if as_integer("Link.cost_s", "world_size", world_size, 1) == 1:
            return 0.0
        if self.topology == "hierarchical":
            return self._hierarchical_s(kind, nbytes, *self._nodes(world_size, ranks))
        hops, others = math.ceil(math.log2(world_size)), world_size - 1
        passes = 2 if kind == "all_reduce" else 1
        if kind in ("broadcast", "reduce", "barrier") or (kind, self.topology) == ("all_reduce", "tree"):
            return passes * hops * self._flat_s(nbytes)
        if (kind, self.topology) == ("all_to_all", "tree"):
            return sum(self._flat_s(nbytes / world_size * _with_bit(k, world_size)) for k in range(hops))
        if self.topology == "tree":
            return hops * self.latency_s + others / world_size * nbytes / self.bandwidth_bytes_s
        return passes * others * self._flat_s(nbytes / world_size)

    def message_s(self, nbytes: float, src: int = 0, dst: int = 1) -> float:
        """Seconds from when a message was sent to when it is there: alpha + beta·nbytes.

        Args:
            src, dst: The ranks at its ends: within a node of a hierarchy it goes over the inner link.

        Raises:
            ArgumentError: an argument out of its range.
        """
        as_amount("Link.message_s", "nbytes", nbytes)
        as_integer("Link.message_s", "src", src, 0)
        as_integer("Link.message_s", "dst", dst, 0)
        if self.inner is not None and src // self.ranks_per_node == dst // self.ranks_per_node:
            return self.inner.message_s(nbytes, src % self.ranks_per_node, dst % self.ranks_per_node)
        return self._flat_s(nbytes)

    def _flat_s(self, nbytes: float) -> float:
        return self.latency_s + nbytes / self.bandwidth_bytes_s

    def _nodes(self, world_size: int, ranks: Sequence[int]) -> tuple[int, int]:
        """How many ranks a node has, and how many nodes there are."""
        if ranks:
            found = Counter(rank // self.ranks_per_node for rank in ranks)
            return max(found.values()), len(found)
        here = min(self.ranks_per_node, world_size)
        return here, math.ceil(world_size / here)

    def _hierarchical_s(self, kind: str, nbytes: float, here: int, nodes: int) -> float:
        inner, between = self.inner, Link(self.latency_s, self.bandwidth_bytes_s)
        assert inner is not None
        if kind == "all_to_all" and nodes > 1:
            ways_s = inner.cost_s("gather", here * nbytes, here) + inner.cost_s("scatter", here * nbytes, here)
            return ways_s + between.cost_s(kind, here * nbytes, nodes)
        part = nbytes / nodes if kind in ("gather", "scatter") else nbytes
        back_s = inner.cost_s("broadcast", nbytes, here) if kind in ("all_reduce", "barrier") else 0.0
        return inner.cost_s(kind, part, here) + between.cost_s(kind, nbytes, nodes) + back_s


def _with_bit(k: int, world_size: int) -> int:
    """How many of the ways from 0 to world_size - 1 have bit k set."""
    return sum(way >> k & 1 for way in range(world_size))
