"""How long a rank computes and waits: a communicator that times its calls, and the steps made with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.backend.timer import CudaTimer, HostTimer, Timer
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Communicator, Work
from minigrad.distributed.comm.work import WorkAround
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper
from minigrad.errors import ArgumentError

_SLOTS = 1024  # stretches that a GPU may be behind


def timer_for(comm: Communicator) -> Timer:
    """A timer for a rank's computing: the virtual clock's in a simulation, else that of its device."""
    simulated = not isinstance(comm.clock, HostClock)
    return HostTimer(comm.clock.now_s) if simulated or comm.device.type == "cpu" else CudaTimer(comm.device, _SLOTS)


class Metered(Wrapper):
    """Times what its rank waits for: calls that block, and the waits of those that do not.

    On a GPU that is the time in which the stream that waits has nothing else to do.

    Attributes:
        calls: Collectives so far.
        stretches: Waits so far; `timer` gives the seconds of each, in this order.
    """

    def __init__(self, comm: Communicator) -> None:
        super().__init__(comm)
        self.timer = timer_for(comm)
        self.calls = self.stretches = 0
        self._is_waiting = False

    def around(self, call: Call, arrays: Sequence[Array], make: Make) -> Any:
        """Make the call; time it where it blocks, else its wait."""
        self.calls += 1
        if arrays:
            return _MeteredWork(make(), self)
        with self.waiting():
            return make()

    def weighted_all_reduce(self, array: Array, weight: Array | None = None, layout: str = "") -> Work:
        """Weight and sum as the inner communicator does; its wait is timed."""
        self.calls += 1
        return _MeteredWork(self.inner.weighted_all_reduce(array, weight, layout), self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait of the caller's stream."""
        if self._is_waiting:
            yield
            return
        self.clock.progress(1.0)  # a rank that waits has computed
        self._is_waiting = True
        self.timer.start()
        try:
            yield
        finally:
            self.timer.stop()
            self.stretches += 1
            self._is_waiting = False


class _MeteredWork(WorkAround):
    """A collective under way whose wait is timed."""

    def __init__(self, work: Work, meter: Metered) -> None:
        super().__init__(work)
        self._meter = meter

    def wait(self, host: bool = False) -> None:
        """Wait, and count it."""
        with self._meter.waiting():
            self.inner.wait(host)


@dataclass
class StepTime:
    """A step of one rank, whose times may still be on their way from the device.

    Attributes:
        size: What it worked on, in the unit of who measures; None where it failed.
        first_wait, end_wait: Numbers of the stretches of waiting in it.
        whole_s: From its start to its end; None until the device has passed it.
        waited_s: Of the waits read so far.
    """

    size: int | None
    first_wait: int
    end_wait: int = 0
    whole_s: float | None = None
    waited_s: float = 0.0

    @property
    def computed_s(self) -> float:
        """All of it less the waiting."""
        return (self.whole_s or 0.0) - self.waited_s


class StepTimes:
    """How long a rank computes and waits in each of its steps.

    Args:
        who: Named in errors.
        comm: What the collectives of a step have to go through.
    """

    def __init__(self, who: str, comm: Metered) -> None:
        self._who, self._comm, self._timer = who, comm, timer_for(comm)
        self._open: deque[StepTime] = deque()  # not read yet, the oldest first
        self._waits_read = 0

    @contextmanager
    def measure(self, size: int) -> Iterator[None]:
        """Around a step; one that raises is left out.

        Raises:
            ArgumentError: with several ranks, where no collective of the step went through the communicator.
        """
        comm, calls = self._comm, self._comm.calls
        step = StepTime(None, comm.stretches)
        self._timer.start()
        try:
            yield
            step.size = size
        finally:
            self._timer.stop()
            step.end_wait = comm.stretches
            self._open.append(step)
        if comm.world_size > 1 and comm.calls == calls:
            raise ArgumentError(
                f"rank {comm.rank}: {self._who}: expected the step's collectives to go through its comm, got none, "
                "so waiting would count as computing: make DDP with that comm"
            )

    def read(self) -> list[StepTime]:
        """The steps that are over and were not read before, the oldest first; never waits."""
        for seconds in self._timer.read_s():
            next(step for step in self._open if step.whole_s is None).whole_s = seconds
        for seconds in self._comm.timer.read_s():
            for step in self._open:
                if step.first_wait <= self._waits_read < step.end_wait:
                    step.waited_s += seconds
            self._waits_read += 1
        done = []
        while self._open and self._open[0].whole_s is not None and self._waits_read >= self._open[0].end_wait:
            done.append(self._open.popleft())
        return [step for step in done if step.size is not None]
