"""What a collective costs on a network, by the alpha-beta model. Pure.

A message of m bytes takes alpha + beta·m seconds (Hockney, 1994). The costs of the collectives are those of Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005), for a ring and for a
binary tree; the hierarchical all-reduce is a ring within each node, a ring over the nodes, and a broadcast back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
        if not (self.latency_s >= 0.0 and math.isfinite(self.latency_s)):
            raise ArgumentError(f"Link: expected a latency >= 0 s, got {self.latency_s!r}")
        if not self.bandwidth_bytes_s > 0.0:
            raise ArgumentError(f"Link: expected a bandwidth > 0 bytes/s, got {self.bandwidth_bytes_s!r}")
        if self.topology not in ("ring", "tree", "hierarchical"):
            raise ArgumentError(f"Link: expected topology 'ring', 'tree' or 'hierarchical', got {self.topology!r}")
        if self.topology == "hierarchical" and (self.inner is None or self.ranks_per_node < 1):
            raise ArgumentError("Link: expected an inner link and ranks_per_node >= 1 for 'hierarchical', got none")

    def cost_s(self, kind: str, nbytes: int, world_size: int) -> float:
        """Seconds that a collective takes once all ranks have called it.

        Args:
            kind: "all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_gather_object" or "barrier".
            nbytes: Bytes of the whole array: of the gathered one, the one to scatter.
            world_size: Ranks that take part.
        """
        if world_size == 1:
            return 0.0
        if self.topology == "hierarchical":
            return self._hierarchical_s(kind, nbytes, world_size)
        passes = 2 if kind == "all_reduce" else 1
        if self.topology == "tree" or kind in ("broadcast", "barrier"):
            return passes * math.ceil(math.log2(world_size)) * self._message_s(nbytes)
        return passes * (world_size - 1) * self._message_s(nbytes / world_size)

    def _message_s(self, nbytes: float) -> float:
        return self.latency_s + nbytes / self.bandwidth_bytes_s

    def _hierarchical_s(self, kind: str, nbytes: int, world_size: int) -> float:
        assert self.inner is not None
        here = min(self.ranks_per_node, world_size)
        nodes = math.ceil(world_size / here)
        between = Link(self.latency_s, self.bandwidth_bytes_s).cost_s(kind, nbytes, nodes)
        back = self.inner.cost_s("broadcast", nbytes, here) if kind == "all_reduce" else 0.0
        return self.inner.cost_s(kind, nbytes, here) + between + back
