"""What a module holds, loaded and moved: checked as a whole first, then changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import check_switch
from minigrad.backend.device import Device, device_of, to_device
from minigrad.backend.dtypes import Array, is_float
from minigrad.errors import DtypeError, LayoutError, StateDictError
from minigrad.nn.parameter import Parameter
from minigrad.stamp import mark_changed, move_to
from minigrad.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` found to differ; both are empty where nothing did."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_state(who: str, own: Mapping[str, Tensor], state: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
    """Copy the values of a state_dict into tensors of the same names, in place.

    Args:
        who: Names the module in messages.
        own: The tensors to overwrite. Their memory stays, so flat layouts and views of it do.
        state: Tensors or arrays by name, on any device.
        strict: Whether each name must be in both.

    Raises:
        StateDictError: names, shapes or dtypes do not fit; all of them are listed, and nothing was changed.
        DtypeError: state is no mapping.
    """
    if not isinstance(state, Mapping):
        raise DtypeError(f"{who}: expected a mapping of names to tensors, got {type(state).__name__}")
    missing = [name for name in own if name not in state]
    unexpected = [str(name) for name in state if name not in own]
    arrays = {name: _as_array(state[name]) for name in own if name in state}
    faults = _mismatches(own, arrays)
    check_switch(who, strict=strict)
    if strict:
        faults = [f"missing {name}" for name in missing] + [f"unexpected {name}" for name in unexpected] + faults
    if faults:
        listed = "".join(f"\n  {fault}" for fault in faults)
        raise StateDictError(f"{who}: expected the names, shapes and dtypes of the module, got:{listed}")
    for name, array in arrays.items():
        overwrite(own[name], array)
    return IncompatibleKeys(missing, unexpected)


def _as_array(value: Any) -> Any:
    return value.data if isinstance(value, Tensor) else value


def _mismatches(own: Mapping[str, Tensor], arrays: Mapping[str, Any]) -> list[str]:
    faults = []
    for name, array in arrays.items():
        if not isinstance(getattr(array, "dtype", None), np.dtype):
            faults.append(f"{name}: expected a tensor, got {type(array).__name__}")
        elif array.shape != own[name].shape or array.dtype != own[name].dtype:
            expected = f"{own[name].dtype.name} {own[name].shape}"
            faults.append(f"{name}: expected {expected}, got {array.dtype.name} {array.shape}")
    return faults


def overwrite(x: Tensor, value: Array) -> None:
    """Copy an array of x's shape, on any device, into the memory of x; graphs that saved x notice."""
    device = x.device
    with device.current():
        x.data[...] = to_device(value, device)
    mark_changed(x)


def move_state(who: str, own: Mapping[str, Tensor], device: Device | None, dtype: np.dtype[Any] | None) -> None:
    """Give tensors memory on another device or of another dtype; integer tensors keep their dtype.

    Raises:
        LayoutError: a parameter that would move lies in a flat layout; nothing was moved.
        DeviceError: the device is not there.
    """
    if device is not None:
        device.xp  # noqa: B018  an absent device has to be noticed before anything moves
    moving = {name: x for name, x in own.items() if _would_move(x, device, dtype)}
    for name, x in moving.items():
        if isinstance(x, Parameter) and x.flat is not None:
            target = " ".join(str(part) for part in (device, dtype) if part is not None)
            raise LayoutError(
                f"{who}: expected parameters without a flat layout, got {name} of {x.dtype.name} {x.shape} "
                f"on {x.device} to move to {target}: move the module before it gets an optimizer or is wrapped"
            )
    for x in moving.values():
        move_to(x, moved(x.data, device, dtype))
        if x.grad_array is not None:
            x.grad_array = moved(x.grad_array, device, dtype)
        mark_changed(x)


def _would_move(x: Tensor, device: Device | None, dtype: np.dtype[Any] | None) -> bool:
    if device is not None and x.device != device:
        return True
    return dtype is not None and is_float(x.dtype) and x.dtype != dtype


def moved(array: Array, device: Device | None, dtype: np.dtype[Any] | None) -> Array:
    """The array on a device, a float array also in a dtype; the same array where nothing changes."""
    there = array if device is None else to_device(array, device)
    if dtype is None or not is_float(there.dtype) or there.dtype == dtype:
        return there
    with device_of(there).current():
        return there.astype(dtype)
