"""Lesson 6, our own."""

from __future__ import annotations

from typing import Any

from minigrad import nn
from minigrad.tensor import Tensor


def ready_order(module: nn.Module, loss: Tensor) -> list[str]:
    """Run backward; the names of parameters in the order in which their gradients became complete."""
    names = {id(param): name for name, param in module.named_parameters()}
    order = []

    def note(leaf: Tensor) -> None:
        if id(leaf) in names:  # an input that requires grad is a leaf too
            order.append(names[id(leaf)])

    loss.backward(on_leaf=note)
    return order


def ready_fractions(module: nn.Module, loss: Tensor, clock: Any) -> dict[str, float]:
    """Run backward; at which fraction of it the gradient of each parameter became complete."""
    names = {id(param): name for name, param in module.named_parameters()}
    ready_s: dict[str, float] = {}

    def note(leaf: Tensor) -> None:
        if id(leaf) in names:
            ready_s[names[id(leaf)]] = clock.now_s()

    began_s = clock.now_s()
    loss.backward(on_leaf=note)
    whole_s = clock.now_s() - began_s
    return {name: (moment_s - began_s) / whole_s for name, moment_s in ready_s.items()}
