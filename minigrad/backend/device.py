"""Where an array lives, and which module computes on it.

CuPy is imported only when a CUDA device is first used, and only here and beside NCCL.
"""

from __future__ import annotations

import functools
import re
import socket
import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import numpy as np

from minigrad.arguments import kind_of
from minigrad.backend.capturing import refuse_in_capture
from minigrad.backend.dtypes import Array
from minigrad.errors import DeviceError, DtypeError

_SPEC = re.compile(r"(cpu)|cuda(?::(\d+))?")
_MODULES: dict[type, ModuleType] = {np.ndarray: np}  # filled on the first array of each class


class Device:
    """A place for arrays: `Device("cpu")`, `Device("cuda:1")`, `Device("cuda", 1)`; "cuda" means "cuda:0".

    Naming a device touches nothing; the first use does, and then says what is there.

    Raises:
        DeviceError: the text names no kind of device.

    Example:
        >>> Device("cpu").type, str(Device("cuda"))
        ('cpu', 'cuda:0')
    """

    __slots__ = ("type", "index", "_module", "_always")
    type: str
    index: int
    _module: ModuleType | None
    _always: _OnCpu | None

    def __new__(cls, spec: str | Device, index: int | None = None) -> Device:
        """The one object of each device: a step that asks for its device again makes none."""
        if index is not None:
            spec = "cpu" if (spec, index) == ("cpu", 0) else f"{spec}:{index}"
        if isinstance(spec, Device):
            return spec
        match = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
        if match is None:
            raise DeviceError(f"Device: expected 'cpu' or 'cuda:<index>', got {spec!r}")
        return CPU if match[1] else _gpu(int(match[2] or 0))

    def __repr__(self) -> str:
        return f"Device({str(self)!r})"

    def __str__(self) -> str:
        return "cpu" if self.type == "cpu" else f"cuda:{self.index}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (str(self),)

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Device:
        return self

    @property
    def xp(self) -> ModuleType:
        """The array module of this device: numpy, or cupy.

        Raises:
            DeviceError: the device is not there; the message lists those that are.
        """
        if self.type == "cpu":
            return np
        if self._module is None or self._module is not sys.modules.get("cupy"):  # not looked for yet
            present = available_devices()
            if self not in present:
                listed = ", ".join(str(device) for device in present)
                raise DeviceError(f"Device: expected one of the devices present ({listed}), got {self}{_why_no_cuda()}")
            self._module = load_cupy()
        return self._module

    def current(self) -> AbstractContextManager[ModuleType]:
        """Make this the current device of this thread inside the block, and hand out its array module."""
        return self._always or _OnGpu(self.xp, self.index)

    def use(self) -> None:
        """Make this the current device of this thread from now on; nothing to do for the CPU.

        A rank is on its device by this: `init`, `run` and `NcclCommunicator` call it.

        Raises:
            DeviceError: the device is not there.
        """
        if self.type != "cpu":
            self.xp.cuda.Device(self.index).use()


class _OnCpu:
    """The block of `Device.current` for the CPU, which is always current."""

    __slots__ = ()

    def __enter__(self) -> ModuleType:
        return np

    def __exit__(self, *error: object) -> None:
        pass


class _OnGpu:
    """The block of `Device.current` for a GPU: nothing is set where that is current already."""

    __slots__ = ("_module", "_index", "_outer")

    def __init__(self, module: ModuleType, index: int) -> None:
        self._module, self._index = module, index

    def __enter__(self) -> ModuleType:
        runtime = self._module.cuda.runtime
        self._outer = runtime.getDevice()
        if self._outer != self._index:
            runtime.setDevice(self._index)
        return self._module

    def __exit__(self, *error: object) -> None:
        runtime = self._module.cuda.runtime
        if runtime.getDevice() != self._outer:  # also where somebody inside the block has moved on
            runtime.setDevice(self._outer)


def _make(kind: str, index: int) -> Device:
    device = object.__new__(Device)
    device.type, device.index, device._module = kind, index, None
    device._always = _OnCpu() if kind == "cpu" else None
    return device


@functools.cache
def _gpu(index: int) -> Device:
    return _make("cuda", index)


