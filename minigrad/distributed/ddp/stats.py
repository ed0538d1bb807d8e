"""What a wrapper has done so far, in numbers: seconds, bytes, calls, and the order in which buckets became ready."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stats:
    """Sums over all passes since construction or `reset`.

    Attributes:
        passes: Synchronising backwards, flushes and manual synchronisations.
        forward_s, backward_s: Time in forward, and in backward less the waiting at its end.
        communication_s: Over all buckets, from launch to completion; on a GPU, of the communication stream.
        exposed_s: Waiting at the end of backward: communication that nothing hid. On a GPU it is the compute stream
            that waits, and both times come a pass late, or later: they are read once the device is through.
        bytes_sent: Bytes of this rank's gradients that were reduced.
        calls: Collectives launched for gradients.
        bucket_bytes: Size of each bucket of the plan in force.
        ready_order: In which order the buckets of the last pass became ready.
    """

    passes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0
    communication_s: float = 0.0
    exposed_s: float = 0.0
    bytes_sent: int = 0
    calls: int = 0
    bucket_bytes: list[int] = field(default_factory=list)
    ready_order: list[int] = field(default_factory=list)

    @property
    def overlap_fraction(self) -> float:
        """The part of the communication that backward hid, between 0 and 1; 0 where there was none."""
        if self.communication_s <= 0.0:
            return 0.0
        return max(0.0, 1.0 - self.exposed_s / self.communication_s)

    def reset(self) -> None:
        """Start to count again."""
        kept = self.bucket_bytes
        self.__init__(bucket_bytes=kept)  # type: ignore[misc]

    def __str__(self) -> str:
        return (
            f"{self.passes} passes: forward {self.forward_s:.3f} s, backward {self.backward_s:.3f} s, "
            f"communication {self.communication_s:.3f} s of which {self.exposed_s:.3f} s exposed "
            f"({self.overlap_fraction:.0%} overlapped), {self.bytes_sent} bytes in {self.calls} calls, "
            f"buckets {self.bucket_bytes} ready in order {self.ready_order}"
        )
