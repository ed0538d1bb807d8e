"""The devices that one thread drives: where replicas live, how they reach each other, and what time is on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from minigrad.backend.device import Device, device_model
from minigrad.backend.dtypes import Array
from minigrad.backend.timer import Timer, timer_of
from minigrad.distributed import collectives as in_memory
from minigrad.distributed.collectives import ReduceOp
from minigrad.distributed.comm.clock import HostClock
from minigrad.distributed.comm.protocol import Clock
from minigrad.distributed.replicas.nccl_devices import NcclDevices
from minigrad.errors import ArgumentError


class ListCollectives(Protocol):
    """Collectives of which one thread is all ranks; the module `minigrad.distributed.collectives` is one."""

    def all_reduce(self, arrays: Sequence[Array], op: ReduceOp = ReduceOp.SUM) -> None:
        """Overwrite every array by the reduction of all of them."""

    def broadcast(self, arrays: Sequence[Array], root: int) -> None:
        """Overwrite every array by the root's."""


@runtime_checkable
class DeviceGroup(Protocol):
    """What a Graph needs to know of its devices; rank r is the r-th. Devices of equal `models` are equally fast."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Where replicas live."""

    @property
    def models(self) -> tuple[str, ...]:
        """What kind of device each is."""

    @property
    def collectives(self) -> ListCollectives:
        """How gradients are combined."""

    @property
    def clocks(self) -> Sequence[Clock]:
        """What time is on each."""

    def timer(self, rank: int) -> Timer:
        """A new timer of one device's work."""

    def event(self, kind: str, **fields: Any) -> None:
        """Take note of a decision."""


class LocalDevices:
    """Devices of this machine: several GPUs, or the CPU any number of times.

    Args:
        devices: At least one; each GPU once.
        collectives: By default in memory for one kind of place, and NCCL for several GPUs.
        make_timer: Makes the timer of a device: by default the host's clock for the CPU, events for a GPU.

    Raises:
        ArgumentError: no device, or the CPU among GPUs, whose gradients no collective combines.
        MissingPackageError: several GPUs without NCCL.

    Example:
        >>> LocalDevices(["cpu", "cpu"]).models
        ('CPU', 'CPU')
    """

    def __init__(
        self,
        devices: Sequence[Device | str],
        *,
        collectives: ListCollectives | None = None,
        make_timer: Callable[[Device], Timer] = timer_of,
    ) -> None:
        if not isinstance(devices, Sequence) or isinstance(devices, str) or not devices:
            raise ArgumentError(f"devices: expected a list of at least one device, got {devices!r}")
        self.devices = tuple(Device(device) for device in devices)
        if collectives is None and len({device.type for device in self.devices}) > 1:
            listed = ", ".join(map(str, self.devices))
            raise ArgumentError(f"devices: expected GPUs alone, or the CPU alone, got {listed}: name those of one kind")
        self.models = tuple(device_model(device) for device in self.devices)
        self.clocks = (HostClock(),) * len(self.devices)
        self._make_timer = make_timer
        self.collectives = self._default_collectives() if collectives is None else collectives

    def _default_collectives(self) -> ListCollectives:
        several = len(self.devices) > 1 and self.devices[0].type != "cpu"
        return NcclDevices(self.devices) if several else in_memory

    def timer(self, rank: int) -> Timer:
        """A timer of what one device does."""
        return self._make_timer(self.devices[rank])

    def event(self, kind: str, **fields: Any) -> None:
        """Nobody listens."""
