"""The kind of device that computes fastest here, by the names of `torch.accelerator`: cuda, or none."""

import typing

from minigrad.absent import absent as _absent
from minigrad.backend.device import Device
from minigrad.cuda.facts import (
    current_device as current_device_index,
    device_count as device_count,
    empty_cache as empty_cache,
    is_available as is_available,
    synchronize as synchronize,
)

__all__ = [
    "current_accelerator", "current_device_index", "device_count", "empty_cache", "is_available", "synchronize",
]


def current_accelerator(check_available: bool = False) -> Device | None:
    """The GPU that is current for this thread; None where there is none.

    Args:
        check_available: Taken: a device that is not there is never named.
    """
    return Device("cuda", current_device_index()) if is_available() else None


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
