"""What saved states are read with: whether arrays in them fit, and where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minigrad.backend.device import Device, to_device
from minigrad.backend.dtypes import Array
from minigrad.distributed.balance.state import reading_state
from minigrad.errors import StateDictError
from minigrad.nn.companions import number_of
from minigrad.ops.foreign import array_of

reading = reading_state  # around what reads one: whatever fails is told as a state that does not fit


def check_fits(who: str, what: str, saved: Any, like: Array) -> None:
    """Refuse what is no tensor of this shape and dtype.

    Raises:
        StateDictError: it is none; it is named.
    """
    array = array_of(who, saved)
    if array is None or array.shape != like.shape or array.dtype != like.dtype:
        got = type(saved).__name__ if array is None else f"{array.dtype.name} {array.shape}"
        raise StateDictError(f"{who}: expected {what} of {like.dtype.name} {like.shape}, got {got}")


def check_length(who: str, what: str, saved: Any, own: Sequence[Any]) -> list[Any]:
    """What was saved of each of several, as a list.

    Raises:
        StateDictError: it is of more or fewer.
    """
    if not isinstance(saved, (list, tuple)) or len(saved) != len(own):
        got = len(saved) if isinstance(saved, (list, tuple)) else type(saved).__name__
        raise StateDictError(f"{who}: expected a state of {len(own)} {what}, got {got}")
    return list(saved)


def check_names(who: str, what: str, own: Mapping[str, Any], saved: Any) -> None:
    """Refuse what has other names.

    Raises:
        StateDictError: it has, or is no mapping.
    """
    if not isinstance(saved, Mapping) or set(saved) != set(own):
        got = sorted(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise StateDictError(f"{who}: expected an {what} of {sorted(own)}, got {got}")


def origin_of(numbers: Sequence[int]) -> str:
    """What a state is called by all ranks that go on from the same."""
    return f"state {number_of(list(numbers)):08x}"


def array_on(device: Device, saved: Any) -> Array:
    """A saved tensor, as an array of its own on a device."""
    array = to_device(array_of("load", saved), device)
    with device.current():
        return array.copy()
