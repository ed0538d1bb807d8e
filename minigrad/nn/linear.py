"""Linear: the affine layer."""

from __future__ import annotations

import math
import numpy as np

from minigrad.arguments import check_counts, check_switch
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_parameter
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["Linear"]


class Linear(Module):
    """Affine map of the last axis: y = x @ weightᵀ + bias.

    Weights and biases start uniform in ± 1/sqrt(in_features).

    Shapes:
        x: (..., in_features) -> (..., out_features)
        weight: (out_features, in_features), bias: (out_features,)

    Args:
        bias: Add a learned bias.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below 1.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        check_switch("Linear", bias=bias)
        check_counts("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = zero_parameter((out_features, in_features), device, dtype)
        self.bias = zero_parameter((out_features,), device, dtype) if bias else None
        self.reset_parameters(rng)

    def reset_parameters(self, rng: np.random.Generator | None = None) -> None:
        """Draw initial values again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5.0), rng=rng)
        if self.bias is not None:
            bound = 1.0 / math.sqrt(self.in_features)
            init.uniform_(self.bias, -bound, bound, rng)

    def forward(self, x: Tensor) -> Tensor:
        """The affine map."""
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
