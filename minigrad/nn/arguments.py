"""Checks of what a layer is constructed with, so that a mistake shows where it was made."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minigrad.backend.dtypes import is_integer
from minigrad.errors import ArgumentError


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
        is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not least <= value <= most:
            raise ArgumentError(f"{who}: expected {name} to be a number in [{least:g}, {most:g}], got {value!r}")


def check_choice(who: str, choices: tuple[str, ...], **values: Any) -> None:
    """Refuse anything but one of the choices.

    Raises:
        ArgumentError: something else; the choices are listed.
    """
    for name, value in values.items():
        if value not in choices:
            listed = ", ".join(repr(choice) for choice in choices)
            raise ArgumentError(f"{who}: expected {name} to be one of {listed}, got {value!r}")
