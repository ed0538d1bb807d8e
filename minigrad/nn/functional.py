"""The operations of `minigrad.ops` under the names of `torch.nn.functional`."""

from __future__ import annotations

from minigrad import ops
from minigrad.ops import (
    adaptive_avg_pool2d,
    avg_pool2d,
    batch_norm,
    binary_cross_entropy_with_logits,
    conv2d,
    cross_entropy,
    dropout,
    dropout2d,
    elu,
    gelu,
    group_norm,
    huber_loss,
    l1_loss,
    layer_norm,
    leaky_relu,
    linear,
    log_softmax,
    max_pool2d,
    mse_loss,
    nll_loss,
    one_hot,
    pad,
    relu,
    sigmoid,
    silu,
    smooth_l1_loss,
    softmax,
    softplus,
    tanh,
)
from minigrad.tensor import Tensor

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv2d",
    "cross_entropy",
    "dropout",
    "dropout2d",
    "elu",
    "embedding",
    "gelu",
    "group_norm",
    "huber_loss",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "pad",
    "relu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "tanh",
]


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """`ops.embedding` with its arguments in the order of `torch.nn.functional`: the integers first."""
    return ops.embedding(weight, input, padding_idx)
