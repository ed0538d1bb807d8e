"""The best that a step can be: all buckets that can be cut, tried exactly, on the virtual network. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from minigrad.distributed.comm.wire_bytes import wire_bytes
from minigrad.distributed.simulate.cluster import Cluster


@dataclass(frozen=True)
class Best:
    """What the best division into all_reduces makes of a step.

    Attributes:
        step_s: Seconds of it.
        compute_s: Of the slowest rank alone.
        calls: All_reduces, the fewest that take as long.
        sent_bytes: That each rank sends at least, 2(W - 1)/W of the gradients' bytes.
        cuts: After how many gradients, in the order of backward, each of them ends.
    """

    step_s: float
    compute_s: float
    calls: int
    sent_bytes: float
    cuts: tuple[int, ...]

    @property
    def exposed_s(self) -> float:
        """What is not hidden behind computing."""
        return max(0.0, self.step_s - self.compute_s)


def best_step(cluster: Cluster, samples: Sequence[int], sizes: Sequence[int], step: int = 0, wire: float = 1.0) -> Best:
    """The best plan for a step: no division of these gradients into all_reduces is over earlier.

    Backward completes gradients one after the other, by bytes; an all_reduce begins when all ranks have all gradients
    in it and the one before is over. Let f(k) be the earliest moment at which the first k can be there. Then
    f(k) = min over j < k of max(f(j), ready(k)) + cost(j .. k), since a later start is never over earlier.

    Args:
        samples: Of each rank, > 0.
        sizes: Bytes of each gradient, in the order in which backward completes them.
        step: Its number, for jitter and slowdowns.
        wire: The part of the bytes that travels.

    Example:
        >>> from minigrad.distributed.simulate import Link
        >>> cluster = Cluster.of_speeds([1, 1], per_sample_s=1.0, link=Link(0.0, 100.0))
        >>> best = best_step(cluster, [3, 3], [100, 100])
        >>> best.step_s, best.cuts
        (4.0, (1, 2))
    """
    compute = [cluster.compute_s(rank, count, step) for rank, count in enumerate(samples)]
    backward = [seconds * cluster.backward_fraction for seconds in compute]
    ends, whole = list(accumulate(sizes, initial=0)), max(1, sum(sizes))
    best: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]  # f(k), in how many calls, and cut where
    for k in range(1, len(sizes) + 1):
        left = 1.0 - ends[k] / whole
        ready_s = max(c - b * left for c, b in zip(compute, backward))
        options = []
        for j, (until_s, calls, cuts) in enumerate(best):
            nbytes = (ends[k] - ends[j]) * wire
            cost_s = cluster.link.cost_s("all_reduce", nbytes, cluster.world_size, (), 0 if j else 1)
            options.append((max(until_s, ready_s) + cost_s, calls + 1, (*cuts, k)))
        best.append(min(options))
    step_s, calls, cuts = best[-1]
    least = wire * float(wire_bytes("all_reduce", ends[-1], cluster.world_size))
    return Best(max(step_s, *compute), max(compute), calls, least, cuts)
