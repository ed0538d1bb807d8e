"""How long each device computes in a pass, forward and backward, without making the host wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from minigrad.autograd.tape import Node, lend
from minigrad.backend.dtypes import Array
from minigrad.backend.timer import Timer
from minigrad.distributed.replicas.notes import ReplicaNotes
from minigrad.stamp import shared_stamp
from minigrad.tensor import Tensor, record


@dataclass
class PassTime:
    """One device's part of a pass.

    Attributes:
        samples: It computed on.
        batches: In which they came.
        seconds: Of the stretches read so far.
    """

    samples: int
    batches: int = 1
    seconds: float = 0.0
    _open: int = 0  # stretches not read yet


class Stopwatch:
    """A timer for each device, whose readings are put together by pass; those of a GPU come when it has got there.

    Args:
        timers: One a device.
        notes: Get each stretch too.

    Attributes:
        samples: Those of each device in the pass that began last; empty before the first.
    """

    def __init__(self, timers: Sequence[Timer], notes: ReplicaNotes | None = None) -> None:
        self._timers, self._notes, self._kind = timers, notes, ""
        self._passes: list[deque[PassTime]] = [deque() for _ in timers]
        self._running: int | None = None
        self.samples: tuple[int, ...] = ()

    def begin(self, samples: Sequence[int], batches: Sequence[int] | None = None) -> None:
        """A new pass, with these samples on each device; a device without any is not timed."""
        self.samples = tuple(samples)
        for passes, n, count in zip(self._passes, samples, batches or [1] * len(samples)):
            passes.append(PassTime(n, count))

    def switch(self, rank: int | None, kind: str = "backward") -> None:
        """From now on a device computes, or none; the one that did so far has stopped.

        Args:
            kind: "forward", "backward", or "compute" for both.
        """
        if self._running is not None:
            self._timers[self._running].stop()
            if self._notes is not None:
                self._notes.stopped(self._running, self._kind)
            self._passes[self._running][-1]._open += 1
            self._read(self._running)
        self._running = rank
        if rank is not None:
            if self._notes is not None:
                self._notes.started(rank)
                self._kind = kind
            self._timers[rank].start()

    def _read(self, rank: int) -> None:
        for seconds in self._timers[rank].read_s():
            one = next(one for one in self._passes[rank] if one._open)
            one.seconds += seconds
            one._open -= 1

    def times(self) -> list[PassTime | None]:
        """By device: the last pass that is over and was read whole, and was not told before; None where there is none.

        Passes before that are forgotten.
        """
        return [self._last(rank) for rank in range(len(self._timers))]

    def _last(self, rank: int) -> PassTime | None:
        self._read(rank)
        passes, found = self._passes[rank], None
        while passes and not passes[0]._open:
            one = passes.popleft()
            found = one if one.samples and one.seconds > 0.0 else found
        return found


class SyncWatch:
    """How long reductions take once all devices have come: on the last to come, which waits for none.

    Args:
        timers: One a device.
    """

    def __init__(self, timers: Sequence[Timer]) -> None:
        self._timers = timers
        self._read: list[deque[float]] = [deque() for _ in timers]
        self._last_s = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure what is done inside the block."""
        for timer in self._timers:
            timer.start()
        try:
            yield
        finally:
            for timer in self._timers:
                timer.stop()

    def last_s(self) -> float:
        """Seconds of the last measurement that all devices have passed; 0 before the first."""
        for timer, read in zip(self._timers, self._read):
            read.extend(timer.read_s())
        while all(self._read):
            self._last_s = min(read.popleft() for read in self._read)
        return self._last_s


def boundary(x: Tensor, passed: Callable[[], None]) -> Tensor:
    """A mark on the tape that takes the place of x: passed() is called when backward comes by."""
    mark = record(x.data, _boundary_backward, (x,), (passed,))
    mark.stamp = shared_stamp(x)  # the memory is that of x, but this is no view of it: x is not used any more
    return mark


def _boundary_backward(node: Node, grad: Array) -> None:
    node.saved[0]()
    lend(node.inputs[0], grad)
