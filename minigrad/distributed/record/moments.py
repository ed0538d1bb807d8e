"""Moments of a GPU, on the host's clock: events on its streams, read once the device has passed them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from minigrad.backend.capturing import refuse_in_capture
from minigrad.backend.device import Device
from minigrad.backend.stream import has_happened, streams_of
from minigrad.distributed.record.track import Track


class DeviceMoment:
    """When a stream came to an event; who reads it waits for that.

    Args:
        event: Recorded already; it is forgotten once it was read.
        since: An event that is over, and when that was, in seconds.
    """

    __slots__ = ("event", "seconds", "_since", "_streams")

    def __init__(self, event: Any, since: tuple[Any, float], streams: Any) -> None:
        self.event, self.seconds, self._streams = event, math.nan, streams
        self._since: tuple[Any, float] | None = since

    def __float__(self) -> float:
        if self._since is not None:
            self.event.synchronize()
        return self.read()

    def read(self) -> float:
        """The same, where the device has passed it."""
        if self._since is not None:
            before, before_s = self._since
            self.seconds = before_s + float(self._streams.get_elapsed_time(before, self.event)) / 1e3
            self.event = self._since = None
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
        self._last = event, now_s()

    @staticmethod
    def of(track: Track, device: Device) -> DeviceMoments | None:
        """Let the moments of a track be those of a GPU, from now on; None on the host."""
        if device.type == "cpu":
            return None
        moments = DeviceMoments(device, track.now_s)
        track.mark = moments.mark
        return moments

    def mark(self) -> DeviceMoment:
        """The moment at which the current stream has done what it was given so far."""
        refuse_in_capture("timeline", "a moment to be marked in it", "train without a timeline what is captured")
        moment = DeviceMoment(self._recorded(), self._last, self._streams)
        self._pending.append(moment)
        return moment

    def settle(self) -> None:
        """Read the moments that are over, and forget their events; never waits."""
        with self._device.current():
            while self._pending:
                if self._pending[0].event is not None and not has_happened(self._pending[0].event, self._streams):
                    return
                moment = self._pending.popleft()
                event = moment.event  # None where it was read already
                self._last = (event, moment.read()) if event is not None else self._last

    def _recorded(self) -> Any:
        event = self._streams.Event()
        event.record(self._streams.get_current_stream())
        return event
