"""Checks of the parameters that optimizers and clipping are given."""

from __future__ import annotations

from minigrad.errors import AutogradError
from minigrad.tensor import Tensor


def check_finished(who: str, param: Tensor) -> None:
    """Refuse a gradient to which whoever listens to its parameter has yet to add; AutogradError."""
    for listener in param.listeners:
        why = getattr(listener, "unfinished", "")
        if why:
            raise AutogradError(f"{who}: expected a whole gradient, got a part, {why}")
