"""Layers that give images and sequences another size, without parameters."""

from __future__ import annotations

from minigrad.arguments import check_choice
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.ops import families as ops
from minigrad.ops.interpolate import MODES
from minigrad.tensor import Tensor

__all__ = ["Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d"]

_Size = int | tuple[int, ...] | None
_Factor = float | tuple[float, ...] | None


class Upsample(Module):
    """Images or sequences in another size, larger or smaller; see `ops.interpolate`.

    Shapes:
        x: (N, C, L) -> (N, C, OL), or (N, C, H, W) -> (N, C, OH, OW)

    Args:
        size: The lengths of the output; one integer for all.
        scale_factor: In place of size: > 0, one number for all axes or one for each.
        mode, align_corners, recompute_scale_factor: See `ops.interpolate`.

    Raises:
        ArgumentError: size and scale_factor both or neither given, or another mode.
    """

    def __init__(
        self,
        size: _Size = None,
        scale_factor: _Factor = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        check_choice(self._who(), MODES, mode=mode)
        if (size is None) == (scale_factor is None):
            raise ArgumentError(
                f"{self._who()}: expected size or scale_factor, got size={size!r} and scale_factor={scale_factor!r}"
            )
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.recompute_scale_factor = align_corners, recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        """x in its new size."""
        return ops.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners, self.recompute_scale_factor
        )

    def extra_repr(self) -> str:
        """The size and the mode."""
        asked = f"size={self.size}" if self.scale_factor is None else f"scale_factor={self.scale_factor}"
        return f"{asked}, mode={self.mode!r}"


class UpsamplingNearest2d(Upsample):
    """`Upsample` with the nearest pixels.

    Shapes:
        x: (N, C, H, W) -> (N, C, OH, OW)
    """

    def __init__(self, size: _Size = None, scale_factor: _Factor = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """`Upsample` with pixels weighed, the corners staying where they are.

    Shapes:
        x: (N, C, H, W) -> (N, C, OH, OW)
    """

    def __init__(self, size: _Size = None, scale_factor: _Factor = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)
