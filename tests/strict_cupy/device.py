"""Two devices that are none, the current one of each thread, and the count of what would wait for a GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace

from tests.strict_cupy import nvtx, streams
from tests.strict_cupy.errors import StrictError

DEVICE_COUNT = 2


class Syncs:
    """How often the host waited for the device, where inside `forbidden()` the first time raises, and how often it sent
    something there.
    """

    def __init__(self) -> None:
        self.count = self.uploads = 0
        self._forbidden = 0

    def note(self, what: str) -> None:
        """Count one wait, in which the current stream finishes its work."""
        streams.refuse_while_capturing(what, "wait for the GPU")
        self.count += 1
        streams.get_current_stream().finish()
        if self._forbidden:
            raise StrictError(f"{what}: expected no wait for the GPU here, got one")

    def note_upload(self, what: str) -> None:
        """Count one array that went from the host to the device."""
        streams.refuse_while_capturing(what, "upload")
        self.uploads += 1

    @contextlib.contextmanager
    def forbidden(self) -> Iterator[None]:
        """Raise at the first wait inside the block."""
        self._forbidden += 1
        try:
            yield
        finally:
            self._forbidden -= 1


used: set[int] = set()  # the devices that arrays were made on, for tests, which clear it
syncs = Syncs()
no_sync = syncs.forbidden
_thread = threading.local()


def current_id() -> int:
    """The current device of this thread: 0 in a new one, as in CUDA."""
    return getattr(_thread, "device", 0)


class Device:
    """cupy.cuda.Device: names a device; current inside a with block, or after use()."""

    def __init__(self, device: int | Device | None = None) -> None:
        self.id = current_id() if device is None else int(getattr(device, "id", device))
        self._outer: list[int] = []

    def _check(self) -> None:
        if not 0 <= self.id < DEVICE_COUNT:
            raise StrictError(f"cudaErrorInvalidDevice: expected a device below {DEVICE_COUNT}, got {self.id}")

    def use(self) -> Device:
        """Make it current for this thread."""
        self._check()
        _thread.device = self.id
        return self

    def synchronize(self) -> None:
        """Wait until it is idle."""
        syncs.note("Device.synchronize")

    @property
    def pci_bus_id(self) -> str:
        """Where it sits."""
        return f"0000:{self.id:02x}:00.0"

    def __enter__(self) -> Device:
        self._outer.append(current_id())
        return self.use()

    def __exit__(self, *error: object) -> None:
        _thread.device = self._outer.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"


class CUDARuntimeError(RuntimeError):
    """cupy.cuda.runtime.CUDARuntimeError: made of a code."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


cuda = SimpleNamespace(
    Device=Device,
    Event=streams.Event,
    MemoryPool=streams.MemoryPool,
    Stream=streams.Stream,
    get_current_stream=streams.get_current_stream,
    get_elapsed_time=streams.get_elapsed_time,
    nvtx=nvtx,
    is_available=lambda: True,
    using_allocator=streams.using_allocator,
    runtime=SimpleNamespace(
        getDeviceCount=lambda: DEVICE_COUNT,
        getDevice=current_id,
        setDevice=lambda device: Device(device).use(),
        runtimeGetVersion=lambda: 13000,
        driverGetVersion=lambda: 13000,
        eventQuery=streams.event_query,
        CUDARuntimeError=CUDARuntimeError,
        getDeviceProperties=lambda device: {
            **{"uuid": bytes([device]) * 16, "name": b"Stand-in", "totalGlobalMem": 2**30},
            **{"major": 8, "minor": 6, "multiProcessorCount": 2},
        },
    ),
)
