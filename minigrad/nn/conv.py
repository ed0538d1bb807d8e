"""Convolution layers, both ways."""

from __future__ import annotations

import math

import numpy as np

from minigrad.arguments import Pair, as_integer, as_pair, as_sequence, check_counts, check_switch, kind_of
from minigrad.backend.device import Device
from minigrad.backend.dtypes import DtypeLike
from minigrad.errors import ArgumentError, DtypeError
from minigrad.nn import init
from minigrad.nn.module import Module
from minigrad.nn.parameter import zero_parameter
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["Conv1d", "Conv2d", "ConvTranspose1d", "ConvTranspose2d"]


class Convolution(Module):
    """What all convolutions share; a subclass says along how many axes it goes, and how its weight lies."""

    axes: int

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
        who = self._who()
        check_switch(who, bias=bias)
        check_counts(who, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{who}: expected groups to divide the channels, got {in_channels} in, {out_channels} out "
                f"and groups={groups}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = self._lengths("kernel_size", kernel_size, 1)
        self.stride = self._lengths("stride", stride, 1)
        self.dilation = self._lengths("dilation", dilation, 1)
        self.padding = self._as_padding(padding)
        self.weight = zero_parameter((*self._channels(), *self.kernel_size), device, dtype)
        self.bias = zero_parameter((out_channels,), device, dtype) if bias else None
        self.reset_parameters(rng)

    def reset_parameters(self, rng: np.random.Generator | None = None) -> None:
        """Draw initial values again."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5.0), rng=rng)
        if self.bias is not None:
            bound = 1.0 / math.sqrt(math.prod(self.weight.shape[1:]))
            init.uniform_(self.bias, -bound, bound, rng)

    def _channels(self) -> tuple[int, int]:
        """The first two axes of the weight."""
        return self.out_channels, self.in_channels // self.groups

    def _lengths(self, name: str, value: Pair, least: int) -> tuple[int, ...]:
        """An argument with one value for each axis."""
        return as_pair(self._who(), name, value, least, self.axes)[-self.axes :]

    def _as_padding(self, padding: Pair | str) -> tuple[int, ...] | str:
        if not isinstance(padding, str):
            return self._lengths("padding", padding, 0)
        if padding not in ("valid", "same") or (padding == "same" and max(self.stride) > 1):
            raise ArgumentError(
                f"{self._who()}: expected padding of integers, 'valid', or 'same' with stride 1, got {padding!r} "
                f"with {self.stride}"
            )
        return padding

    def extra_repr(self) -> str:
        """The sizes, without those that are as by default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != "valid" and set(self.padding) != {0}:
            text += f", padding={self.padding!r}"
        if max(self.dilation) > 1:
            text += f", dilation={self.dilation}"
        text += self._more_repr()
        if self.groups != 1:
            text += f", groups={self.groups}"
        return text if self.bias is not None else f"{text}, bias=False"

    def _more_repr(self) -> str:
        """What only some of them have."""
        return ""


class Conv1d(Convolution):
    """Cross-correlation of sequences with learned kernels; see `ops.conv1d` and `Conv2d`.

    Shapes:
        x: (N, in_channels, L) or (in_channels, L) -> (N, out_channels, OL) or (out_channels, OL)
        weight: (out_channels, in_channels / groups, K), bias: (out_channels,)
    """

    axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        return ops.conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv2d(Convolution):
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

    axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        return ops.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ConvolutionBack(Convolution):
    """What both transposed convolutions share."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        output_padding: Pair = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Pair = 1,
        device: Device | str | None = None,
        dtype: DtypeLike | None = None,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, device, dtype, rng=rng
        )
        self.output_padding = self._lengths("output_padding", output_padding, 0)
        if any(end >= max(s, d) for end, s, d in zip(self.output_padding, self.stride, self.dilation)):
            raise ArgumentError(
                f"{self._who()}: expected output_padding less than stride {self.stride} or dilation {self.dilation}, "
                f"got {output_padding!r}"
            )

    padding: tuple[int, ...]

    def _as_padding(self, padding: Pair) -> tuple[int, ...]:
        return self._lengths("padding", padding, 0)

    def _channels(self) -> tuple[int, int]:
        return self.in_channels, self.out_channels // self.groups

    def _ends(self, x: Tensor, output_size: list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
        """The output_padding with which the output has a size that is asked for.

        Raises:
            ArgumentError: no output_padding less than the stride gives it. DtypeError: x is no tensor.
        """
        if output_size is None:
            return self.output_padding
        who = self._who()
        if not isinstance(x, Tensor):
            raise DtypeError(f"{who}: expected a tensor, got {kind_of(x)}")
        given = tuple(as_integer(who, "output_size", n, 0) for n in as_sequence(who, "output_size", output_size))
        if len(given) not in (self.axes, x.ndim):
            raise ArgumentError(f"{who}: expected output_size of {self.axes} or {x.ndim} integers, got {output_size}")
        least = tuple(
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(x.shape[-self.axes :], self.stride, self.padding, self.dilation, self.kernel_size)
        )
        ends = tuple(n - low for n, low in zip(given[-self.axes :], least))
        if any(not 0 <= end < s for end, s in zip(ends, self.stride)):
            most = tuple(low + s - 1 for low, s in zip(least, self.stride))
            raise ArgumentError(f"{who}: expected output_size of {least} to {most} for x {x.shape}, got {output_size}")
        return ends

    def _more_repr(self) -> str:
        return f", output_padding={self.output_padding}" if any(self.output_padding) else ""


class ConvTranspose1d(ConvolutionBack):
    """The input gradient of a `Conv1d` as a layer; see `ops.conv_transpose1d` and `ConvTranspose2d`.

    Shapes:
        x: (N, in_channels, L) or (in_channels, L) -> (N, out_channels, OL) or (out_channels, OL)
        weight: (in_channels, out_channels / groups, K), bias: (out_channels,)
    """

    axes = 1

    def forward(self, x: Tensor, output_size: list[int] | tuple[int, ...] | None = None) -> Tensor:
        """The transposed convolution; output_size chooses among the lengths that `Conv1d` would make x of."""
        ends = self._ends(x, output_size)
        return ops.conv_transpose1d(
            x, self.weight, self.bias, self.stride, self.padding, ends, self.groups, self.dilation
        )


class ConvTranspose2d(ConvolutionBack):
    """The input gradient of a `Conv2d` as a layer, which makes images larger; see `ops.conv_transpose2d`.

    Weights and biases start uniform in ± 1/sqrt(out_channels / groups · kH · kW).

    Shapes:
        x: (N, in_channels, H, W) or (in_channels, H, W) -> (N, out_channels, OH, OW) or (out_channels, OH, OW)
        weight: (in_channels, out_channels / groups, kH, kW), bias: (out_channels,)

    Args:
        kernel_size, stride, dilation: >= 1; an integer, or one for height and one for width.
        padding: >= 0; so much is cut off at each side.
        output_padding: >= 0, and less than stride or dilation: added at the bottom and the right.
        groups: A divisor of both numbers of channels.
        bias: Add a learned bias.
        rng: Source of the initial values; by default the init stream.

    Raises:
        ArgumentError: a size out of its range, or groups that do not divide the channels.
    """

    axes = 2

    def forward(self, x: Tensor, output_size: list[int] | tuple[int, ...] | None = None) -> Tensor:
        """The transposed convolution; output_size chooses among the sizes that `Conv2d` would make x of."""
        ends = self._ends(x, output_size)
        return ops.conv_transpose2d(
            x, self.weight, self.bias, self.stride, self.padding, ends, self.groups, self.dilation
        )
