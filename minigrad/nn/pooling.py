"""Pooling layers; none has parameters."""

from __future__ import annotations

from minigrad.arguments import Pair, as_pair, is_integer
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d", "MaxPool1d", "MaxPool2d"]


class MaxPool(Module):
    """What the pools of a maximum share; a subclass says along how many axes its windows go."""

    axes: int

    def __init__(
        self,
        kernel_size: Pair,
        stride: Pair | None = None,
        padding: Pair = 0,
        dilation: Pair = 1,
        *,  # PyTorch has return_indices before ceil_mode
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size, self.stride, self.padding = kernel_size, kernel_size if stride is None else stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode
        _check_window(self._who(), self.axes, self.kernel_size, self.stride, padding, dilation)

    def extra_repr(self) -> str:
        """The windows."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(MaxPool):
    """The greatest value in each window along one axis; see `ops.max_pool1d` and `MaxPool2d`.

    Shapes:
        x: (N, C, L) or (C, L) -> the same with OL
    """

    axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """The greatest value in each window."""
        return ops.max_pool1d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class MaxPool2d(MaxPool):
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

    axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """The greatest value in each window."""
        return ops.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)


class AvgPool(Module):
    """What the pools of a mean share; a subclass says along how many axes its windows go."""

    axes: int

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
        _check_window(self._who(), self.axes, self.kernel_size, self.stride, padding)

    def extra_repr(self) -> str:
        """The windows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool1d(AvgPool):
    """The mean of each window along one axis; see `ops.avg_pool1d` and `AvgPool2d`.

    Shapes:
        x: (N, C, L) or (C, L) -> the same with OL
    """

    axes = 1

    def forward(self, x: Tensor) -> Tensor:
        """The mean of each window."""
        return ops.avg_pool1d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AvgPool2d(AvgPool):
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

    axes = 2

    def forward(self, x: Tensor) -> Tensor:
        """The mean of each window."""
        return ops.avg_pool2d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class AdaptiveAvgPool1d(Module):
    """The means of windows laid so that the output has a given length; see `ops.adaptive_avg_pool1d`.

    Shapes:
        x: (N, C, L) or (C, L) -> the same with output_size

    Args:
        output_size: >= 1.

    Raises:
        ArgumentError: a size below 1.
    """

    def __init__(self, output_size: Pair) -> None:
        super().__init__()
        as_pair("AdaptiveAvgPool1d", "output_size", output_size, 1, 1)
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """The means."""
        return ops.adaptive_avg_pool1d(x, self.output_size)

    def extra_repr(self) -> str:
        """The length."""
        return f"output_size={self.output_size}"


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


def _check_window(who: str, axes: int, kernel_size: Pair, stride: Pair, padding: Pair, dilation: Pair = 1) -> None:
    kernels = as_pair(who, "kernel_size", kernel_size, 1, axes)[-axes:]
    dilations, pads = (
        as_pair(who, name, value, least, axes)[-axes:]
        for name, value, least in (("dilation", dilation, 1), ("padding", padding, 0))
    )
    as_pair(who, "stride", stride, 1, axes)
    extents = tuple(d * (k - 1) + 1 for k, d in zip(kernels, dilations))
    if any(pad > extent // 2 for pad, extent in zip(pads, extents)):
        raise ArgumentError(f"{who}: expected padding of at most half the window {extents}, got {padding}")
