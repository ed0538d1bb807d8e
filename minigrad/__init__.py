"""minigrad: a small deep-learning framework, native to CuPy, whose heart is data-parallel training."""

from typing import Any

import numpy as np

from minigrad import data, nn, ops
from minigrad.autograd import enable_grad, is_grad_enabled, no_grad
from minigrad.backend.device import Device, available_devices
from minigrad.backend.dtypes import bool_, float16, float32, float64, int16, int32, int64, int8, uint8
from minigrad.backend.flags import debug, raise_all_found
from minigrad.backend.gemm import allow_tf32
from minigrad.backend.random import get_rng_state, manual_seed, set_rng_state
from minigrad.graph import FlowBuilder, Graph
from minigrad.ops import (
    broadcast_to,
    cat,
    chunk,
    flatten,
    flip,
    gather,
    index_add,
    index_select,
    lerp,
    masked_fill,
    matmul,
    maximum,
    minimum,
    narrow,
    one_hot,
    permute,
    reshape,
    roll,
    scatter,
    split,
    squeeze,
    stack,
    swapaxes,
    take_along_dim,
    tile,
    transpose,
    tril,
    triu,
    unbind,
    unflatten,
    unsqueeze,
    where,
)
from minigrad.ops.creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_dlpack,
    from_numpy,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    tensor,
    zeros,
    zeros_like,
)
from minigrad.ops.precision import autocast, is_autocast_enabled
from minigrad.ops.sampling import rand, rand_like, randint, randint_like, randn, randn_like, randperm
from minigrad.tensor import Tensor
from minigrad.train import Trainer

__version__ = "0.1.0"

__all__ = [
    "Device",
    "FlowBuilder",
    "Graph",
    "Tensor",
    "Trainer",
    "allow_tf32",
    "arange",
    "as_tensor",
    "autocast",
    "available_devices",
    "bfloat16",
    "bool_",
    "broadcast_to",
    "cat",
    "chunk",
    "data",
    "debug",
    "empty",
    "empty_like",
    "enable_grad",
    "eye",
    "flatten",
    "flip",
    "float16",
    "float32",
    "float64",
    "from_dlpack",
    "from_numpy",
    "full",
    "full_like",
    "gather",
    "get_rng_state",
    "index_add",
    "index_select",
    "int16",
    "int32",
    "int64",
    "int8",
    "is_autocast_enabled",
    "is_grad_enabled",
    "lerp",
    "linspace",
    "manual_seed",
    "masked_fill",
    "matmul",
    "maximum",
    "minimum",
    "narrow",
    "nn",
    "no_grad",
    "one_hot",
    "ones",
    "ones_like",
    "ops",
    "permute",
    "raise_all_found",
    "rand",
    "rand_like",
    "randint",
    "randint_like",
    "randn",
    "randn_like",
    "randperm",
    "reshape",
    "roll",
    "scatter",
    "set_rng_state",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "take_along_dim",
    "tensor",
    "tile",
    "transpose",
    "tril",
    "triu",
    "uint8",
    "unbind",
    "unflatten",
    "unsqueeze",
    "where",
    "zeros",
    "zeros_like",
]


def __getattr__(name: str) -> Any:
    """bfloat16, made at its first use: importing ml_dtypes takes time."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    raise AttributeError(f"module 'minigrad' has no attribute {name!r}")
