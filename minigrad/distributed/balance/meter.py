"""How long a rank waits: a communicator that times its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minigrad.backend.dtypes import Array
from minigrad.backend.timer import CudaTimer, HostTimer, Timer
from minigrad.distributed.comm.base import Communicator, HostClock, Work
from minigrad.distributed.comm.wrappers import Call, Make, Wrapper


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


class _MeteredWork:
    """A collective under way whose wait is timed."""

    def __init__(self, work: Work, meter: Metered) -> None:
        self._work, self._meter = work, meter

    def done(self) -> bool:
        """Whether the result is there."""
        return self._work.done()

    def wait(self, host: bool = False) -> None:
        """Wait, and count it."""
        with self._meter.waiting():
            self._work.wait(host)
