"""What a collective costs on a network, by the alpha-beta model. Pure.

A message of m bytes takes alpha + beta·m seconds (Hockney, 1994). The costs of the collectives are those of Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005). A ring passes parts of
the array on. A tree doubles the distance with each message: an all-reduce is a reduction and a broadcast of the whole,
gathering and scattering double and halve what is sent. Broadcasts and barriers go along a tree in either case. A
hierarchy does each within the nodes and between them; what comes from between goes back into the nodes.
"""

from __future__ import annotations

import math
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

    def cost_s(self, kind: str, nbytes: int, world_size: int) -> float:
        """Seconds that a collective takes once all ranks have called it.

        Args:
            kind: "all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_gather_object" or "barrier".
            nbytes: Bytes of the whole array: of the gathered one, the one to scatter.
            world_size: Ranks that take part, >= 1.

        Raises:
            ArgumentError: another kind, or an argument out of its range.
        """
        check_choice("Link.cost_s", COLLECTIVES, kind=kind)
        as_amount("Link.cost_s", "nbytes", nbytes)
        if as_integer("Link.cost_s", "world_size", world_size, 1) == 1:
            return 0.0
        if self.topology == "hierarchical":
            return self._hierarchical_s(kind, nbytes, world_size)
        hops, others = math.ceil(math.log2(world_size)), world_size - 1
        passes = 2 if kind == "all_reduce" else 1
        if kind in ("broadcast", "barrier") or (kind, self.topology) == ("all_reduce", "tree"):
            return passes * hops * self._message_s(nbytes)
        if self.topology == "tree":
            return hops * self.latency_s + others / world_size * nbytes / self.bandwidth_bytes_s
        return passes * others * self._message_s(nbytes / world_size)

    def _message_s(self, nbytes: float) -> float:
        return self.latency_s + nbytes / self.bandwidth_bytes_s

    def _hierarchical_s(self, kind: str, nbytes: int, world_size: int) -> float:
        assert self.inner is not None
        here = min(self.ranks_per_node, world_size)
        nodes = math.ceil(world_size / here)
        between = Link(self.latency_s, self.bandwidth_bytes_s).cost_s(kind, nbytes, nodes)
        back = self.inner.cost_s("broadcast", nbytes, here) if kind in ("all_reduce", "barrier") else 0.0
        return self.inner.cost_s(kind, nbytes, here) + between + back
