"""Where an array lives, and which module computes on it.

CuPy is imported only when a CUDA device is first used, and only here and beside NCCL.
"""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.errors import DeviceError, DtypeError

_SPEC = re.compile(r"(cpu)|cuda(?::(\d+))?")
_MODULES: dict[type, ModuleType] = {np.ndarray: np}  # filled on the first array of each class


class Device:
    """A place for arrays: `Device("cpu")`, `Device("cuda:1")`; "cuda" means "cuda:0".

    Naming a device touches nothing; the first use does, and then says what is there.

    Raises:
        DeviceError: the text names no kind of device.

    Example:
        >>> Device("cpu").type, str(Device("cuda"))
        ('cpu', 'cuda:0')
    """

    __slots__ = ("type", "index")
    type: str
    index: int

    def __init__(self, spec: str | Device) -> None:
        if isinstance(spec, Device):
            self.type, self.index = spec.type, spec.index
            return
        match = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
        if match is None:
            raise DeviceError(f"Device: expected 'cpu' or 'cuda:<index>', got {spec!r}")
        self.type = "cpu" if match[1] else "cuda"
        self.index = int(match[2] or 0)

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __str__(self) -> str:
        return "cpu" if self.type == "cpu" else f"cuda:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    @property
    def xp(self) -> ModuleType:
        """The array module of this device: numpy, or cupy.

        Raises:
            DeviceError: the device is not there; the message lists those that are.
        """
        if self.type == "cpu":
            return np
        present = available_devices()
        if self not in present:
            listed = ", ".join(str(device) for device in present)
            raise DeviceError(f"Device: expected one of the devices present ({listed}), got {self}{_why_no_cuda()}")
        return load_cupy()

    @contextlib.contextmanager
    def current(self) -> Iterator[ModuleType]:
        """Make this the current device of this thread inside the block, and hand out its array module."""
        xp = self.xp
        if self.type == "cpu":
            yield xp
        else:
            with xp.cuda.Device(self.index):
                yield xp


CPU = Device("cpu")


def load_cupy() -> ModuleType:
    """CuPy, imported at the first call.

    Raises:
        DeviceError: CuPy is not installed. Any other failure of its import is CuPy's own error.
    """
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise
        raise DeviceError(
            "cuda: expected CuPy, which is not installed: pip install 'minigrad[cuda12]' or 'minigrad[cuda13]'"
        ) from error
    return cupy  # type: ignore[no-any-return]


def available_devices() -> list[Device]:
    """The devices of this machine: the CPU, then each CUDA device that CuPy sees."""
    try:
        cupy = load_cupy()
    except DeviceError:
        return [CPU]
    if not cupy.cuda.is_available():
        return [CPU]
    return [CPU] + [Device(f"cuda:{i}") for i in range(cupy.cuda.runtime.getDeviceCount())]


def _why_no_cuda() -> str:
    try:
        return "" if load_cupy().cuda.is_available() else ": CuPy is installed but finds no CUDA driver or device"
    except DeviceError as error:
        return f": {error}"


def device_identity(device: Device) -> str:
    """What tells a GPU from every other one, on any host; empty for the CPU."""
    if device.type == "cpu":
        return ""
    with device.current() as cupy:
        uuid = cupy.cuda.runtime.getDeviceProperties(device.index).get("uuid")
        place = f"{socket.gethostname()}/{cupy.cuda.Device(device.index).pci_bus_id}"
    return f"GPU {uuid[:16].hex()}" if uuid else f"GPU {place}"


def device_model(device: Device) -> str:
    """What kind of device it is, for people: its model and memory; devices of one model have equal ones."""
    if device.type == "cpu":
        return "CPU"
    with device.current() as cupy:
        facts = cupy.cuda.runtime.getDeviceProperties(device.index)
    name, nbytes = facts.get("name", b"GPU"), facts.get("totalGlobalMem", 0)
    text = name.decode() if isinstance(name, bytes) else str(name)
    return f"{text.removeprefix('NVIDIA ')} ({nbytes / 2**30:.0f} GiB)" if nbytes else text


def array_module(array: Array) -> ModuleType:
    """The module, numpy or cupy, that computes on an array.

    Raises:
        DtypeError: the object is no array.
    """
    module = _MODULES.get(array.__class__)
    return module if module is not None else _find_module(array)


def _find_module(array: Array) -> ModuleType:
    kind = array.__class__
    if kind.__module__.split(".")[0] == "cupy":
        module = _MODULES[kind] = load_cupy()
        return module
    if isinstance(array, (np.ndarray, np.generic)):
        return np
    raise DtypeError(f"array_module: expected an array of NumPy or CuPy, got {kind.__name__}")


def device_of(array: Array) -> Device:
    """The device on which an array lives."""
    return CPU if array_module(array) is np else Device(f"cuda:{array.device.id}")


def to_device(array: Array, device: Device) -> Array:
    """The array on another device; the same array where it is there already."""
    if device_of(array) == device:
        return array
    if device.type == "cpu":
        return array_module(array).asnumpy(array)
    with device.current() as cupy:
        return cupy.asarray(array)


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """The array in host memory, for reading by Python code; waits for a GPU."""
    return to_device(array, CPU)  # type: ignore[no-any-return]
