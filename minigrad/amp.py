"""Mixed precision under the names of `torch.amp` and `torch.cuda.amp`: `autocast`, and a scaler of the loss."""

from __future__ import annotations

import typing

from minigrad import optim
from minigrad.absent import absent as _absent
from minigrad.backend.device import Device
from minigrad.ops.precision import autocast as autocast

__all__ = ["GradScaler", "autocast"]


def GradScaler(
    device: Device | str = "cuda",
    init_scale: float = 65536.0,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
    enabled: bool = True,
) -> optim.GradScaler:
    """An `optim.GradScaler` from the arguments of `torch.amp`, where a device comes first.

    Args:
        device: Where the loss will be. The scaler finds that out by itself, so any device will do.

    Raises:
        ArgumentError: a value out of range. DeviceError: a text that names no device.
    """
    Device(device)
    return optim.GradScaler(init_scale, growth_factor, backoff_factor, growth_interval, enabled)


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> typing.Any:
        raise _absent(__name__, name)
