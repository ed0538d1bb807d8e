"""What a module holds, loaded and moved: checked as a whole first, then changed in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import check_switch
from minigrad.backend.device import Device, device_of, to_device
from minigrad.backend.dtypes import Array, is_float
from minigrad.errors import ArgumentError, DtypeError, LayoutError, StateDictError
from minigrad.nn.parameter import Parameter
from minigrad.ops.foreign import array_of
from minigrad.stamp import mark_changed, move_to
from minigrad.tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` found to differ; both are empty where nothing did."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


State = Mapping[str, Any]  # tensors or arrays by name


def load_state(who: str, module: Any, state: State, strict: bool, assign: bool = False) -> IncompatibleKeys:
    """Copy the values of a state_dict into the parameters and buffers of a module, in place.

    Args:
        who: Names the module in messages.
        module: Its tensors keep their memory, so flat layouts and views of it stay.
        state: Tensors or arrays by name, on any device, also those of another library.
        strict: Whether each name must be in both.
        assign: What PyTorch calls so is not done.

    Raises:
        StateDictError: names, shapes or dtypes do not fit; all of them are listed, and nothing was changed.
        DtypeError: state is no mapping.
        ArgumentError: assign is not False.
    """
    if not isinstance(state, Mapping):
        raise DtypeError(f"{who}: expected a mapping of names to tensors, got {type(state).__name__}")
    check_switch(who, strict=strict, assign=assign)
    if assign:
        raise ArgumentError(
            f"{who}: expected assign=False, got True: values are copied into the parameters that are there, "
            "whose dtype .to(dtype) makes that of the state"
        )
    own, optional = module._state(), _newer_names(module, state)
    missing = [name for name in own if name not in state and name not in optional]
    unexpected = [str(name) for name in state if name not in own]
    arrays, faults = _read_arrays(own, state)
    if strict:
        faults = [f"missing {name}" for name in missing] + [f"unexpected {name}" for name in unexpected] + faults
    if faults:
        listed = "".join(f"\n  {fault}" for fault in faults)
        hint = _where_it_is(missing, own, state)
        raise StateDictError(f"{who}: expected the names, shapes and dtypes of the module, got:{listed}{hint}")
    for name, array in arrays.items():
        overwrite(own[name], array)
    return IncompatibleKeys(missing, unexpected)


def _where_it_is(missing: list[str], own: State, state: State) -> str:
    """What to load instead, where a state is in a whole checkpoint, or its names or ours have more in front."""
    for name, value in state.items():
        if isinstance(value, Mapping) and any(key in own for key in value):
            return f"\n  state_dict[{name!r}] has such names: load that"
    for other in map(str, state) if missing else ():
        more, less = other.removesuffix(missing[0]), missing[0].removesuffix(other)
        if more != other and all(more + name in state for name in missing):
            return f"\n  {more} is in front of its names: load {{n.removeprefix({more!r}): x for n, x in s.items()}}"
        if less != missing[0] and all(name.startswith(less) and name[len(less) :] in state for name in own):
            return f"\n  {less} is not in front of its names: load {{{less!r} + n: x for n, x in s.items()}}"
    return ""


def _newer_names(module: Any, state: Any) -> set[str]:
    """Names that a state_dict may lack, since the version of the layer that gave it, as PyTorch notes it, did."""
    versions: Mapping[str, Any] = getattr(state, "_metadata", {})
    return {
        f"{path}.{name}" if path else name
        for path, layer in module.named_modules(remove_duplicate=False)
        for name, version in getattr(layer, "_state_since", {}).items()
        if (versions.get(path, {}).get("version") or 1) < version
    }


def _read_arrays(own: Mapping[str, Tensor], state: Mapping[str, Any]) -> tuple[dict[str, Array], list[str]]:
    """The arrays of a state that fit, by name; and what is wrong with the others."""
    arrays, faults = {}, []
    for name in own:
        if name not in state:
            continue
        try:
            array = array_of(name, state[name])
        except DtypeError as error:
            faults.append(str(error))
            continue
        if array is None:
            faults.append(f"{name}: expected a tensor, got {type(state[name]).__name__}")
        elif array.shape != own[name].shape or array.dtype != own[name].dtype:
            expected = f"{own[name].dtype.name} {own[name].shape}"
            faults.append(f"{name}: expected {expected}, got {array.dtype.name} {array.shape}")
        else:
            arrays[name] = array
    return arrays, faults


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
