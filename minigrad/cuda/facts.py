"""Which GPUs there are, what they are, and how much of their memory is taken."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

from minigrad.backend.device import CPU, Device, as_gpu, available_devices, load_cupy
from minigrad.backend.random import manual_seed
from minigrad.errors import DeviceError

__all__ = [
    "DeviceProperties", "current_device", "device_count", "empty_cache", "get_device_capability", "get_device_name",
    "get_device_properties", "is_available", "is_bf16_supported", "is_initialized", "manual_seed_all",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "set_device", "synchronize",
]

DeviceLike = Device | str | int | None


class DeviceProperties(NamedTuple):
    """What a GPU is; memory in bytes."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int


def is_available() -> bool:
    """Whether there is a GPU, and CuPy to use it."""
    return len(available_devices()) > 1


def device_count() -> int:
    """How many GPUs are visible."""
    return len(available_devices()) - 1


def is_initialized() -> bool:
    """Whether there is a GPU, which is ready at its first use."""
    return is_available()


def current_device() -> int:
    """The index of the GPU that is current for this thread.

    Raises:
        DeviceError: there is none.
    """
    return int(_present("current_device").cuda.Device().id)


def _present(who: str) -> ModuleType:
    if not is_available():
        raise DeviceError(f"cuda.{who}: expected a GPU, got {', '.join(map(str, available_devices()))} alone")
    return load_cupy()


def _chosen(who: str, device: DeviceLike) -> Device:
    """A GPU that is there; the current one by default."""
    return as_gpu(f"cuda.{who}", current_device() if device is None else device)


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    """Name, compute capability, memory and multiprocessors of a GPU, by default of the current one.

    Raises:
        DeviceError: it is not there.
    """
    chosen = _chosen("get_device_properties", device)
    with chosen.current() as cupy:
        facts = cupy.cuda.runtime.getDeviceProperties(chosen.index)
    name = facts["name"]
    return DeviceProperties(
        name.decode() if isinstance(name, bytes) else str(name),
        *(int(facts[key]) for key in ("major", "minor", "totalGlobalMem", "multiProcessorCount")),
    )


def get_device_name(device: DeviceLike = None) -> str:
    """The model of a GPU, by default of the current one.

    Raises:
        DeviceError: it is not there.
    """
    return get_device_properties(device).name


def get_device_capability(device: DeviceLike = None) -> tuple[int, int]:
    """The compute capability of a GPU, by default of the current one.

    Raises:
        DeviceError: it is not there.
    """
    facts = get_device_properties(device)
    return facts.major, facts.minor


def is_bf16_supported() -> bool:
    """Whether the current GPU computes in bfloat16 by itself; False without a GPU."""
    return is_available() and get_device_capability() >= (8, 0)


def synchronize(device: DeviceLike = None) -> None:
    """Wait until a GPU has done all that it was given, by default the current one.

    Raises:
        DeviceError: it is not there.
    """
    with _chosen("synchronize", device).current() as cupy:
        cupy.cuda.Device().synchronize()


def set_device(device: DeviceLike) -> None:
    """Nothing where that GPU is current already; it is not made so here.

    Raises:
        DeviceError: another one is current; the message says what makes a device current.
    """
    wanted = _chosen("set_device", device)
    if wanted.index != current_device():
        raise DeviceError(
            f"cuda.set_device: expected cuda:{current_device()}, which is current for this thread, got {wanted}: "
            "distributed.init() makes a rank's GPU current; elsewhere write with device.current():, "
            "and .to(device) for what is to lie there"
        )


def manual_seed_all(seed: int) -> None:
    """`minigrad.manual_seed`: all that is random is drawn from its streams, whatever the device."""
    manual_seed(seed)


# ------------------------------------------------------------------------------------------------------- memory


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of a GPU that arrays hold, by default of the current one; 0 without a GPU."""
    return _of_pool("memory_allocated", device, "used_bytes")


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of a GPU that arrays hold or that are kept for the next ones; 0 without a GPU."""
    return _of_pool("memory_reserved", device, "total_bytes")


def max_memory_reserved(device: DeviceLike = None) -> int:
    """`memory_reserved`, which only `empty_cache` makes smaller: the most that was needed since then."""
    return _of_pool("max_memory_reserved", device, "total_bytes")


def _of_pool(who: str, device: DeviceLike, count: str) -> int:
    if not is_available():
        return 0
    with _chosen(who, device).current() as cupy:
        return int(getattr(cupy.get_default_memory_pool(), count)())


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Bytes of a GPU that are free, and all of them.

    Raises:
        DeviceError: it is not there.
    """
    with _chosen("mem_get_info", device).current() as cupy:
        free, total = cupy.cuda.runtime.memGetInfo()
    return int(free), int(total)


def empty_cache() -> None:
    """Give the memory that no array holds back to the GPUs; nothing without one."""
    for device in available_devices():
        if device is not CPU:
            with device.current() as cupy:
                cupy.get_default_memory_pool().free_all_blocks()
