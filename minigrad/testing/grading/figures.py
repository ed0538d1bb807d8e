"""From what ranks were seen to do to figures: compared with the cluster's own books, then with the best there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from minigrad.distributed.simulate.cluster import Cluster
from minigrad.testing.grading.table import Figure, Limits
from minigrad.testing.grading.notes import Did, moments_of, sent_bytes
from minigrad.testing.grading.optimum import Best, best_step
from minigrad.testing.grading.steps import GradedRank
from minigrad.testing.grading.workload import Truth, Workload

_SAME = 1e-9  # of times; what differs by less is rounding


class GradingError(Exception):
    """What ends a grading early, in words."""


@dataclass(frozen=True)
class Measured:
    """What ranks did on a virtual cluster, and when.

    Attributes:
        ranks: What each was seen to do.
        moments: When it had done each of its notes, in virtual seconds.
    """

    ranks: list[GradedRank]
    moments: list[list[float]]

    @staticmethod
    def of(
        ranks: list[GradedRank], cluster: Cluster, carried_bytes: int, samples: Sequence[int]
    ) -> Measured:
        """Compute times from the notes, and compare both with what clocks and network of the cluster say.

        Args:
            samples: Of each rank in a step.

        Raises:
            GradingError: they say something else.
        """
        for rank, one in enumerate(ranks):
            _check_computed(one, cluster, rank, samples[rank])
        moments = moments_of([one.notes.did for one in ranks], cluster.link)
        for rank, one in enumerate(ranks):
            computed = [moments[rank][i] if i < len(moments[rank]) else -1.0 for i in one.notes.starts]
            if any(abs(a - b) > _SAME * max(1.0, abs(b)) for a, b in zip(computed, one.clock_s)):
                raise GradingError(
                    f"rank {rank}: its clock says {one.clock_s[-1]:.9g} s, and its calls take {computed[-1]:.9g} s: "
                    "the clock was moved, or something was called past the communicator"
                )
        handed = sum(did.nbytes for one in ranks for did in one.notes.did)
        if handed != carried_bytes:
            raise GradingError(
                f"the communicator was handed {handed} bytes, and the cluster carried {carried_bytes}: something was "
                "called past the communicator"
            )
        return Measured(ranks, moments)

    def ended_s(self, step: int) -> float:
        """When all ranks had come to the end of a step."""
        return max(moments[one.notes.starts[step + 1]] for moments, one in zip(self.moments, self.ranks))

    def calls(self, step: int) -> list[list[Did]]:
        """What each rank did in a step."""
        return [one.notes.did[one.notes.starts[step] : one.notes.starts[step + 1]] for one in self.ranks]


def _check_computed(one: GradedRank, cluster: Cluster, rank: int, samples: int) -> None:
    """Each step computes for as long as the cluster says, whatever became of notes."""
    for step, (start, stop) in enumerate(pairwise(one.notes.starts)):
        seconds = [did.seconds for did in one.notes.did[start:stop]]
        should_s = cluster.compute_s(rank, samples, step)
        if min(seconds) < 0.0 or abs(sum(seconds) - should_s) > _SAME * max(1.0, should_s):
            raise GradingError(
                f"rank {rank}: expected to compute {should_s:.9g} s in a step, got {sum(seconds):.9g} s: what was "
                "noted of it was changed"
            )


def figures_of(measured: Measured, workload: Workload, cluster: Cluster, limits: Limits) -> dict[str, Figure]:
    """Figures of the steps after the first, each a mean over steps and ranks.

    Raises:
        GradingError: fewer bytes or calls than an all-reduce of the gradients needs.
    """
    steps, counts = range(1, workload.steps + 1), workload.samples_of(cluster.world_size)
    sizes = [leaf.nbytes for leaf in Truth(workload, cluster.world_size).leaves]
    best = [best_step(cluster, counts, sizes, step, workload.wire_fraction) for step in steps]
    sent, calls = zip(*(_sent(measured.calls(step), best[0], cluster.world_size) for step in steps))
    step_s = (measured.ended_s(steps[-1]) - measured.ended_s(0)) / len(steps)
    best_s, best_exposed_s = (sum(s) / len(steps) for s in ([b.step_s for b in best], [b.exposed_s for b in best]))
    exposed_s = step_s - (best_s - best_exposed_s)
    return {
        "step_s": Figure(step_s, best_s, limits.step_ratio),
        "exposed_s": Figure(exposed_s, best_exposed_s, limits.exposed_ratio),
        "exposed_fraction": Figure(exposed_s / step_s, best_exposed_s / best_s, None, limits.exposed_fraction),
        "sent_bytes": Figure(sum(sent) / len(steps), best[0].sent_bytes, limits.bytes_ratio),
        "calls": Figure(sum(calls) / len(steps), sum(b.calls for b in best) / len(steps), limits.calls_ratio),
    }


def _sent(ranks: Sequence[Sequence[Did]], best: Best, world_size: int) -> tuple[float, float]:
    """Bytes and calls of a rank in a step, on average; GradingError where they can't be an all-reduce."""
    nbytes = sum(sent_bytes(did, world_size) for notes in ranks for did in notes) / world_size
    calls = sum(did.did in ("called", "sent") for notes in ranks for did in notes) / world_size
    if nbytes < best.sent_bytes * (1.0 - _SAME) or calls < 1.0:
        raise GradingError(
            f"right gradients after {calls:.3g} calls and {nbytes:.0f} bytes of a rank in a step, where an all-reduce "
            f"of the trainable gradients needs {best.sent_bytes:.0f}: they were exchanged outside the communicator; "
            "compression has to be declared, by Workload(wire_fraction=...)"
        )
    both = min(sum(d.nbytes for notes in ranks for d in notes if d.did == did) for did in ("called", "sent"))
    if both > world_size * best.sent_bytes / 100.0:
        raise GradingError(
            f"expected gradients to travel by collectives or by messages, got {both} bytes of both: in the simulation "
            "these do not share the link"
        )
    return nbytes, calls
