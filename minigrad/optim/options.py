"""Checks of what optimizers, schedules and clipping are given."""

from __future__ import annotations

import math
from typing import Any

from minigrad.backend.dtypes import is_number
from minigrad.errors import ArgumentError, AutogradError
from minigrad.tensor import Tensor


def check_within(
    who: str, name: str, value: Any, low: float = 0.0, high: float = math.inf, low_allowed: bool = True
) -> None:
    """Refuse what is no number in [low, high), or in (low, high) where low is not allowed.

    Raises:
        ArgumentError: it is none, or NaN.
    """
    if value.__class__ is float and low < value < high:
        return  # the usual case: optimizers check in every step
    fits = is_number(value) and not isinstance(value, bool) and low <= value < high
    if not fits or (value == low and not low_allowed):
        bracket = "[" if low_allowed else "("
        raise ArgumentError(f"{who}: expected {name} to be a number in {bracket}{low:g}, {high:g}), got {value!r}")


def check_finished(who: str, param: Tensor) -> None:
    """Refuse a gradient to which whoever listens to its parameter has yet to add; AutogradError."""
    for listener in param.listeners:
        why = getattr(listener, "unfinished", "")
        if why:
            raise AutogradError(f"{who}: expected a whole gradient, got a part, {why}")
