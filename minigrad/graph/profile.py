"""How long each node takes: the host's clock on a CPU, events on a GPU, and nothing ever waits for a reading."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.backend.timer import Timer, timer_of
from minigrad.tensor import Tensor

TimerMaker = Callable[[Device], Timer]


@dataclass(frozen=True)
class NodeTime:
    """What a node's forward took.

    Attributes:
        count: Runs that were measured.
        total_s: Seconds of all of them.
    """

    count: int = 0
    total_s: float = 0.0

    @property
    def mean_s(self) -> float:
        """Seconds of one run; 0 where there was none."""
        return self.total_s / self.count if self.count else 0.0


class Profiler:
    """One timer for each node and device, read as runs are over.

    Args:
        make_timer: Makes the timer of a device.
    """

    def __init__(self, make_timer: TimerMaker = timer_of) -> None:
        self._make_timer = make_timer
        self._timers: dict[tuple[str, Device], Timer] = {}
        self._times: dict[str, NodeTime] = {}

    def fresh(self) -> Profiler:
        """One that has measured nothing, with the same kind of timers."""
        return Profiler(self._make_timer)

    @contextlib.contextmanager
    def measure(self, name: str, values: Iterable[Any]) -> Iterator[None]:
        """Measure the block as a run of a node, on the device of the first tensor that it reads."""
        device = next((value.device for value in values if isinstance(value, Tensor)), CPU)
        timer = self._timers.get((name, device))
        if timer is None:
            timer = self._timers[name, device] = self._make_timer(device)
        timer.start()
        try:
            yield
        finally:
            timer.stop()
            self._read(name, timer)

    def _read(self, name: str, timer: Timer) -> None:
        times_s = timer.read_s()
        if times_s:
            old = self._times.get(name, NodeTime())
            self._times[name] = NodeTime(old.count + len(times_s), old.total_s + sum(times_s))

    def times(self) -> dict[str, NodeTime]:
        """By node, in the order of their first runs: the runs that the device has finished by now."""
        for (name, _), timer in self._timers.items():
            self._read(name, timer)
        return {name: self._times.get(name, NodeTime()) for name, _ in self._timers}
