"""Neighbours that a GPU computes in one operation: an affine layer and the activation behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minigrad.backend.kernels import kernels_for
from minigrad.nn.activation import GELU, ReLU, Sigmoid, SiLU, Tanh
from minigrad.nn.linear import Linear
from minigrad.nn.module import Module
from minigrad.nn.watch import current_watcher
from minigrad.ops.joint import linear_activation
from minigrad.tensor import Tensor

_NAMES: dict[type, str] = {ReLU: "relu", Sigmoid: "sigmoid", SiLU: "silu", Tanh: "tanh"}
_FORWARDS: dict[type, Any] = {kind: kind.forward for kind in (Linear, GELU, ReLU, Sigmoid, SiLU, Tanh)}


def may_join(x: Any) -> bool:
    """Whether modules on x may run as one with the next: on a GPU, where no one hears of each call."""
    return isinstance(x, Tensor) and kernels_for(x.data) is not None and current_watcher() is None


def run_joined(modules: Sequence[Any], x: Any) -> Any:
    """Run modules one after the other, an affine layer and an activation as one where nobody can tell.

    Hooks, a class of one's own and a `forward` that was replaced see the output of a module: such a one runs alone.
    """
    place = 0
    while place < len(modules):
        first = modules[place]
        activation = _activation(*modules[place + 1 : place + 3]) if _is_plain(first, Linear) else None
        if activation is None:
            x, place = first(x), place + 1
        else:
            x, place = linear_activation(x, first.weight, first.bias, activation), place + 2
    return x


def _activation(module: Any = None, behind: Any = None) -> str | None:
    """The name of the activation that a module is; None of another module, or where somebody hears of its calls.

    None, too, where it writes into its input and the one behind it does so again: alone it keeps another array.
    """
    kind = type(module)
    if getattr(module, "inplace", False) and getattr(behind, "inplace", False):
        return None
    if kind is GELU and _is_plain(module, GELU):
        return "gelu" if module.approximate == "none" else "gelu_tanh"
    return _NAMES[kind] if kind in _NAMES and _is_plain(module, kind) else None


def _is_plain(module: Module, kind: type[Module]) -> bool:
    return (
        type(module) is kind
        and not (module._forward_hooks or module._forward_pre_hooks)
        and "forward" not in module.__dict__
        and kind.forward is _FORWARDS[kind]
    )
