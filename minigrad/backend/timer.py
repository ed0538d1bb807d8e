"""Timers: how long a stretch of a step took, on the device that did the work, without making the host wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from minigrad.arguments import as_integer
from minigrad.backend.capturing import current_capture
from minigrad.backend.device import Device
from minigrad.backend.stream import has_happened, streams_of
from minigrad.errors import ArgumentError

_SLOTS = 64


class Timer(Protocol):
    """Measures stretches of work, one after the other."""

    def start(self) -> None:
        """A stretch begins with what the caller does next."""

    def stop(self) -> None:
        """It ends with what the caller did last."""

    def read_s(self) -> list[float]:
        """Seconds of each stretch that is over and was not read before, the oldest first; never waits."""


def timer_of(device: Device) -> Timer:
    """A timer for work on a device."""
    return HostTimer() if device.type == "cpu" else CudaTimer(device)


class HostTimer:
    """A timer for the CPU, which does its work while the caller waits.

    Args:
        now_s: The clock, in seconds.

    Example:
        >>> ticks = iter([1.0, 3.5])
        >>> timer = HostTimer(lambda: next(ticks))
        >>> timer.start(); timer.stop(); timer.read_s()
        [2.5]
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._started_s: float | None = None
        self._read: list[float] = []

    def start(self) -> None:
        """A stretch begins now.

        Raises:
            ArgumentError: one is under way.
        """
        _check_order("start", self._started_s is not None)
        self._started_s = self._now_s()

    def stop(self) -> None:
        """It ends now.

        Raises:
            ArgumentError: none is under way.
        """
        _check_order("stop", self._started_s is not None)
        self._read.append(self._now_s() - (self._started_s or 0.0))
        self._started_s = None

    def read_s(self) -> list[float]:
        """Seconds of each stretch since the last reading."""
        read, self._read = self._read, []
        return read


class CudaTimer:
    """A timer for a GPU: events on the caller's stream, read when the device has passed them.

    The events form a ring. Where nobody reads for so long that it is full, the oldest stretch is lost and counted.
    While a step is captured nothing is timed, for an event in a graph can't be read.

    Args:
        device: Where the work runs.
        slots: Stretches that can be under way or unread.
        streams: What `streams_of(device)` gives, or a stand-in.

    Attributes:
        lost: Stretches that were never read.
    """

    def __init__(self, device: Device, slots: int = _SLOTS, streams: Any = None) -> None:
        as_integer("CudaTimer", "slots", slots, 1)
        self._device = device
        self._streams = streams if streams is not None else streams_of(device)
        with device.current():
            self._ring = [(self._streams.Event(), self._streams.Event()) for _ in range(slots)]
        self._oldest, self._count, self._running = 0, 0, False
        self.lost = 0

    def start(self) -> None:
        """A stretch begins with what the caller's stream is given next.

        Raises:
            ArgumentError: one is under way.
        """
        if current_capture() is not None:
            return
        _check_order("start", self._running)
        if self._count == len(self._ring):
            self._drop_oldest()
            self.lost += 1
        self._record(0)
        self._running = True

    def stop(self) -> None:
        """It ends with what the caller's stream was given last.

        Raises:
            ArgumentError: none is under way.
        """
        if current_capture() is not None:
            return
        _check_order("stop", self._running)
        self._record(1)
        self._count += 1
        self._running = False

    def read_s(self) -> list[float]:
        """Seconds of each stretch that the device has passed and that was not read before."""
        read: list[float] = []
        if current_capture() is not None:
            return read
        with self._device.current():
            while self._count and has_happened(self._ring[self._oldest][1], self._streams):
                begin, end = self._ring[self._oldest]
                read.append(float(self._streams.get_elapsed_time(begin, end)) / 1e3)
                self._drop_oldest()
        return read

    def _record(self, which: int) -> None:
        slot = (self._oldest + self._count) % len(self._ring)
        with self._device.current():
            self._ring[slot][which].record(self._streams.get_current_stream())

    def _drop_oldest(self) -> None:
        self._oldest = (self._oldest + 1) % len(self._ring)
        self._count -= 1


def _check_order(who: str, running: bool) -> None:
    if (who == "start") == running:
        found, wanted = ("one that runs", "stop") if running else ("none", "start")
        raise ArgumentError(f"timer.{who}: expected a stretch {_STATE[who]}, got {found}: call {wanted}() first")


_STATE = {"start": "that is over", "stop": "under way"}
