"""Convolution layers."""

from __future__ import annotations

import math

import numpy as np

from minigrad.arguments import Pair, as_pair, check_counts, check_switch
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_parameter
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["Conv2d"]


class Conv2d(Module):
    """Cross-correlation of images with learned kernels; see `ops.conv2d`.

    Weights and biases start uniform in ± 1/sqrt(in_channels / groups · kH · kW).

    Shapes:
        x: (N, in_channels, H, W) or (in_channels, H, W) -> (N, out_channels, OH, OW) or (out_channels, OH, OW)
        weight: (out_channels, in_channels / groups, kH, kW), bias: (out_channels,)

    Args:
        kernel_size, stride, dilation: >= 1; an integer, or one for height and one for width.
        padding: Zeros at each side, >= 0; an integer or two, "valid" for none, "same" to keep the size at stride 1.
        groups: A divisor of both numbers of channels.
        bias: Add a learned bias.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size below its least, or groups that do not divide the channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__()
        check_switch("Conv2d", bias=bias)
        check_counts("Conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"Conv2d: expected groups to divide the channels, got {in_channels} in, {out_channels} out "
                f"and groups={groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = as_pair("Conv2d", "kernel_size", kernel_size, 1)
        self.stride = as_pair("Conv2d", "stride", stride, 1)
        self.dilation = as_pair("Conv2d", "dilation", dilation, 1)
        self.padding = _as_padding(padding, self.stride)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = zero_parameter(shape, device, dtype)
        self.bias = zero_parameter((out_channels,), device, dtype) if bias else None
        self.reset_parameters(rng)

    def reset_parameters(self, rng: np.random.Generator | None = None) -> None:
        """Draw initial values again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5.0), rng=rng)
        if self.bias is not None:
            bound = 1.0 / math.sqrt(math.prod(self.weight.shape[1:]))
            init.uniform_(self.bias, -bound, bound, rng)

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        """The sizes, without those that are as by default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding not in ((0, 0), "valid"):
            text += f", padding={self.padding!r}"
        if self.dilation != (1, 1):
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        return text if self.bias is not None else f"{text}, bias=False"


def _as_padding(padding: Pair | str, stride: tuple[int, int]) -> tuple[int, int] | str:
    if not isinstance(padding, str):
        return as_pair("Conv2d", "padding", padding, 0)
    if padding not in ("valid", "same") or (padding == "same" and stride != (1, 1)):
        raise ArgumentError(
            f"Conv2d: expected padding of integers, 'valid', or 'same' with stride 1, got {padding!r} with {stride}"
        )
    return padding
