"""What a wrapper tells of its passes: seconds, bytes and calls, and which gradients were not finite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from minigrad.arguments import check_switch
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.buckets import BucketPlan


@dataclass
class Stats:
    """Sums over all passes since construction or `reset`.

    On the CPU a pass is backward_s + idle_s + exposed_s long. On a GPU, where the host waits for nothing, exposed_s is
    the time in which the compute stream waits; streams do not tell waiting for ranks, so idle_s is 0 and that waiting
    is part of the communication; and both times come a pass late, or later, once the device is through.

    Attributes:
        passes: Synchronising backwards, flushes and manual synchronisations.
        forward_s, backward_s: Time in forward, and in backward less the standing still in it; local ones too.
        idle_s: Waiting for ranks that had not called a collective yet; over shared memory, nor begun their share of it.
        exposed_s: Standing still while the wire works: communication that nothing hid.
        hidden_s: What the wire works while this rank computes, or waits for a rank.
        bytes_sent: What this rank handed in to collectives for its gradients: bytes of the wire's dtype, and with a
            comm hook all that it sent.
        calls: Those collectives.
        bucket_bytes: Size of each bucket of the plan in force.
        ready_order: In which order the buckets of the last pass became ready.
        ranks: Those of each rank, where all were asked at once; see `late`.
    """

    passes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    idle_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0
    bytes_sent: int = 0
    calls: int = 0
    bucket_bytes: list[int] = field(default_factory=list)
    ready_order: list[int] = field(default_factory=list)
    ranks: list[Stats] = field(default_factory=list)

    @property
    def communication_s(self) -> float:
        """How long the wire works: from when all ranks have called a collective until it is over, exposed or hidden.

        What a call itself takes, to weight or to add up, is exposed.
        It counts all that a pass sends: the sum of the samples, the buckets, and buffers and fingerprints after them;
        not what layers send by themselves, as SyncBatchNorm does.
        """
        return self.exposed_s + self.hidden_s

    @property
    def overlap_fraction(self) -> float:
        """The part of the communication that is hidden, between 0 and 1; 0 where there was none."""
        return self.hidden_s / self.communication_s if self.communication_s > 0.0 else 0.0

    def reset(self) -> None:
        """Start to count again."""
        kept = self.bucket_bytes
        self.__init__(bucket_bytes=kept)  # type: ignore[misc]

    def asked(self, all_ranks: bool, comm: Communicator) -> Stats:
        """These; or a copy that has those of each rank too, for which all ranks call this."""
        check_switch("stats", all_ranks=all_ranks)
        if not all_ranks:
            return self
        mine = {name: value for name, value in vars(self).items() if name != "ranks"}
        return Stats(**mine, ranks=[Stats(**each) for each in comm.all_gather_object(mine)])

    @property
    def late(self) -> tuple[LateInSum, ...]:
        """Which ranks made the others wait, as far as sums tell; see `late_in`."""
        return late_in(self.ranks)

    def __str__(self) -> str:
        if self.ranks:
            late = [str(each) for each in self.late] or [_of_nobody(self.ranks)]
            return "\n".join([*(f"rank {rank}: {each}" for rank, each in enumerate(self.ranks)), *late])
        return (
            f"{self.passes} passes: forward {self.forward_s:.3f} s, backward {self.backward_s:.3f} s, waiting for "
            f"ranks {self.idle_s:.3f} s, communication {self.communication_s:.3f} s of which {self.exposed_s:.3f} s "
            f"exposed ({self.overlap_fraction:.0%} overlapped), {self.bytes_sent} bytes in {self.calls} calls, "
            f"buckets {self.bucket_bytes} ready in order {self.ready_order}"
        )


class LateInSum(NamedTuple):
    """A rank that others waited for, in sums over all passes.

    Attributes:
        waited_s: How much longer the others waited for ranks than it did.
        forward_s, backward_s: How much longer it took in forward, and in backward, than the others.
    """

    rank: int
    waited_s: float
    forward_s: float
    backward_s: float

    @property
    def outside_s(self) -> float:
        """What neither explains: data, the optimizer, or handing buckets in, say."""
        return max(0.0, self.waited_s - max(0.0, self.forward_s) - max(0.0, self.backward_s))

    @property
    def phase(self) -> str:
        """In which it lost most: "forward", "backward" or "outside"."""
        lost = {"forward": self.forward_s, "backward": self.backward_s, "outside": self.outside_s}
        return max(lost, key=lambda phase: lost[phase])

    def __str__(self) -> str:
        parts = f"{self.forward_s:+.3f} s in forward, {self.backward_s:+.3f} s in backward"
        said = f"Rank {self.rank} was late: the others waited {self.waited_s:.3f} s longer for ranks"
        return f"{said}; beside them it took {parts}, and {self.outside_s:.3f} s are of neither."


def late_in(ranks: Sequence[Stats], least_fraction: float = 0.05) -> tuple[LateInSum, ...]:
    """Which ranks the others waited for, by that part of their time at least, the most waited for first. Pure.

    All-reduces make the passes of all ranks equally long: who is late waits less than the others. What they wait, or
    take, is that of the middle one of them. How often it was late, whether ranks took turns, and what SyncBatchNorm
    layers wait by themselves, is not in sums: a timeline knows, see `explain_ranks`. Of a GPU, which does not tell
    waiting for ranks, nothing is said.
    """
    found, whole_s = [], _whole_s(ranks)
    for rank, own in enumerate(ranks):
        others = [each for other, each in enumerate(ranks) if other != rank]
        if not others:
            break
        waited_s = sorted(each.idle_s for each in others)[len(others) // 2] - own.idle_s
        forward_s = own.forward_s - sorted(each.forward_s for each in others)[(len(others) - 1) // 2]
        backward_s = own.backward_s - sorted(each.backward_s for each in others)[(len(others) - 1) // 2]
        if waited_s > least_fraction * whole_s:
            found.append(LateInSum(rank, waited_s, forward_s, backward_s))
    return tuple(sorted(found, key=lambda late: -late.waited_s))


def _whole_s(ranks: Sequence[Stats]) -> float:
    """The time of the rank that has most of it."""
    return max((s.forward_s + s.backward_s + s.idle_s + s.exposed_s for s in ranks), default=0.0)


def _of_nobody(ranks: Sequence[Stats]) -> str:
    """What is known of waiting, in words, where no rank was late in sum."""
    waited_s = [each.idle_s for each in ranks]
    if not any(waited_s):
        return "In their passes no rank was seen to wait for another; a GPU does not tell that from communication."
    if max(waited_s) <= 0.05 * _whole_s(ranks):
        return "In their passes no rank waited for others for 5 % of the time."
    return (
        f"Ranks waited {min(waited_s):.3f} to {max(waited_s):.3f} s for each other, none was late in sum: a timeline "
        "tells when which one was, see explain_ranks."
    )


class NonFinite(NamedTuple):
    """A bucket of a rank that was not finite.

    Attributes:
        parameters: The names of those in the bucket, one of which it was.
    """

    rank: int
    bucket: int
    parameters: tuple[str, ...]

    def __str__(self) -> str:
        return f"rank {self.rank}, bucket {self.bucket}: {', '.join(self.parameters)}"


class NonFiniteFlags:
    """A flag for each bucket of this rank, where the gradients live.

    What counts is what is sent: a value that is too large for the dtype of the wire is infinite there.
    """

    def __init__(self, comm: Communicator, plan: BucketPlan) -> None:
        self._comm, self._plan = comm, plan
        with comm.device.current() as xp:
            self._flags: Array = xp.zeros(len(plan.buckets), np.uint32)

    def of(self, bucket: int) -> Array:
        """The flag of one bucket, uint32 (1,)."""
        return self._flags[bucket : bucket + 1]

    def take(self) -> list[NonFinite]:
        """What all ranks found since the last time; all of them call this, and it waits for their devices."""
        with self._comm.device.current() as xp:
            gathered = xp.empty(self._comm.world_size * self._flags.size, np.uint32)
            self._comm.all_gather(gathered, self._flags).wait()
            self._flags[...] = 0
        table = to_host(gathered).reshape(self._comm.world_size, -1)
        buckets = [tuple(self._plan.names[i] for i in bucket.entries) for bucket in self._plan.buckets]
        return [NonFinite(int(rank), int(i), buckets[i]) for rank, i in np.argwhere(table)]
