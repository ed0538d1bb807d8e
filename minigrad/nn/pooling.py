"""Pooling layers; none has parameters."""

from __future__ import annotations

from minigrad.arguments import Pair, as_pair, is_integer
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["AdaptiveAvgPool2d", "AvgPool2d", "MaxPool2d"]


class MaxPool2d(Module):
    """The greatest value in each window; see `ops.max_pool2d`.

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> the same with OH, OW

    Args:
        kernel_size, dilation: >= 1; an integer, or one for height and one for width.
        stride: Likewise; by default the kernel size.
        padding: Of -inf at each side, from 0 to half the window.
        ceil_mode: Let a last window hang over the end.

    Raises:
        ArgumentError: a size out of its range.
    """

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        dilation: Pair = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode
        _check_window("MaxPool2d", self.kernel_size, self.stride, padding, dilation)

    def forward(self, x: Tensor) -> Tensor:
        """The greatest value in each window."""
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)

    def extra_repr(self) -> str:
        """The windows."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class AvgPool2d(Module):
    """The mean of each window; see `ops.avg_pool2d`.

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> the same with OH, OW

    Args:
        kernel_size: >= 1; an integer, or one for height and one for width.
        stride: Likewise; by default the kernel size.
        padding: Zeros at each side, from 0 to half the window.
        ceil_mode: Let a last window hang over the end.
        count_include_pad: Count the padding in the mean.

    Raises:
        ArgumentError: a size out of its range.
    """

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad
        _check_window("AvgPool2d", self.kernel_size, self.stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of each window."""
        return ops.avg_pool2d(
            x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad
        )

    def extra_repr(self) -> str:
        """The windows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """The means of windows laid so that the output has a given size; see `ops.adaptive_avg_pool2d`.

    Shapes:
        x: (N, C, H, W) or (C, H, W) -> the same with output_size

    Args:
        output_size: An integer, or height and width; None keeps the input's.

    Raises:
        ArgumentError: a size below 1.
    """

    def __init__(self, output_size: int | None | tuple[int | None, int | None]) -> None:
        super().__init__()
        sizes = output_size if isinstance(output_size, (tuple, list)) else (output_size, output_size)
        if len(sizes) != 2 or not all(size is None or (is_integer(size) and size >= 1) for size in sizes):
            raise ArgumentError(
                f"AdaptiveAvgPool2d: expected an output_size of one or two integers >= 1 or None, got {output_size!r}"
            )
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """The means."""
        size = self.output_size
        return ops.adaptive_avg_pool2d(x, size if isinstance(size, (tuple, list)) else (size, size))

    def extra_repr(self) -> str:
        """The size."""
        return f"output_size={self.output_size}"


def _check_window(who: str, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair = 1) -> None:
    kernels, dilations = as_pair(who, "kernel_size", kernel_size, 1), as_pair(who, "dilation", dilation, 1)
    as_pair(who, "stride", stride, 1)
    extents = tuple(d * (k - 1) + 1 for k, d in zip(kernels, dilations))
    if any(pad > extent // 2 for pad, extent in zip(as_pair(who, "padding", padding, 0), extents)):
        raise ArgumentError(f"{who}: expected padding of at most half the window {extents}, got {padding}")
