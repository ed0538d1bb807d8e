"""Streams and events: CuPy's on a GPU, and a twin for the CPU on which everything has happened at once.

A stream is a queue of work for a device; two streams run side by side unless an event orders them. An *edge* from A
to B means: what B is given from now on waits for what A was given so far. It costs the host nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from minigrad.backend.capturing import refuse_in_capture
from minigrad.backend.device import Device
from minigrad.errors import DeviceError

_NOT_READY = 600  # cudaErrorNotReady
COMM_PRIORITY = -1  # lower is served first; CUDA takes the nearest that the card has


class HostEvent:
    """cupy.cuda.Event for the CPU."""

    done = True

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        pass

    def record(self, stream: HostStream | None = None) -> None:
        """Nothing is left to be done."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostStream:
    """cupy.cuda.Stream for the CPU."""

    ptr = 0

    def __init__(self, null: bool = False, non_blocking: bool = False, priority: int | None = None) -> None:
        pass

    def record(self, event: HostEvent | None = None) -> HostEvent:
        """An event that has happened."""
        return event if event is not None else HostEvent()

    def wait_event(self, event: HostEvent) -> None:
        """It has happened."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def __enter__(self) -> HostStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class HostStreams:
    """The part of cupy.cuda that concerns streams, for the CPU."""

    Event = HostEvent
    Stream = HostStream
    get_current_stream = HostStream


def streams_of(device: Device) -> Any:
    """What has Stream, Event, get_current_stream and get_elapsed_time for a device: cupy.cuda, or its twin.

    Raises:
        DeviceError: the device is not there.
    """
    return HostStreams if device.type == "cpu" else device.xp.cuda


def has_happened(event: Any, streams: Any) -> bool:
    """Whether the device has passed an event; never waits.

    CuPy's own `done` takes an error of the device for "not yet": one would wait for ever, and blame another rank.

    Args:
        streams: What `streams_of(device)` gives, or a stand-in.

    Raises:
        DeviceError: the device has failed, by whatever ran on it before.
    """
    refuse_in_capture("", "a look whether the GPU has passed an event", "wait for it when the step is replayed")
    if event.done:
        return True
    code = streams.runtime.eventQuery(event.ptr)
    if code not in (0, _NOT_READY):
        error = streams.runtime.CUDARuntimeError(code)
        raise DeviceError(f"event: expected a device that works, got {error}: see what it ran before")
    return bool(code == 0)


class CommStream:
    """A stream beside the caller's, served before it, and the edges between the two. Made once and kept for life.

    Args:
        device: Where it runs.
        streams: What `streams_of(device)` gives, or a stand-in.
        priority: 0 serves it like the caller's.
    """

    def __init__(self, device: Device, streams: Any = None, priority: int = COMM_PRIORITY) -> None:
        self.device = device
        self._streams = streams if streams is not None else streams_of(device)
        with device.current():
            self._stream = self._streams.Stream(non_blocking=True, priority=priority)
            # one event for each direction: a wait keeps to the record before it, so both can be recorded again
            self._out = self._streams.Event(disable_timing=True)
            self._back = self._streams.Event(disable_timing=True)

    def follow(self) -> None:
        """An edge from the caller's stream to this one."""
        with self.device.current():
            self._out.record(self._streams.get_current_stream())
            self._stream.wait_event(self._out)

    def join(self) -> None:
        """An edge from this stream to the caller's."""
        with self.device.current():
            self._back.record(self._stream)
            self._streams.get_current_stream().wait_event(self._back)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make it the current stream of this thread inside the block, and its device the current one."""
        with self.device.current(), self._stream:
            yield
