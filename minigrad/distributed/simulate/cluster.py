"""A virtual cluster: what computing costs on each rank, and what links them. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from minigrad.arguments import as_amount, as_integer, as_real, keep_as
from minigrad.backend.dtypes import Array
from minigrad.data.order import WORD
from minigrad.distributed.balance.allocation import allocate, step_s
from minigrad.distributed.balance.cost import CostModel
from minigrad.distributed.simulate.failures import FailureTimes
from minigrad.distributed.simulate.links import Link
from minigrad.errors import ArgumentError


@dataclass(frozen=True)
class Slowdown:
    """From a step on, computing takes factor times as long as at first.

    Attributes:
        step: The number of a forward of this rank, from 0.
        factor: > 0.
    """

    step: int
    factor: float

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "step", least=0)
        keep_as(self, as_real, "factor", above=0.0, finite=True)


@dataclass(frozen=True)
class RankCost:
    """What one rank needs for a forward and its backward: fixed_s + per_sample_s · samples, times jitter and slowdowns.

    That holds for no samples too; a rank that does not call its model at all takes no time.

    Attributes:
        fixed_s, per_sample_s: Seconds, >= 0.
        jitter_fraction: Standard deviation of the log-normal jitter, whose median is 1.
        slowdowns: Of those that have come, the last holds.
    """

    fixed_s: float = 0.0
    per_sample_s: float = 1e-3
    jitter_fraction: float = 0.0
    slowdowns: tuple[Slowdown, ...] = ()

    def __post_init__(self) -> None:
        keep_as(self, as_amount, "fixed_s", "per_sample_s", "jitter_fraction")
        if not all(isinstance(slowdown, Slowdown) for slowdown in self.slowdowns):
            raise ArgumentError(f"RankCost: expected slowdowns as a tuple of Slowdown, got {self.slowdowns!r}")
        object.__setattr__(self, "slowdowns", tuple(sorted(self.slowdowns, key=lambda slowdown: slowdown.step)))

    def factor(self, step: int) -> float:
        """How much slower than at first a step is, jitter aside."""
        return next((s.factor for s in reversed(self.slowdowns) if s.step <= step), 1.0)

    def at(self, step: int) -> CostModel:
        """The cost in a step, jitter aside."""
        return CostModel(self.fixed_s, self.per_sample_s).scaled(self.factor(step))


@dataclass(frozen=True)
class Cluster:
    """Ranks and the link between them.

    Attributes:
        ranks: The cost of each.
        link: The network.
        seed: Of all jitter, in [0, 2**64).
        backward_fraction: The part of a step's computing that is backward, during which buckets may travel.

    Example:
        >>> Cluster.of_speeds([3, 2, 1]).world_size
        3
    """

    ranks: tuple[RankCost, ...]
    link: Link = Link()
    seed: int = 0
    backward_fraction: float = 2 / 3

    def __post_init__(self) -> None:
        if not isinstance(self.ranks, Sequence) or not all(isinstance(cost, RankCost) for cost in self.ranks):
            raise ArgumentError(f"Cluster: expected the RankCost of each rank, got {self.ranks!r:.200}")
        if not self.ranks:
            raise ArgumentError("Cluster: expected at least one rank, got none")
        object.__setattr__(self, "ranks", tuple(self.ranks))
        if not isinstance(self.link, Link):
            raise ArgumentError(f"Cluster: expected a Link, got {self.link!r}")
        keep_as(self, as_integer, "seed", least=0, end=WORD)
        keep_as(self, as_real, "backward_fraction", least=0.0, most=1.0)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @staticmethod
    def of_speeds(
        speeds: Sequence[float],
        *,
        per_sample_s: float = 1e-3,
        fixed_s: float = 0.0,
        jitter_fraction: float = 0.0,
        link: Link = Link(),
        seed: int = 0,
    ) -> Cluster:
        """A cluster of ranks that are so many times as fast as one that needs per_sample_s for a sample.

        Raises:
            ArgumentError: a speed that is no finite number > 0.
        """
        slope = as_amount("Cluster", "per_sample_s", per_sample_s)
        known = [as_real("Cluster", "each speed", speed, above=0.0, finite=True) for speed in speeds]
        costs = tuple(RankCost(fixed_s, slope / speed, jitter_fraction) for speed in known)
        return Cluster(costs, link, seed)

    def slow_down(self, rank: int, step: int, factor: float) -> Cluster:
        """The same cluster where one rank takes factor times as long as at first, from a step of its on.

        Raises:
            ArgumentError: no such rank, a step < 0, or no factor > 0.
        """
        as_integer("Cluster.slow_down", "rank", rank, 0, self.world_size)
        slow = replace(self.ranks[rank], slowdowns=(*self.ranks[rank].slowdowns, Slowdown(step, factor)))
        return replace(self, ranks=(*self.ranks[:rank], slow, *self.ranks[rank + 1 :]))

    def failures(self, mtbf_s: float, repair_s: float, seed: int = 0) -> FailureTimes:
        """When ranks of this cluster fail, for `goodput`.

        Args:
            mtbf_s: The mean time for which one works, > 0: exponential, and independent of that of others.
            repair_s: From a failure until it is there again, >= 0.
            seed: In [0, 2**64).

        Raises:
            ArgumentError: a number out of its range.
        """
        return FailureTimes(self.world_size, mtbf_s, repair_s, seed)

    def jitter(self, rank: int, step: int) -> float:
        """The factor by which a step of a rank takes longer by chance; a function of seed, rank and step."""
        width = self.ranks[rank].jitter_fraction
        if not width:
            return 1.0
        key = np.array([self.seed, rank], np.uint64)
        counter = np.array([0, 0, 0, step], np.uint64)  # far from that of the next step: a draw may take several words
        draw = np.random.Generator(np.random.Philox(key=key, counter=counter)).standard_normal()
        return math.exp(width * float(draw))

    def compute_s(self, rank: int, samples: float, step: int) -> float:
        """Seconds that a rank computes in its step of this number."""
        return self.ranks[rank].at(step).time_s(samples) * self.jitter(rank, step)

    def best_step_s(self, batch_size: int, step: int = 0) -> float:
        """Seconds of the slowest rank in the best division of a batch into whole samples, jitter and link aside.

        Example:
            >>> Cluster.of_speeds([3, 2, 1], per_sample_s=1.0).best_step_s(60)
            10.0
        """
        costs = [rank.at(step) for rank in self.ranks]
        return step_s(allocate(batch_size, costs), costs)

    def compute_all_s(self, samples: Array, step: int) -> Array:
        """compute_s of all ranks at once, with a jitter stream of its own for each step: for very many ranks.

        Args:
            samples: (world_size,) samples of each rank; one without any takes no time.

        Returns:
            (world_size,) seconds.
        """
        fixed, slope, width = self._columns
        factors = np.array([cost.factor(step) for cost in self.ranks]) if self._changing else 1.0
        if not width.any():
            return np.where(samples > 0.0, (fixed + slope * samples) * factors, 0.0)
        key = np.array([self.seed, 2**63 + step], np.uint64)
        draws = np.random.Generator(np.random.Philox(key=key)).standard_normal(self.world_size)
        return np.where(samples > 0.0, (fixed + slope * samples) * factors * np.exp(width * draws), 0.0)

    @cached_property
    def _columns(self) -> tuple[Array, Array, Array]:
        columns = [(cost.fixed_s, cost.per_sample_s, cost.jitter_fraction) for cost in self.ranks]
        fixed, slope, width = np.array(columns).T
        return fixed, slope, width

    @property
    def is_steady(self) -> bool:
        """Whether the same samples take a rank the same time in every step."""
        return not self._changing and not self._columns[2].any()

    @cached_property
    def _changing(self) -> bool:
        return any(cost.slowdowns for cost in self.ranks)


def check_cluster(who: str, cluster: Cluster) -> None:
    """Refuse what is no cluster; ArgumentError."""
    if not isinstance(cluster, Cluster):
        raise ArgumentError(f"{who}: expected a Cluster, got {cluster!r:.100}")
