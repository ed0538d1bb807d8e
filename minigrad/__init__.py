"""minigrad: a small deep-learning framework, native to CuPy, whose heart is data-parallel training."""

from minigrad import ops
from minigrad.autograd import enable_grad, is_grad_enabled, no_grad
from minigrad.backend.device import Device, available_devices
from minigrad.backend.random import get_rng_state, manual_seed, set_rng_state
from minigrad.tensor import Tensor

__version__ = "0.1.0"

__all__ = [
    "Device",
    "Tensor",
    "available_devices",
    "enable_grad",
    "get_rng_state",
    "is_grad_enabled",
    "manual_seed",
    "no_grad",
    "ops",
    "set_rng_state",
]
