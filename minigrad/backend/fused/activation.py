"""Activations of whole arrays, one launch each way. The references are in `minigrad.ops`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, is_float
from minigrad.backend.kernels import KernelLoader, int64, kernels_for, launch_of
from minigrad.backend.order import lies_like, memory_view


class Activation(NamedTuple):
    """What kernels call an activation, and whether its gradient comes from its output rather than from its input."""

    kind: np.int32
    keeps_output: bool


# The numbers are those of with_activation in activation.cuh.
ACTIVATIONS = {
    "identity": Activation(np.int32(0), True),
    "relu": Activation(np.int32(1), True),
    "tanh": Activation(np.int32(2), True),
    "sigmoid": Activation(np.int32(3), True),
    "silu": Activation(np.int32(4), False),
    "gelu": Activation(np.int32(5), False),
    "gelu_tanh": Activation(np.int32(6), False),
}


def is_activated(x: Array) -> bool:
    """Whether activations of an array are kernels."""
    return kernels_for(x) is not None and is_float(x.dtype)


def activate(name: str, x: Array) -> Array:
    """An activation of each element, in the order in which x lies."""
    out = array_module(x).empty_like(x)
    x = lies_like(out, x)
    _launch("forward", name, (memory_view(x),), memory_view(out))
    return out


def activation_gradient(name: str, grad: Array, kept: Array) -> Array:
    """The gradient of the input, in the order in which `kept` lies: the output, or the input, as ACTIVATIONS says."""
    dx = array_module(kept).empty_like(kept)
    grad, kept = lies_like(dx, grad), lies_like(dx, kept)
    _launch("backward", name, (memory_view(grad), memory_view(kept)), memory_view(dx))
    return dx


def _launch(way: str, name: str, arrays: tuple[Array, ...], out: Array) -> None:
    loader = kernels_for(out)
    assert isinstance(loader, KernelLoader)
    if out.size:
        launch = launch_of(loader, "activation", f"activation_{way}", out.dtype, -(-out.size // _IN_A_TURN))
        loader.launch(*launch, (*arrays, int64(out.size), ACTIVATIONS[name].kind, out))


_IN_A_TURN = 4  # elements of a thread
