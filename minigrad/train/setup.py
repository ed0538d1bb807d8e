"""From options to decisions: which devices, whether El Che is on, and what to tell people about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from minigrad.backend.device import Device, available_devices
from minigrad.distributed.config import DdpConfig
from minigrad.distributed.replicas.devices import DeviceGroup, LocalDevices
from minigrad.errors import ArgumentError
from minigrad.graph.module import GraphModule

Builder = Callable[[Device], GraphModule]
Devices = Sequence[Device | str] | DeviceGroup | None


def group_of(devices: Devices, home: Device) -> DeviceGroup:
    """The devices to use: those named; else every GPU for a graph that lives on one, its own first; else its own."""
    if devices is None:
        gpus = [] if home.type == "cpu" else [device for device in available_devices() if device.type != "cpu"]
        return LocalDevices([home, *(gpu for gpu in gpus if gpu != home)])
    if isinstance(devices, DeviceGroup):
        return devices
    return LocalDevices(devices)


def decide_el_che(group: DeviceGroup, config: DdpConfig, el_che: bool | None) -> tuple[bool, str]:
    """Whether El Che is on, and why: None means on where the devices differ.

    Raises:
        ArgumentError: options that contradict each other.
    """
    if el_che is not None and el_che is not True and el_che is not False:
        raise ArgumentError(f"el_che: expected None, True or False, got {el_che!r}")
    tuned = config.overhead_target is not None or bool(config.max_anchor)
    if el_che is False and tuned:
        raise ArgumentError("el_che: expected no overhead_target and no max_anchor without El Che, got el_che=False")
    if el_che is True and config.max_anchor == 0:
        raise ArgumentError("el_che: expected max_anchor of None or >= 1 with el_che=True, got 0, which turns it off")
    dividing = [name for name in ("min_ratio", "strategy") if getattr(config, name) is not None]
    if el_che is True and dividing:
        raise ArgumentError(f"el_che: expected no {dividing[0]} with el_che=True, got one: batches stay whole then")
    if len(group.devices) == 1:
        return False, "there is one device"
    if el_che is False or config.max_anchor == 0:
        return False, "it was turned off"
    if el_che is True:
        return True, "it was turned on"
    if config.strategy is not None:
        return False, "a strategy divides batches"
    differ = len(set(group.models)) > 1
    return differ, "the devices differ" if differ else "the devices are alike"


def unused_options(on: bool, config: DdpConfig, world_size: int) -> list[str]:
    """Options that make no difference here."""
    names = ["min_ratio"] if on else ["overhead_target", "max_anchor"]
    if world_size == 1:
        names += ["min_ratio", "speed_hint", "strategy"]
    return [name for name in names if getattr(config, name)]


def idle_gpus(group: DeviceGroup) -> list[str]:
    """The GPUs of this machine where the graph was built on its CPU, and what would use them."""
    if any(device.type != "cpu" for device in group.devices):
        return []
    gpus = [str(device) for device in available_devices() if device.type != "cpu"]
    return [f"{', '.join(gpus)} (build the graph on {gpus[0]}, or pass devices)"] if gpus else []


def summary(group: DeviceGroup, config: DdpConfig, el_che: bool | None) -> str:
    """A line for people: the devices, whether El Che is on and why, and the options that make no difference."""
    on, reason = decide_el_che(group, config, el_che)
    number = len(group.devices)
    kinds = [(len(list(same)), *kind) for kind, same in groupby(zip(map(str, group.devices), group.models))]
    listed = [f"{f'{n} x ' if n > 1 else ''}{device}: {model}" for n, device, model in kinds]
    unused = unused_options(on, config, number) + idle_gpus(group)
    parts = [f"{number} device{'s' * (number > 1)}", *listed, f"El Che is {'on' if on else 'off'}: {reason}"]
    return " | ".join(parts + ([f"not used: {', '.join(unused)}"] if unused else []))
