"""Layers that only change shapes, or nothing."""

from __future__ import annotations

from typing import Any

from minigrad.arguments import as_integer, as_sequence, check_sizes
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.tensor import Tensor

__all__ = ["Flatten", "Identity", "PixelShuffle", "PixelUnshuffle", "Unflatten"]


class Flatten(Module):
    """A run of axes joined into one; by default all but the batch axis.

    Args:
        start_dim, end_dim: The first and the last of them.

    Raises:
        ArgumentError: one of them is no integer.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim = as_integer("Flatten", "start_dim", start_dim)
        self.end_dim = as_integer("Flatten", "end_dim", end_dim)

    def forward(self, x: Tensor) -> Tensor:
        """The input in its new shape."""
        return ops.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The axes."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One axis split into several.

    Args:
        dim: The axis.
        unflattened_size: Their lengths; one may be -1.

    Raises:
        ArgumentError: a length below -1, or arguments of another type.
    """

    def __init__(self, dim: int, unflattened_size: tuple[int, ...] | list[int]) -> None:
        super().__init__()
        as_integer("Unflatten", "dim", dim)
        check_sizes("Unflatten", -1, unflattened_size=as_sequence("Unflatten", "unflattened_size", unflattened_size))
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        """The input in its new shape."""
        return ops.unflatten(x, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        """The axes."""
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class PixelShuffle(Module):
    """Channels laid out as the pixels of a larger image; see `ops.pixel_shuffle`.

    Shapes:
        x: (..., C · r², H, W) -> (..., C, H · r, W · r)

    Args:
        upscale_factor: r >= 1.

    Raises:
        ArgumentError: a factor below 1.
    """

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = as_integer("PixelShuffle", "upscale_factor", upscale_factor, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The larger image."""
        return ops.pixel_shuffle(x, self.upscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Blocks of pixels laid out as channels of a smaller image; see `ops.pixel_unshuffle`.

    Shapes:
        x: (..., C, H · r, W · r) -> (..., C · r², H, W)

    Args:
        downscale_factor: r >= 1.

    Raises:
        ArgumentError: a factor below 1.
    """

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = as_integer("PixelUnshuffle", "downscale_factor", downscale_factor, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The smaller image."""
        return ops.pixel_unshuffle(x, self.downscale_factor)

    def extra_repr(self) -> str:
        """The factor."""
        return f"downscale_factor={self.downscale_factor}"


class Identity(Module):
    """Gives back its input; a placeholder. Arguments of any kind are ignored, as in PyTorch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        """The input."""
        return x
