"""Moments of a GPU, on the host's clock: events on its streams, read once the device has passed them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from minigrad.backend.device import Device
from minigrad.backend.stream import has_happened, streams_of


class DeviceMoment:
    """When a stream came to an event; who reads it waits for that.

    Args:
        event: Recorded already.
        since: An earlier moment, that is over; None for the first, whose seconds are given.
    """

    __slots__ = ("event", "seconds", "_since", "_streams")

    def __init__(self, event: Any, streams: Any, since: DeviceMoment | None, seconds: float | None = None) -> None:
        self.event, self.seconds, self._since, self._streams = event, seconds, since, streams

    def __float__(self) -> float:
        if self.seconds is None:
            assert self._since is not None and self._since.seconds is not None
            self.event.synchronize()
            elapsed_ms = float(self._streams.get_elapsed_time(self._since.event, self.event))
            self.seconds, self._since = self._since.seconds + elapsed_ms / 1e3, None
        return self.seconds


class DeviceMoments:
    """Marks moments on the current stream of a device.

    Seconds since the last moment that was read are added up, since a device tells the time between two events in
    float32: over an hour that would be 0.25 ms.

    Args:
        device: A GPU. It is waited for once, to know when it is.
        now_s: The host's clock.
    """

    def __init__(self, device: Device, now_s: Callable[[], float], streams: Any = None) -> None:
        self._streams = streams if streams is not None else streams_of(device)
        self._device, self._pending = device, deque[DeviceMoment]()
        with device.current():
            event = self._recorded()
            event.synchronize()
        self._last = DeviceMoment(event, self._streams, None, now_s())

    def mark(self) -> DeviceMoment:
        """The moment at which the current stream has done what it was given so far."""
        moment = DeviceMoment(self._recorded(), self._streams, self._last)
        self._pending.append(moment)
        return moment

    def settle(self) -> None:
        """Read the moments that are over, and forget their events; never waits."""
        with self._device.current():
            while self._pending and has_happened(self._pending[0].event, self._streams):
                moment = self._pending.popleft()
                float(moment)
                self._last = moment

    def _recorded(self) -> Any:
        event = self._streams.Event()
        event.record(self._streams.get_current_stream())
        return event
