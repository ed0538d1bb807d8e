"""Images and sequences in another size: each element of the result is a weighted sum of a few of x along each axis.

Which few, and with which weights, is a table for each axis; turned round, so that it says for each element of x where
it went, the same table gives the gradient. So nothing is ever scattered, and sums have one order.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minigrad.arguments import as_integer, as_real, check_choice, check_switch, kind_of
from minigrad.autograd.tape import Node, accumulate
from minigrad.backend.device import Place, place_of, to_place
from minigrad.backend.dtypes import Array, accumulator_dtype, converted
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.ops.image_order import as_given, as_images, channels_first, channels_last, from_nhwc, to_nhwc
from minigrad.ops.operands import check_float, masked
from minigrad.ops.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from minigrad.tensor import Tensor, record

__all__ = ["interpolate"]

_AXES = {"nearest": (1, 2), "nearest-exact": (1, 2), "area": (1, 2), "linear": (1,), "bilinear": (2,), "bicubic": (2,)}
MODES = tuple(_AXES)
_SMOOTH = ("linear", "bilinear", "bicubic")
_CUBIC = -0.75  # the slope of the kernel at 1 (Keys, 1981, has -0.5)

_Host = np.ndarray[Any, Any]


class _Axis(NamedTuple):
    """What becomes of one axis."""

    length: int
    outputs: int
    scale: float | None  # elements of the result for one of x, where the user said so
    mode: str
    align_corners: bool


class _Table(NamedTuple):
    """For each tap, where along an axis it looks, its weight there, and where there is one at all: (n,) each."""

    sources: tuple[Array, ...]
    weights: tuple[Array | None, ...]  # None: all are 1
    real: tuple[Array | None, ...]  # None: it is one everywhere


def interpolate(
    x: Tensor,
    size: int | tuple[int, ...] | list[int] | None = None,
    scale_factor: float | tuple[float, ...] | list[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """x made larger or smaller along its last one or two axes. dx = Mᵀ g, with y = M x along each of them.

    Element i of the result is at (i + 1/2) / scale - 1/2 of x, with align_corners at i · (L - 1) / (OL - 1). "linear"
    and "bilinear" weigh the two elements beside that place along each axis, "bicubic" four (Keys, "Cubic convolution
    interpolation", 1981, with -0.75), "nearest-exact" takes the one next to it; "nearest" the one before i / scale.
    "area" is `adaptive_avg_pool2d`.

    Shapes:
        (N, C, L) -> (N, C, OL) or (N, C, H, W) -> (N, C, OH, OW)

    Args:
        size: The lengths OL, or OH and OW; one integer for both.
        scale_factor: > 0; in place of size, whose lengths are then rounded down: one number, or one for each axis.
        mode: "nearest", "nearest-exact" or "area"; "linear" for one axis, "bilinear" or "bicubic" for two.
        align_corners: Let the outermost elements stay where they are; not for the first three modes.
        recompute_scale_factor: Take lengths over lengths for the scale, also where scale_factor says another one.
        antialias: False only.

    Raises:
        ShapeError: another number of axes, or nothing to look at, or nothing left.
        ArgumentError: an argument out of range, or size and scale_factor both or neither given.
        DtypeError: no float tensor.

    Example:
        >>> import minigrad
        >>> minigrad.nn.functional.interpolate(minigrad.tensor([[[1.0, 3.0]]]), size=4, mode="linear").tolist()
        [[[1.0, 1.5, 2.5, 3.0]]]
    """
    axes = _check_options(x, mode, align_corners, recompute_scale_factor, antialias)
    lengths = x.data.shape[-axes:]
    outputs, scales = _sizes(lengths, size, scale_factor, recompute_scale_factor)
    if not min(lengths) or min(outputs) < 1:
        raise ShapeError(f"interpolate: expected lengths of at least 1, got x {x.shape} to {outputs}")
    if mode == "area":
        return adaptive_avg_pool1d(x, outputs) if axes == 1 else adaptive_avg_pool2d(x, outputs)
    if mode == "nearest" and axes == 2:  # a length that is kept or doubled has no other scale, in PyTorch too
        scales = tuple([None if m in (n, 2 * n) else scale for n, m, scale in zip(lengths, outputs, scales)])
    changes = [_Axis(n, m, scale, mode, bool(align_corners)) for n, m, scale in zip(lengths, outputs, scales)]
    places = ((2, changes[-1]),) if axes == 1 else ((0, changes[0]), (2, changes[1]))  # of (H, N, W, C)
    y = _resampled(x.data, axes, places, turned=False)
    return record(y, _interpolate_backward, (x,), (axes, places))


def _interpolate_backward(node: Node, grad: Array) -> None:
    axes, places = node.saved
    accumulate(node.inputs[0], _resampled(grad, axes, places[::-1], turned=True))


def _resampled(x: Array, axes: int, places: tuple[tuple[int, _Axis], ...], turned: bool) -> Array:
    """Images, or their gradients, put through the tables of some axes."""
    images, dtype, on_host = as_images(x, axes), x.dtype, x.__class__ is np.ndarray
    batch, channels = images.shape[:2]
    wide = accumulator_dtype(dtype)
    pixels = (channels_last if on_host else to_nhwc)(images).astype(wide, copy=False)
    rows = 0 if on_host else 1  # the axis of the height
    for place, change in places:
        table = _table(change, wide, place_of(pixels), turned)
        parts = zip(table.sources, table.weights, table.real)
        axis = rows if place == 0 else 2
        total = _tap(pixels, axis, *next(parts))
        for part in parts:
            total += _tap(pixels, axis, *part)
        pixels = total
    shape = (batch, channels, pixels.shape[rows], pixels.shape[2])
    images = channels_first(pixels, shape) if on_host else from_nhwc(pixels, shape)
    return as_given(images if wide == dtype else converted(images, dtype), axes, x.ndim)


def _tap(pixels: Array, axis: int, source: Array, weight: Array | None, real: Array | None) -> Array:
    """What one tap sees along an axis of pixels, weighed."""
    seen = pixels.take(source, axis)
    shape = (-1, *[1] * (3 - axis))
    if weight is not None:
        seen *= weight.reshape(shape)
    return seen if real is None else masked(seen, real.reshape(shape))


# ----------------------------------------------------------------------------------------------------------- tables


@functools.lru_cache(maxsize=256)
def _table(change: _Axis, dtype: np.dtype[Any], place: Place, turned: bool) -> _Table:
    """The table of an axis; turned: that of its gradient."""
    sources, weights = _sources(change, dtype)
    real = np.ones(sources.shape, bool)
    if turned:
        sources, weights, real = _turned(sources, weights, change.length)
    return _Table(
        tuple([to_place(row.copy(), place) for row in sources]),
        tuple([None if (row[known] == 1).all() else to_place(row.copy(), place) for row, known in zip(weights, real)]),
        tuple([None if known.all() else to_place(known.copy(), place) for known in real]),
    )


def _sources(change: _Axis, dtype: np.dtype[Any]) -> tuple[_Host, _Host]:
    """Where each tap looks, and its weight: (taps, outputs) each; in the arithmetic of this dtype, as PyTorch's."""
    length, outputs, given, mode, align_corners = change
    number = dtype.type
    places = np.arange(outputs, dtype=dtype)
    scale = number(1.0 / given) if given is not None else number(length) / number(outputs)
    half = number(0.5)
    if length == outputs and mode in ("linear", "bilinear"):  # whatever the scale
        return np.arange(length)[None], np.ones((1, length), dtype)
    if mode == "nearest" or mode == "nearest-exact":
        found = np.floor((places + half) * scale if mode == "nearest-exact" else places * scale)
        return np.minimum(found.astype(np.int64), length - 1)[None], np.ones((1, outputs), dtype)
    if align_corners:
        places = places * (number(length - 1) / number(outputs - 1) if outputs > 1 else number(0))
    else:
        places = scale * (places + half) - half
    if mode == "bicubic":
        return _cubic(places, length)
    before = np.minimum(np.maximum(places, 0).astype(np.int64), length - 1)
    share = (places - before).clip(0, 1)
    return np.stack([before, np.minimum(before + 1, length - 1)]), np.stack([1 - share, share])


def _cubic(places: _Host, length: int) -> tuple[_Host, _Host]:
    before = np.minimum(np.floor(places).astype(np.int64), length - 1)
    t = (places - before).clip(0, 1)
    a = places.dtype.type(_CUBIC)
    near, far = (((a + 2) * d - (a + 3)) * d * d + 1 for d in (t, 1 - t)), (
        ((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (t + 1, 2 - t)
    )
    (second, third), (first, fourth) = near, far
    sources = np.stack([before - 1, before, before + 1, before + 2]).clip(0, length - 1)
    return sources, np.stack([first, second, third, fourth])


def _turned(sources: _Host, weights: _Host, length: int) -> tuple[_Host, _Host, _Host]:
    """A table as the elements of x see it: the results that each went into, in their order."""
    taps, outputs = sources.shape
    into, shares = sources.T.reshape(-1), weights.T.reshape(-1)
    used = np.flatnonzero(shares)
    order = used[np.argsort(into[used], kind="stable")]
    counts = np.bincount(into[used], minlength=length)
    rank = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = (max(1, int(np.max(counts))), length)
    back, factors, real = np.zeros(shape, np.int64), np.zeros(shape, weights.dtype), np.zeros(shape, bool)
    back[rank, into[order]] = order // taps
    factors[rank, into[order]] = shares[order]
    real[rank, into[order]] = True
    return back, factors, real


# -------------------------------------------------------------------------------------------------------- arguments


def _check_options(
    x: Tensor, mode: str, align_corners: bool | None, recompute_scale_factor: bool | None, antialias: bool
) -> int:
    """How many axes change."""
    if not isinstance(x, Tensor):
        raise DtypeError(f"interpolate: expected a tensor, got {kind_of(x)}")
    check_float("interpolate", x)
    check_choice("interpolate", MODES, mode=mode)
    axes = x.ndim - 2
    if axes not in _AXES[mode]:
        shapes = " or ".join(("(N, C, L)", "(N, C, H, W)")[n - 1] for n in _AXES[mode])
        raise ShapeError(f"interpolate: expected x of shape {shapes} for mode {mode!r}, got {x.shape}")
    if antialias is not False:
        raise ArgumentError(
            f"interpolate: expected antialias=False, got {antialias!r}: write mode='area' for a smaller image"
        )
    if align_corners is not None:
        check_switch("interpolate", align_corners=align_corners)
        if mode not in _SMOOTH:
            raise ArgumentError(f"interpolate: expected no align_corners for mode {mode!r}, got {align_corners}")
    if recompute_scale_factor is not None:
        check_switch("interpolate", recompute_scale_factor=recompute_scale_factor)
    return axes


def _sizes(
    lengths: tuple[int, ...], size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """The lengths of the result, and the scales that the user means by them."""
    if (size is None) == (scale_factor is None):
        raise ArgumentError(
            f"interpolate: expected size or scale_factor, got size={size!r} and scale_factor={scale_factor!r}"
        )
    if size is not None and recompute:
        raise ArgumentError("interpolate: expected recompute_scale_factor with scale_factor only, got it with size")
    name, given = ("size", size) if scale_factor is None else ("scale_factor", scale_factor)
    values = tuple(given) if isinstance(given, (tuple, list)) else (given,) * len(lengths)
    if len(values) != len(lengths):
        raise ArgumentError(f"interpolate: expected {name} with {len(lengths)} values, got {given!r:.100}")
    if scale_factor is None:
        return tuple([as_integer("interpolate", "size", n, 1) for n in values]), (None,) * len(lengths)
    scales = [as_real("interpolate", "scale_factor", s, above=0.0, finite=True) for s in values]
    outputs = tuple([math.floor(n * s) for n, s in zip(lengths, scales)])
    return outputs, (None,) * len(lengths) if recompute else tuple(scales)
