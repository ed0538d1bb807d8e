"""The encoder of a transformer: layers of self-attention and of two affine maps, each added to what goes into it."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np

from minigrad.arguments import check_counts, check_switch, kind_of
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError, DtypeError
from minigrad.nn.attention import MultiheadAttention
from minigrad.nn.container import ModuleList
from minigrad.nn.dropout import Dropout
from minigrad.nn.linear import Linear
from minigrad.nn.module import Module
from minigrad.nn.norm import LayerNorm
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["TransformerEncoder", "TransformerEncoderLayer"]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": ops.relu, "gelu": ops.gelu}


class TransformerEncoderLayer(Module):
    """norm(x + self-attention(x)), then norm(x + linear2(activation(linear1(x)))) (Vaswani et al., 2017).

    With norm_first, x + self-attention(norm(x)), then the same of the affine maps. In training each of the two, the
    weights of attention, and what the activation gives, go through dropout.

    Shapes:
        src: (S, N, d_model), with batch_first (N, S, d_model), or (S, d_model) -> the same
        src_mask: (S, S) or (N · nhead, S, S), src_key_padding_mask: (N, S): see `MultiheadAttention`

    Args:
        d_model: Features, a multiple of nhead.
        dim_feedforward: Features between the two affine maps.
        activation: "relu", "gelu", or a function of a tensor.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, nhead that does not divide d_model, an unknown activation, dropout out of
            [0, 1].
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        check_switch(self._who(), batch_first=batch_first, norm_first=norm_first, bias=bias)
        check_counts(self._who(), d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, device=device, dtype=dtype, rng=rng
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, device, dtype, rng=rng)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias, device, dtype, rng=rng)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation = _activation(self._who(), activation)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The layer's output; is_causal says that src_mask hides what comes after each place, and nothing else."""

        def attended(x: Tensor) -> Tensor:
            found = self.self_attn(x, x, x, src_key_padding_mask, False, src_mask, is_causal=is_causal)
            return self.dropout1(found[0])  # type: ignore[no-any-return]

        if self.norm_first:
            x = src + attended(self.norm1(src))
            return x + self._fed_forward(self.norm2(x))
        x = self.norm1(src + attended(src))
        return self.norm2(x + self._fed_forward(x))  # type: ignore[no-any-return]

    def _fed_forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.linear1(x)))
        return self.dropout2(self.linear2(hidden))  # type: ignore[no-any-return]


class TransformerEncoder(Module):
    """Copies of a layer, one on the output of the other; and a norm at the end, where there is one.

    All copies start with the values of the layer that they are of.

    Shapes:
        src: as the layer has it -> the same

    Args:
        encoder_layer: What is copied; itself it is no part of the encoder.
        num_layers: How many copies.
        norm: A module for what the last one gives.
        enable_nested_tensor: Changes nothing: tensors are dense, and at places that are padding the output is what
            the layers make of them, where PyTorch's is 0 in evaluation without gradients.
        mask_check: Changes nothing: masks are always checked.

    Raises:
        ArgumentError: num_layers below 1.
        DtypeError: encoder_layer or norm is no module.

    Example:
        >>> from minigrad import nn, randn
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> nn.TransformerEncoder(layer, 2)(randn(3, 5, 8)).shape
        (3, 5, 8)
    """

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__()
        check_counts(self._who(), num_layers=num_layers)
        check_switch(self._who(), enable_nested_tensor=enable_nested_tensor, mask_check=mask_check)
        if not isinstance(encoder_layer, Module) or not isinstance(norm, (Module, type(None))):
            got = f"{kind_of(encoder_layer)} and {kind_of(norm)}"
            raise DtypeError(f"{self._who()}: expected modules as encoder_layer and norm, got {got}")
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers, self.norm = num_layers, norm

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """The output of the last layer; is_causal says that mask hides what comes after each place."""
        x = src
        for layer in self.layers:
            x = layer(x, mask, src_key_padding_mask, False if is_causal is None else is_causal)
        return x if self.norm is None else self.norm(x)


def _activation(who: str, activation: str | Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    found = _ACTIVATIONS.get(activation) if isinstance(activation, str) else activation
    if not callable(found):
        raise ArgumentError(f"{who}: expected activation to be 'relu', 'gelu' or a function, got {activation!r}")
    return found
