"""The lane of a GPU: its streams, where the host waits for nothing.

All that a pass does lies on one communication stream: the sum of the samples, the weighting of each bucket, and its
collective. The stream that backward runs on has an edge to it before each bucket, whose gradients must be complete,
and one back at the end, for what reads them. Σn is never read by the host: the weight n_r / Σn is a number in device
memory, so a bucket goes out as soon as its gradients are there.

Only where the host has to know the counts of all ranks, in `join` and to tell which parameters were used, it waits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.backend.capturing import current_capture, refuse_in_capture
from minigrad.backend.device import array_module, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.nvtx import nvtx_range
from minigrad.backend.stream import CommStream
from minigrad.backend.timer import CudaTimer
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.ddp.captured import ReplayedPasses
from minigrad.distributed.ddp.logbook import Logbook
from minigrad.distributed.ddp.passes import Lane
from minigrad.distributed.ddp.stats import Stats

_SLOTS = 256  # buckets whose times nobody has read yet


def lane_of(comm: Communicator) -> Lane:
    """The lane for the arrays of a communicator."""
    return Lane(comm) if comm.device.type == "cpu" else DeviceLane(comm)


class DeviceLane(Lane):
    """A communication stream, which lives as long as this, and the timers of what lies on it.

    Args:
        comm: The ranks; the collectives run on the current stream of the thread that calls them.
        streams: What `streams_of(comm.device)` gives, or a stand-in.

    Attributes:
        replays: What hears of passes that are captured.
    """

    replays: ReplayedPasses | None = None

    def __init__(self, comm: Communicator, streams: Any = None) -> None:
        super().__init__(comm)
        self._side = CommStream(comm.device, streams)
        self._communication = CudaTimer(comm.device, _SLOTS, streams)  # of each bucket, on the communication stream
        self._exposed = CudaTimer(comm.device, streams=streams)  # of what the caller's stream waits at the end
        self._is_exposed = False
        self._launched = 0  # buckets that no stretch of exposed is known for yet
        self._buckets = deque[int]()  # of each stretch of exposed that was not read yet
        self._read: list[float] = []  # times of buckets whose stretch was not read yet

    def count(self, row: list[float], layout: str) -> Work:
        """Launch the sum of a row, which takes the place of the last one."""
        self.stand(False)  # the last pass may have failed
        if current_capture() is not None:
            self._side.follow()  # by an edge it is captured, too
            if any(row[1 + self.comm.world_size :]):
                what = "find_unused_parameters=True, for which the host reads what ranks used"
                refuse_in_capture("DistributedDataParallel", what)
            if self.replays is not None:
                self.replays.begin()
        with self._side.current():
            if self._vector is None or self._vector.size != len(row):
                self._vector = self.comm.empty(len(row), np.dtype(np.float64))
            vector, rank = self._vector, self.comm.rank
            if any(row[1 + self.comm.world_size :]):
                vector[...] = array_module(vector).asarray(np.array(row))
            else:
                vector[...] = 0
                vector[0], vector[1 + rank] = row[0], row[1 + rank]
            return self.comm.all_reduce(vector, layout=layout)

    def is_ordered(self, counting: Work) -> bool:
        """Let the stream wait for the sum; every rank has data then."""
        with self._side.current():
            counting.wait()  # ranks in memory come together here, others are ordered by the stream
        return True

    def counts(self, counting: Work, logbook: Logbook) -> list[float]:
        """The sum on the host, which waits for it."""
        with self._side.current():
            counting.wait(host=True)
            return to_host(self._vector).tolist()  # type: ignore[no-any-return]

    def weight(self, samples: float, weight: float) -> Array | None:
        """n_r / Σn as it stands in device memory; None for 1.

        A rank without samples weighs 0. Where no rank has any, combined gradients have to stay: rank 0 weighs 1 then,
        and every rank gets its gradients back.
        """
        xp, total = array_module(self._vector), self._vector[:1]
        if not math.isnan(weight):
            return xp.full(1, weight, np.float64)
        if self.comm.world_size == 1:
            return None
        if samples > 0.0:
            return samples / total
        return (total == 0.0).astype(np.float64) if self.comm.rank == 0 else xp.zeros(1, np.float64)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """What is launched inside comes after the gradients that are complete, on the communication stream."""
        self._side.follow()
        with nvtx_range(f"bucket {self._launched}"), self._side.current():
            self._communication.start()
            try:
                yield
            finally:
                self._communication.stop()
                self._launched += 1

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Let what the caller's stream does next come after what is waited for inside."""
        with self._side.current():
            yield
        with self.comm.waiting():
            self._side.join()

    def stand(self, still: bool) -> None:
        """From here on the caller's stream has nothing to do but wait; or that is over."""
        if still != self._is_exposed:
            self._is_exposed = still
            if still:
                self._exposed.start()
            else:
                self._exposed.stop()
                if current_capture() is None:
                    self._buckets.append(self._launched)
                self._launched = 0

    def add_times(self, stats: Stats, logbook: Logbook, began_s: float, over_s: float, company: list[Logbook]) -> None:
        """Add what a pass took; times of the device are those of passes that it is through with."""
        self.stand(False)
        if current_capture() is not None and self.replays is not None:
            self.replays.end()
        for exposed_s, communication_s in self._read_s():
            stats.exposed_s += exposed_s
            stats.hidden_s += max(0.0, communication_s - exposed_s)
        stats.backward_s += over_s - began_s

    def _read_s(self) -> list[tuple[float, float]]:
        """Exposed, and of the communication, seconds of each pass that the device is through with, once each."""
        exposed = self._exposed.read_s()  # first: of those, every bucket is over too
        self._read += self._communication.read_s()
        lost, self._communication.lost = self._communication.lost, 0  # the oldest: device and host are far apart
        skipped, self._exposed.lost = self._exposed.lost, 0
        passes = []
        for exposed_s in [0.0] * skipped + exposed:
            count = self._buckets.popleft()
            known, lost = max(0, count - lost), max(0, lost - count)
            passes.append((exposed_s, sum(self._read[:known])))
            del self._read[:known]
        return passes[skipped:]
