"""What a collective, or a message, costs on a network, by the alpha-beta model. Pure.

A message of m bytes takes alpha + beta·m seconds (Hockney, 1994). The costs of the collectives are those of Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH" (2005), with p ranks:

    "ring": parts of the array are passed on, one n/p at a time: (p - 1)(alpha + beta·n/p), and an all_reduce twice
        that. To gather and to scatter the root takes, or sends, one part after the other; all_to_all goes in pairs.
    "halving_doubling": an all_reduce of pairs that exchange halves: 2(log2 p·alpha + beta·n·(p - 1)/p); where p is no
        power of two, of the power below it, and two messages of n more. The others as "tree".
    "tree": the distance doubles with each message. An all_reduce is a reduction and a broadcast of the whole; to gather
        and to scatter doubles and halves what is sent, ceil(log2 p)·alpha + beta·n·(p - 1)/p; all_to_all is Bruck's:
        message k carries each part whose way has bit k set.
    broadcast, reduce and barrier go along a tree in either case: ceil(log2 p)(alpha + beta·n).
    "hierarchical": each within the nodes and between them; what comes from between goes back into the nodes. A gather
        between nodes has what was gathered in each; an all_to_all gathers in each node, goes between, and scatters.

Real links add three things to it, each a number of a `Link`: bytes come at `efficiency` of the nominal rate, every
collective of bytes takes `ramp_s` longer, and ranks that computed apart for long wait for each other,
`skew_s_per_step` for each step. `Link.fit` finds them in measured times.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, get_args

import numpy as np

from minigrad.arguments import as_amount, as_integer, as_real, as_sequence, check_choice, keep_as
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.wrappers import COLLECTIVES
from minigrad.errors import ArgumentError

Topology = Literal["ring", "tree", "halving_doubling", "hierarchical"]

_SAME = 1e-9  # of what differs by less than this part, nothing is told apart


@dataclass(frozen=True)
class SyncReading:
    """One synchronisation as it was measured: an all_reduce, and the waiting before it.

    Attributes:
        seconds: What it took on average, > 0.
        nbytes: Bytes of the array, > 0.
        bandwidth_bytes_s: The nominal bandwidth of the link, bytes in a second, > 0.
        world_size: Ranks that took part, >= 2.
        local_steps: Steps of computing that a rank made since the one before, >= 0.
    """

    seconds: float
    nbytes: float
    bandwidth_bytes_s: float
    world_size: int
    local_steps: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_real, "seconds", "nbytes", "bandwidth_bytes_s", above=0.0, finite=True)
        keep_as(self, as_integer, "world_size", least=2)
        keep_as(self, as_amount, "local_steps")


@dataclass(frozen=True)
class Link:
    """The network between ranks.

    Attributes:
        latency_s: alpha, seconds for a message of no bytes, >= 0.
        bandwidth_bytes_s: 1 / beta, bytes in a second, > 0; infinity is allowed.
        topology: How collectives go.
        ranks_per_node: For "hierarchical": ranks that share a node; their link is `inner`.
        inner: The link within a node; latency, bandwidth and efficiency are then those between nodes.
        efficiency: The part of the bandwidth at which bytes really come, in (0, 1].
        ramp_s: Seconds that a collective of any bytes takes longer than those need, >= 0: a slow start, say.
        skew_s_per_step: Seconds that ranks wait for each other, for each step of computing since their last collective,
            >= 0: what is left of it where computing is modelled as equally fast in each step.
    """

    latency_s: float = 0.0
    bandwidth_bytes_s: float = math.inf
    topology: Topology = "ring"
    ranks_per_node: int = 1
    inner: Link | None = None
    efficiency: float = 1.0
    ramp_s: float = 0.0
    skew_s_per_step: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_amount, "latency_s", "ramp_s", "skew_s_per_step")
        keep_as(self, as_real, "bandwidth_bytes_s", above=0.0)
        keep_as(self, as_real, "efficiency", above=0.0, most=1.0)
        keep_as(self, as_integer, "ranks_per_node", least=1)
        check_choice("Link", get_args(Topology), topology=self.topology)
        if self.topology == "hierarchical":
            if not isinstance(self.inner, Link):
                raise ArgumentError(f"Link: expected an inner link for 'hierarchical', got {self.inner!r}")
        elif self.inner is not None or self.ranks_per_node != 1:
            raise ArgumentError(f"Link: expected inner, ranks_per_node for 'hierarchical' only, got {self.topology!r}")

    @staticmethod
    def fit(rows: Sequence[SyncReading], like: Link | None = None, *, bandwidth_bytes_s: float | None = None) -> Link:
        """The link whose `efficiency`, `ramp_s` and `skew_s_per_step` come nearest to measured all_reduces.

        Nearest is the least sum of squares of predicted / measured - 1, with each number in its range. What the rows
        do not tell apart counts as efficiency first, then as ramp: where all of them have one time on the wire, the
        ramp is 0.

        Args:
            rows: At least one.
            like: What is known of the link: latency, topology, what is within nodes. By default a ring without latency.
            bandwidth_bytes_s: Of the link that is returned, > 0. By default that of the rows, which then is one.

        Raises:
            ArgumentError: no rows, or of several bandwidths and none was said; `like` is no Link; or each row took less
                than its bytes need at its bandwidth.

        Example:
            >>> rows = [SyncReading(s, 1e6, 1e6, 2, steps) for s, steps in [(2.5, 10), (3.0, 20)]]
            >>> link = Link.fit(rows)
            >>> round(link.efficiency, 6), round(link.skew_s_per_step, 6)
            (0.5, 0.05)
        """
        known = _check_rows(rows, like)
        found = {row.bandwidth_bytes_s for row in known}
        if bandwidth_bytes_s is None and len(found) > 1:
            raise ArgumentError(
                f"Link.fit: expected rows of one bandwidth, got {sorted(found)!r:.100}: say which the link has by "
                "bandwidth_bytes_s"
            )
        bandwidth = found.pop() if bandwidth_bytes_s is None else bandwidth_bytes_s
        plain = replace(like or Link(), efficiency=1.0, ramp_s=0.0, skew_s_per_step=0.0, bandwidth_bytes_s=bandwidth)
        table = np.array([plain._parts_s(row) for row in known])
        seconds = np.array([row.seconds for row in known])
        nominal = table[:, 0] + table[:, 1]
        if (seconds < nominal).all():
            raise ArgumentError(
                f"Link.fit: expected a row that takes as long as its bytes need at its bandwidth, got at most "
                f"{(seconds / nominal).max():.3g} of that: give the rows' bandwidth in bytes a second"
            )
        slower, ramp_s, skew_s = _least_squares(table[:, 1:] / seconds[:, None], 1.0 - nominal / seconds).tolist()
        return replace(plain, efficiency=1.0 / (1.0 + slower), ramp_s=ramp_s, skew_s_per_step=skew_s)

    def _parts_s(self, row: SyncReading) -> tuple[float, float, float, float]:
        """Of a row's time: what no bandwidth changes; its bytes on the wire; how often the ramp; and the skew."""
        nominal = replace(self, bandwidth_bytes_s=row.bandwidth_bytes_s)
        endless = replace(self, bandwidth_bytes_s=math.inf)
        whole_s, fixed_s = (link.cost_s("all_reduce", row.nbytes, row.world_size) for link in (nominal, endless))
        return fixed_s, whole_s - fixed_s, 1.0, row.local_steps

    def cost_s(
        self, kind: str, nbytes: float, world_size: int, ranks: Sequence[int] = (), local_steps: float = 0.0
    ) -> float:
        """Seconds that a collective takes once all ranks have called it.

        Args:
            kind: "all_reduce", "broadcast", "reduce_scatter", "all_gather", "all_gather_object", "barrier", "reduce",
                "gather", "scatter" or "all_to_all".
            nbytes: Bytes of the whole array: of the gathered one, the one to scatter; of what one rank hands in to an
                all_to_all.
            world_size: Ranks that take part, >= 1.
            ranks: Which they are, where they are a group of more: of a hierarchy, rank // ranks_per_node is its node,
                and of nodes with different numbers of them the slowest counts.
            local_steps: Steps that the ranks computed since their last collective, >= 0; of the one that made most.

        Raises:
            ArgumentError: another kind, or an argument out of its range.
        """
        check_choice("Link.cost_s", COLLECTIVES, kind=kind)
        as_amount("Link.cost_s", "nbytes", nbytes)
        as_amount("Link.cost_s", "local_steps", local_steps)
        if as_integer("Link.cost_s", "world_size", world_size, 1) == 1:
            return 0.0
        beside_s = self.skew_s_per_step * local_steps + (self.ramp_s if nbytes else 0.0)
        return beside_s + self._on_wire_s(kind, nbytes, world_size, ranks)

    def _on_wire_s(self, kind: str, nbytes: float, world_size: int, ranks: Sequence[int]) -> float:
        if self.topology == "hierarchical":
            return self._hierarchical_s(kind, nbytes, self._nodes(world_size, ranks))
        hops, others = math.ceil(math.log2(world_size)), world_size - 1
        if (kind, self.topology) == ("all_reduce", "halving_doubling"):
            return self._halving_doubling_s(nbytes, world_size)
        passes = 2 if kind == "all_reduce" else 1
        if kind in ("broadcast", "reduce", "barrier") or (kind, self.topology) == ("all_reduce", "tree"):
            return passes * hops * self._flat_s(nbytes)
        if kind == "all_to_all" and self.topology != "ring":
            return sum(self._flat_s(nbytes / world_size * _with_bit(k, world_size)) for k in range(hops))
        if self.topology != "ring":
            return hops * self.latency_s + others / world_size * self._bytes_s(nbytes)
        return passes * others * self._flat_s(nbytes / world_size)

    def _halving_doubling_s(self, nbytes: float, world_size: int) -> float:
        depth = world_size.bit_length() - 1
        beside_s = 2 * self._flat_s(nbytes) if world_size > 1 << depth else 0.0
        return beside_s + 2 * (depth * self.latency_s + self._bytes_s(nbytes) * (1.0 - 0.5**depth))

    def message_s(self, nbytes: float, src: int = 0, dst: int = 1) -> float:
        """Seconds from when a message was sent to when it is there: alpha + beta·nbytes, without ramp and skew.

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
        return self.latency_s + self._bytes_s(nbytes)

    def _bytes_s(self, nbytes: float) -> float:
        return nbytes / (self.bandwidth_bytes_s * self.efficiency)

    def _nodes(self, world_size: int, ranks: Sequence[int]) -> Counter[int]:
        """How many nodes there are with so many ranks each."""
        if ranks:
            return Counter(Counter(rank // self.ranks_per_node for rank in ranks).values())
        full, rest = divmod(world_size, self.ranks_per_node)
        return Counter({self.ranks_per_node: full}) + Counter({rest: 1 if rest else 0})

    def _hierarchical_s(self, kind: str, nbytes: float, sizes: Counter[int]) -> float:
        inner, between = self.inner, Link(self.latency_s, self.bandwidth_bytes_s, efficiency=self.efficiency)
        assert inner is not None
        here, nodes = max(sizes), sizes.total()
        if kind == "all_to_all" and nodes > 1:
            ways_s = inner.cost_s("gather", here * nbytes, here) + inner.cost_s("scatter", here * nbytes, here)
            return ways_s + between.cost_s(kind, here * nbytes, nodes)
        part = nbytes / nodes if kind in ("gather", "scatter") else nbytes
        back_s = inner.cost_s("broadcast", nbytes, here) if nodes > 1 and kind in ("all_reduce", "barrier") else 0.0
        return max(inner.cost_s(kind, part, size) for size in sizes) + between.cost_s(kind, nbytes, nodes) + back_s


def _with_bit(k: int, world_size: int) -> int:
    """How many of the ways from 0 to world_size - 1 have bit k set."""
    return sum(way >> k & 1 for way in range(world_size))


def _check_rows(rows: Sequence[SyncReading], like: Link | None) -> list[SyncReading]:
    """The rows as a list; ArgumentError where they, or the link, are none."""
    known = list(as_sequence("Link.fit", "rows", rows))
    if not known or not all(isinstance(row, SyncReading) for row in known):
        raise ArgumentError(f"Link.fit: expected rows as at least one SyncReading, got {rows!r:.100}")
    if like is not None and not isinstance(like, Link):
        raise ArgumentError(f"Link.fit: expected like to be a Link, got {like!r:.100}")
    return known


def _least_squares(columns: Array, target: Array) -> Array:
    """x >= 0 with the least |columns·x - target|, exactly: every choice of columns is tried, that of fewest first.

    One of dependent columns is no better than fewer of them, so it is never taken.

    Args:
        columns: (rows, n).
        target: (rows,).

    Returns:
        (n,).
    """
    sizes = np.linalg.norm(columns, axis=0)
    sizes[sizes == 0.0] = 1.0
    scaled, count = columns / sizes, columns.shape[1]
    best, least = np.zeros(count), float(target @ target)
    for chosen in (list(some) for size in range(1, count + 1) for some in combinations(range(count), size)):
        found = np.linalg.lstsq(scaled[:, chosen], target, rcond=_SAME)[0]
        error = scaled[:, chosen] @ found - target
        if (found >= 0.0).all() and error @ error < least * (1.0 - _SAME):
            best, least = np.zeros(count), float(error @ error)
            best[chosen] = found
    return best / sizes