CPU = _make("cpu", 0)


def get_default_device() -> Device:
    """The device of new tensors where none is named: the CPU."""
    return CPU


def set_default_device(device: Device | str) -> None:
    """Nothing for the CPU, which is the default; no other one can be set, since no global changes what code does.

    Raises:
        DeviceError: another device.
    """
    if Device(device) is not CPU:
        raise DeviceError(
            f"set_default_device: expected cpu, got {Device(device)}: write device= where a tensor or a layer is made, "
            "or .to(device)"
        )


def as_gpu(who: str, device: int | Device | str | None) -> Device:
    """A GPU as it is named where there is no doubt that one is meant: by a number, or not at all for the first.

    Raises:
        DeviceError: another kind of device, or a text that names none.
    """
    named = isinstance(device, (Device, str))
    found = Device(device) if named else Device("cuda", 0 if device is None else device)  # type: ignore[arg-type]
    if found.type != "cuda":
        raise DeviceError(f"{who}: expected a GPU, got {found}: write .cpu() or .to(device)")
    return found


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
    return [CPU] + [_gpu(i) for i in range(cupy.cuda.runtime.getDeviceCount())]


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
    tensor = hasattr(array, "requires_grad")
    advice = "assign array.data, or x.copy_(array) under no_grad()" if tensor else "write minigrad.tensor(...)"
    raise DtypeError(f"array_module: expected an array of NumPy or CuPy, got {kind_of(array)}: {advice}")


def device_of(array: Array) -> Device:
    """The device on which an array lives."""
    module = _MODULES.get(array.__class__) or _find_module(array)
    return CPU if module is np else _gpu(array.data.device_id)


def to_device(array: Array, device: Device) -> Array:
    """The array on another device; the same array where it is there already."""
    if device_of(array) == device:
        return array
    refuse_in_capture("", _move_in_words(array, device), _IN_STEPS)
    if device.type == "cpu":
        with device_of(array).current() as cupy:  # whose stream made it, which is the one to wait for
            return cupy.asnumpy(array)
    if device_of(array) is CPU:
        with device.current() as cupy:
            return cupy.asarray(array)
    return _across(array, device_of(array), device)


_IN_STEPS = "read results after the replay, give what changes to the step as an argument, make what stays before"


def _move_in_words(array: Array, device: Device) -> str:
    what = f"{array.dtype.name} {array.shape}"
    return f"a read of {what} on the host" if device.type == "cpu" else f"a copy of {what} to {device}"


def _across(array: Array, source: Device, target: Device) -> Array:
    """From one GPU to another, in the order that its elements have in memory.

    CuPy moves contiguous memory only, so the axes are put in the order of their strides first, and back afterwards.
    The copy runs on the target's current stream: after what the source's was given, and before what it is given next,
    which might take the memory.
    """
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    with source.current() as cupy:
        ready = cupy.cuda.Event(disable_timing=True)
        packed = cupy.ascontiguousarray(array.transpose(axes)).reshape([array.shape[axis] for axis in axes])
        ready.record()
    with target.current():
        copied = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.get_current_stream().wait_event(ready)
        moved = cupy.asarray(packed)
        copied.record()
    with source.current():
        cupy.cuda.get_current_stream().wait_event(copied)
    return moved.transpose(np.argsort(axes).tolist())


Place = tuple[int, int] | None  # a GPU, and the address of one of its streams; None for host memory


def place_of(array: Array) -> Place:
    """Where to keep what is made once, and then read beside arrays like this one: there, for the current stream.

    Another stream would read it without an edge to the one that it was copied on.
    """
    module = array_module(array)
    return None if module is np else (array.data.device_id, module.cuda.get_current_stream().ptr)


def to_place(host: np.ndarray[Any, Any], place: Place) -> Array:
    """An array that is to be kept, at its place; nobody writes into it."""
    host.flags.writeable = False
    return host if place is None else to_device(host, _gpu(place[0]))


def to_host(array: Array) -> np.ndarray[Any, Any]:
    """The array in host memory, for reading by Python code; waits for a GPU."""
    return to_device(array, CPU)  # type: ignore[no-any-return]
