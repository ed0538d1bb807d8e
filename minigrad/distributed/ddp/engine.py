"""How a reducer's passes run: on the host, or on the streams of a GPU, where the host waits for nothing.

On a GPU all that a pass does lies on one communication stream: the sum of the samples, the weighting of each bucket,
and its collective. The stream that backward runs on has an edge to it before each bucket, whose gradients must be
complete, and one back at the end, for what reads them. Σn is never read by the host: the weight n_r / Σn is a number
in device memory, so a bucket goes out as soon as its gradients are there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from minigrad.backend.device import array_module, to_host
from minigrad.backend.dtypes import Array
from minigrad.backend.stream import CommStream
from minigrad.backend.timer import CudaTimer
from minigrad.distributed.comm.base import Communicator, Work, waiting
from minigrad.distributed.ddp.buckets import BucketPlan
from minigrad.distributed.ddp.passes import Pass
from minigrad.distributed.ddp.stats import Stats

_SLOTS = 256  # buckets whose times nobody has read yet


class Engine(Protocol):
    """Makes the passes of one reducer."""

    def begin(
        self, plan: BucketPlan, layout: str, samples: float, mark: float, used: Sequence[bool], exact: bool
    ) -> Pass:
        """Start a pass, whose arguments these are.

        Args:
            layout: An id that all ranks have to agree on.
            exact: The host has to know the counts of all ranks before the first bucket.
        """


def engine_of(comm: Communicator) -> Engine:
    """The engine for the arrays of a communicator."""
    return HostEngine(comm) if comm.device.type == "cpu" else DeviceEngine(comm)


class HostEngine:
    """Passes whose collectives run while this thread goes on, and that wait for them."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def begin(
        self, plan: BucketPlan, layout: str, samples: float, mark: float, used: Sequence[bool], exact: bool
    ) -> Pass:
        """Start a pass; the host knows the counts in any case."""
        return Pass(self._comm, plan, layout, samples, mark, used)


