"""MultiheadAttention: attentions side by side, with the projections that they learn."""

from __future__ import annotations

import numpy as np

from minigrad.arguments import check_counts, check_real, check_switch
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError
from minigrad.nn import init
from minigrad.nn.linear import Linear
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_parameter
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["MultiheadAttention"]


class MultiheadAttention(Module):
    """Attention of num_heads heads, each on a part of projected features; see `ops.multi_head_attention_forward`.

    Projections start uniform within √(6 / (inputs + outputs)) (Glorot and Bengio, 2010), that behind the heads as
    `Linear`, biases at 0, added keys and values normal.

    Shapes:
        query: (L, N, embed_dim), key: (S, N, kdim), value: (S, N, vdim), N first with batch_first; or all without N
        -> (as query, weights (N, L, S), (N, num_heads, L, S) where they are not averaged, None without need_weights)
        in_proj_weight: (3 · embed_dim, embed_dim), with kdim or vdim q_proj_weight, k_proj_weight, v_proj_weight
        in_proj_bias: (3 · embed_dim,), bias_k, bias_v: (1, 1, embed_dim)

    Args:
        embed_dim: Features, a multiple of num_heads.
        dropout: In training, weights are dropped with this probability.
        bias: Have biases.
        add_bias_kv: Learn a key and a value that stand behind those given.
        add_zero_attn: Put a key and a value of zeros behind them.
        kdim, vdim: Features of keys and of values; embed_dim by default.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1, num_heads that does not divide embed_dim, dropout out of [0, 1].

    Example:
        >>> from minigrad import nn, randn
        >>> x = randn(2, 5, 8)
        >>> output, weights = nn.MultiheadAttention(8, 2, batch_first=True)(x, x, x)
        >>> output.shape, weights.shape
        ((2, 5, 8), (2, 5, 5))
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        who = self._who()
        check_counts(who, embed_dim=embed_dim, num_heads=num_heads)
        check_switch(who, bias=bias, add_bias_kv=add_bias_kv, add_zero_attn=add_zero_attn, batch_first=batch_first)
        check_real(who, 0.0, 1.0, dropout=dropout)
        if embed_dim % num_heads:
            raise ArgumentError(f"{who}: expected num_heads to divide embed_dim, got {num_heads} and {embed_dim}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        check_counts(who, kdim=self.kdim, vdim=self.vdim)
        self.head_dim, self.add_zero_attn = embed_dim // num_heads, add_zero_attn
        self.in_one = self.kdim == self.vdim == embed_dim
        place = device, dtype
        self.in_proj_weight = zero_parameter((3 * embed_dim, embed_dim), *place) if self.in_one else None
        self.q_proj_weight = None if self.in_one else zero_parameter((embed_dim, embed_dim), *place)
        self.k_proj_weight = None if self.in_one else zero_parameter((embed_dim, self.kdim), *place)
        self.v_proj_weight = None if self.in_one else zero_parameter((embed_dim, self.vdim), *place)
        self.in_proj_bias = zero_parameter((3 * embed_dim,), *place) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, device, dtype, rng=rng)
        self.bias_k = zero_parameter((1, 1, embed_dim), *place) if add_bias_kv else None
        self.bias_v = zero_parameter((1, 1, embed_dim), *place) if add_bias_kv else None
        self._start(rng)

    def reset_parameters(self, rng: np.random.Generator | None = None) -> None:
        """Draw initial values again."""
        self.out_proj.reset_parameters(rng)
        self._start(rng)

    def _start(self, rng: np.random.Generator | None) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                init.xavier_uniform_(weight, rng=rng)
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for added in (self.bias_k, self.bias_v):
            if added is not None:
                init.xavier_normal_(added, rng=rng)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The joined heads, and their weights."""
        return ops.multi_head_attention_forward(
            query,
            key,
            value,
            self.embed_dim,
            self.num_heads,
            self.in_proj_weight,
            self.in_proj_bias,
            self.bias_k,
            self.bias_v,
            self.add_zero_attn,
            self.dropout,
            self.out_proj.weight,
            self.out_proj.bias,
            self.training,
            key_padding_mask,
            need_weights,
            attn_mask,
            not self.in_one,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
            average_attn_weights=average_attn_weights,
            is_causal=is_causal,
            batch_first=self.batch_first,
        )

    def extra_repr(self) -> str:
        """The sizes."""
        return f"embed_dim={self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"
