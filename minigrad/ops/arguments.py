"""Checks of the plain values that operations and layers are given, so that a mistake shows where it was made."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad.backend.device import CPU, Device
from minigrad.backend.dtypes import is_integer, is_number
from minigrad.errors import ArgumentError


def as_real(who: str, name: str, value: Any, least: float = -math.inf, most: float = math.inf) -> float:
    """A number in [least, most] as a float.

    Raises:
        ArgumentError: another type, NaN, or out of range.
    """
    if value.__class__ is float and least <= value <= most:
        return value
    if not is_number(value) or isinstance(value, (bool, np.bool_)) or not least <= value <= most:
        raise ArgumentError(f"{who}: expected {name} to be a number{_range(least, most)}, got {value!r:.100}")
    return float(value)


def _range(least: float, most: float) -> str:
    if most < math.inf:
        return f" in [{least:g}, {most:g}]"
    return f" >= {least:g}" if least > -math.inf else ""


def as_integer(who: str, name: str, value: Any, least: int | None = None, end: int | None = None) -> int:
    """An integer of at least `least`, and below `end`.

    Raises:
        ArgumentError: another type, or out of range.
    """
    if not is_integer(value) or (least is not None and value < least) or (end is not None and value >= end):
        bounds = "" if least is None else f" >= {least}" if end is None else f" in [{least}, {_limit(end)})"
        raise ArgumentError(f"{who}: expected {name} to be an integer{bounds}, got {value!r:.100}")
    return int(value)


def _limit(end: int) -> str:
    return f"2**{end.bit_length() - 1}" if end >= 2**31 and not end & (end - 1) else str(end)


def as_sequence(who: str, name: str, value: Any) -> Sequence[Any]:
    """A list or a tuple as it is.

    Raises:
        ArgumentError: something else.
    """
    if not isinstance(value, (list, tuple)):
        raise ArgumentError(f"{who}: expected {name} to be a list or a tuple, got {value!r:.100}")
    return value


def as_place(device: Device | str | None) -> Device:
    """The device that an argument names; the CPU where it names none.

    Raises:
        DeviceError: no kind of device.
    """
    return CPU if device is None else Device(device)


def check_generator(who: str, rng: Any) -> None:
    """Refuse a source of random numbers that is neither a NumPy generator nor None.

    Raises:
        ArgumentError: it is something else.
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise ArgumentError(f"{who}: expected rng to be a numpy.random.Generator, got {type(rng).__name__}")


def check_counts(who: str, least: int = 1, **counts: Any) -> None:
    """Refuse anything but integers of at least `least`; the keywords name them.

    Raises:
        ArgumentError: another type, or too small.
    """
    for name, count in counts.items():
        as_integer(who, name, count, least)


def check_sizes(who: str, least: int = 1, **sizes: Any) -> None:
    """Refuse anything but integers, or tuples of them, of at least `least`; the keywords name them.

    Raises:
        ArgumentError: another type, or too small.
    """
    for name, size in sizes.items():
        values = size if isinstance(size, (tuple, list)) else (size,)
        if not values or not all(is_integer(value) and value >= least for value in values):
            raise ArgumentError(f"{who}: expected {name} of at least {least}, got {size!r}")


def check_real(who: str, least: float = -math.inf, most: float = math.inf, **values: Any) -> None:
    """Refuse anything but a finite number in [least, most].

    Raises:
        ArgumentError: another type, or out of range.
    """
    for name, value in values.items():
        if not math.isfinite(as_real(who, name, value, least, most)):
            raise ArgumentError(f"{who}: expected {name} to be a finite number, got {value!r}")


def check_choice(who: str, choices: tuple[str, ...], **values: Any) -> None:
    """Refuse anything but one of the choices.

    Raises:
        ArgumentError: something else; the choices are listed.
    """
    for name, value in values.items():
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ArgumentError(f"{who}: expected {name} to be one of {listed}, got {value!r:.100}")


def check_switch(who: str, **values: Any) -> None:
    """Refuse anything but True and False.

    Raises:
        ArgumentError: something else.
    """
    for name, value in values.items():
        if value is not True and value is not False:
            raise ArgumentError(f"{who}: expected {name} to be True or False, got {value!r:.100}")