class DeviceEngine:
    """Passes on a communication stream, which lives as long as this.

    Args:
        comm: The ranks; the collectives run on the current stream of the thread that calls them.
        streams: What `streams_of(comm.device)` gives, or a stand-in.
    """

    def __init__(self, comm: Communicator, streams: Any = None) -> None:
        self._comm = comm
        self.side = CommStream(comm.device, streams)
        self._vector: Array = None
        self.communication = CudaTimer(comm.device, _SLOTS, streams)  # of each bucket, on the communication stream
        self.exposed = CudaTimer(comm.device, streams=streams)  # of what the caller's stream waits at the end
        self._is_exposed = False
        self._launched = 0  # buckets that no stretch of exposed is known for yet
        self._buckets = deque[int]()  # of each stretch of exposed that was not read yet
        self._read: list[float] = []  # times of buckets whose stretch was not read yet

    def begin(
        self, plan: BucketPlan, layout: str, samples: float, mark: float, used: Sequence[bool], exact: bool
    ) -> Pass:
        """Start a pass; its counts take the place of those of the last one."""
        self.stand(False)  # the last one may have failed
        with self.side.current():
            size = 1 + self._comm.world_size + len(used)
            if self._vector is None or self._vector.size != size:
                self._vector = self._comm.empty(size, np.dtype(np.float64))
        return DevicePass(self._comm, self, self._vector, plan, layout, samples, mark, used, exact)

    def stand(self, still: bool) -> None:
        """From here on the caller's stream has nothing to do but wait; or that is over."""
        if still != self._is_exposed:
            self._is_exposed = still
            if still:
                self.exposed.start()
            else:
                self.exposed.stop()
                self._buckets.append(self._launched)
                self._launched = 0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around the launch of a bucket, on the communication stream."""
        self.communication.start()
        try:
            yield
        finally:
            self.communication.stop()
            self._launched += 1

    def read_s(self) -> list[tuple[float, float]]:
        """Exposed, and of the communication, seconds of each pass that the device is through with, once each."""
        exposed = self.exposed.read_s()  # first: of those, every bucket is over too
        self._read += self.communication.read_s()
        lost, self.communication.lost = self.communication.lost, 0  # the oldest: device and host are far apart
        skipped, self.exposed.lost = self.exposed.lost, 0
        passes = []
        for exposed_s in [0.0] * skipped + exposed:
            count = self._buckets.popleft()
            known, lost = max(0, count - lost), max(0, lost - count)
            passes.append((exposed_s, sum(self._read[:known])))
            del self._read[:known]
        return passes[skipped:]


class DevicePass(Pass):
    """A pass on a communication stream.

    Outside of `join` every rank has data, and Σn stays on the device: `total` is NaN. The host waits for the counts
    where it has to know them: with exact=True before the first bucket, and to tell which parameters were used.
    """

    def __init__(
        self,
        comm: Communicator,
        engine: DeviceEngine,
        vector: Array,
        plan: BucketPlan,
        layout: str,
        samples: float,
        mark: float,
        used: Sequence[bool],
        exact: bool,
    ) -> None:
        self._engine, self._side, self._device_vector, self._exact = engine, engine.side, vector, exact
        self._comm, self._rank = comm, comm.rank
        self._weight: Array | None = None
        self._host_vector: np.ndarray[Any, Any] | None = None
        super().__init__(comm, plan, layout, samples, mark, used)

    def _count(self, comm: Communicator, row: list[float], layout: str) -> Work:
        vector = self._device_vector
        with self._side.current():
            if any(row[1 + comm.world_size :]):
                vector[...] = array_module(vector).asarray(np.array(row))
            else:
                vector[...] = 0
                vector[0], vector[1 + comm.rank] = row[0], row[1 + comm.rank]
            return comm.all_reduce(vector, layout=layout)

    def _read(self) -> Array:
        """The counts of all ranks on the host; waits for them."""
        if self._host_vector is None:
            with self._side.current():
                self._counting.wait(host=True)
                self._host_vector = to_host(self._device_vector)
            self.marks = self._host_vector[1 : 1 + self._world_size].tolist()
        return self._host_vector

    def counted(self, wait: bool) -> bool:
        """Whether a bucket may go out: always, but where the host has to know the counts."""
        if self.total < 0.0:
            if self._exact:
                return super().counted(wait)
            with self._side.current():
                self._counting.wait()  # ranks in memory come together here, others are ordered by the stream
            self.total, self.active_ranks = math.nan, list(range(self._world_size))
        return True

    @contextmanager
    def launching(self) -> Iterator[None]:
        """What is launched inside comes after the gradients that are complete, on the communication stream."""
        self._side.follow()
        with self._side.current(), self._engine.timed():
            yield

    def weight_in_memory(self) -> Array | None:
        """n_r / Σn as it stands in device memory, float64 (1,); None for 1.

        A rank without samples weighs 0. Where no rank has any, combined gradients have to stay: rank 0 weighs 1 then,
        and every rank gets its gradients back.
        """
        if self._weight is None and (self._exact or self._world_size > 1):
            self._weight = self._make_weight()
        return self._weight

    def _make_weight(self) -> Array:
        xp, total = array_module(self._device_vector), self._device_vector[:1]
        if self._exact:
            return xp.full(1, self.weight, np.float64)
        if self.samples > 0.0:
            return self.samples / total
        return (total == 0.0).astype(np.float64) if self._rank == 0 else xp.zeros(1, np.float64)

    def backward_over(self) -> None:
        """From here on the caller's stream has nothing to do but wait."""
        self._engine.stand(True)
        super().backward_over()

    def wait(self) -> None:
        """Let what the caller's stream does next come after every bucket."""
        with self._side.current():
            super().wait()
        with waiting(self._comm):
            self._side.join()

    def add_to(self, stats: Stats, company: Sequence[Pass] = ()) -> None:
        """Add what this pass took; times of the device are those of passes that it is through with."""
        self._engine.stand(False)
        for exposed_s, communication_s in self._engine.read_s():
            stats.exposed_s += exposed_s
            stats.hidden_s += max(0.0, communication_s - exposed_s)
        stats.backward_s += self._over_s - self._began_s
        self._add_counts(stats)
