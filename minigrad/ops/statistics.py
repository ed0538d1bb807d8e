"""Means and variances over rows, for batch and group norm.

Both see (H, N, W, C) memory as rows of equal length and sum over rows with a product. What is left to sum then, within
a row, is small: the two norms differ only in which elements of a row share a statistic. On a CPU rows are taken in
blocks that stay in the cache over the whole chain of operations.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.workspace import empty
from minigrad.ops.axes import column_sum, row_sum
from minigrad.ops.image_order import channels_first, channels_last, from_nhwc, to_nhwc

_BLOCK = 65536  # elements of a block of rows
_LONGEST_FOLD = 2048  # elements of a row made of several pixels


class Folding(NamedTuple):
    """How an array is folded into rows that are normalized.

    A row has the axes (samples, pixels, groups, inside); channels are groups · inside. The elements of one sample and
    group, over all rows, pixels and channels inside, share one mean and variance.
    """

    samples: int
    pixels: int
    groups: int
    inside: int
    population: int  # elements that share a statistic

    @property
    def channels(self) -> int:
        """Channels of a pixel."""
        return self.groups * self.inside

    @property
    def length(self) -> int:
        """Elements of a row."""
        return self.samples * self.pixels * self.channels

    def sums(self, row: Array) -> Array:
        """The sum over the elements of a row that share a statistic: (samples, 1, groups, 1)."""
        split = row.reshape(self.samples, self.pixels, self.channels)
        if row.__class__ is np.ndarray:
            pixel = np.ones(self.pixels, row.dtype) @ split  # three times as fast as a sum
        else:
            pixel = split.sum(axis=1)
        sums = row_sum(pixel.reshape(-1, self.inside)) if self.inside > 1 else pixel
        return sums.reshape(self.samples, 1, self.groups, 1)

    def spread(self, statistic: Array) -> Array:
        """A statistic at each element of a row: (samples, 1, groups, 1) -> (length,)."""
        return statistic.repeat(self.inside, axis=3).repeat(self.pixels, axis=1).reshape(-1)

    def channel_sums(self, row: Array) -> Array:
        """The sum over the elements of a row that are of one channel: (channels,)."""
        return column_sum(row.reshape(-1, self.channels))

    def spread_channels(self, weight: Array, dtype: np.dtype[Any]) -> Array:
        """A value of each channel at each element of a row: (channels,) -> (length,)."""
        xp = array_module(weight)
        shape = (self.samples * self.pixels, self.channels)
        return xp.ascontiguousarray(xp.broadcast_to(weight.astype(dtype, copy=False), shape)).reshape(-1)


@functools.lru_cache(maxsize=256)
def batch_rows(pixels: int, channels: int) -> Folding:
    """The folding for statistics by channel: as many pixels to a row as divide their number and keep it short."""
    longest = max(1, _LONGEST_FOLD // max(channels, 1))
    fold = next(n for n in range(longest, 0, -1) if pixels % n == 0)
    return Folding(1, fold, channels, 1, pixels)


def group_rows(height: int, batch: int, width: int, channels: int, groups: int) -> Folding:
    """The folding for statistics by sample and group of channels: one for each row of the images."""
    inside = channels // groups
    return Folding(batch, width, groups, inside, max(1, height * width * inside))


def height_and_width(x: Array) -> tuple[int, int]:
    """Of images (N, C, H, ...), as `channels_last` lays them out."""
    return (x.shape[2], math.prod(x.shape[3:])) if x.ndim > 2 else (1, 1)


def row_blocks(rows: Array) -> list[slice]:
    """Consecutive parts of an array of rows; on a GPU, all of it."""
    count, length = rows.shape
    step = max(1, _BLOCK // max(length, 1)) if rows.__class__ is np.ndarray else max(count, 1)
    return [slice(start, start + step) for start in range(0, count, step)]


def work_dtype(x: Array) -> np.dtype[Any]:
    """The dtype of statistics: float32 for halves."""
    return np.dtype(np.float32) if x.dtype.itemsize == 2 else x.dtype


def statistics(rows: Array, folding: Folding) -> tuple[Array, Array]:
    """Mean and variance (biased) of the elements that share them, (samples, 1, groups, 1) each."""
    mean, error, variance = moments(rows, folding)
    return mean + error, variance


def moments(rows: Array, folding: Folding) -> tuple[Array, Array, Array]:
    """A rounded mean, what rounding took from it, and the variance about their sum; see `statistics`.

    The error is found in the second pass, which is about the rounded mean, and taken out of the variance.
    """
    zero = array_module(rows).zeros(rows.shape[1], work_dtype(rows))
    total, rest, squares = zero.copy(), zero.copy(), zero
    for part in row_blocks(rows):
        total += column_sum(rows[part].astype(zero.dtype, copy=False))
    mean = folding.sums(total) / folding.population
    center = folding.spread(mean)
    for part in row_blocks(rows):
        deviation = rows[part] - center
        rest += column_sum(deviation)
        deviation *= deviation
        squares += column_sum(deviation)
    error = folding.sums(rest) / folding.population
    return mean, error, folding.sums(squares) / folding.population - error * error


def merge_moments(parts: Array) -> tuple[Array, Array, Array]:
    """Count (), mean (C,) and M2 = Σ(x - mean)² (C,) of several parts together, such as those of ranks.

    Right for parts of any size, empty ones too, and without the cancellation of E[x²] - E[x]². Source: Chan, Golub and
    LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979, equation 2.1, for any
    number of parts.

    Shapes:
        parts: (parts, 1 + 2C), each count, means and M2s; a part of count 0 adds nothing. Weights that add up to 1
            or more do for counts.

    Example:
        >>> count, mean, squares = merge_moments(np.array([[1.0, 4.0, 0.0], [2.0, 7.0, 2.0]]))  # 4 | 6, 8
        >>> float(count), float(mean[0]), float(squares[0])
        (3.0, 6.0, 8.0)
    """
    xp, channels = array_module(parts), parts.shape[1] // 2
    counts, means, squares = parts[:, :1], parts[:, 1 : 1 + channels], parts[:, 1 + channels :]
    count = counts.sum()
    mean = (counts * means).sum(axis=0) / xp.maximum(count, 1.0)
    return count, mean, (squares + counts * (means - mean) ** 2).sum(axis=0)


def affine(rows: Array, scale: Array, shift: Array, center: Array | None = None) -> Array:
    """(rows - center) · scale + shift, in the dtype of rows; with a center precise where rows are near it."""
    xp = array_module(rows)
    out = empty(rows.shape, rows.dtype, rows)
    for part in row_blocks(rows):
        target = out[part] if rows.dtype == scale.dtype else None
        values = rows[part] if center is None else xp.subtract(rows[part], center, out=target)
        block = xp.multiply(values, scale, out=target)
        block += shift
        if target is None:
            out[part] = block
    return out


def row_sums(rows: Array, grad: Array, center: Array) -> tuple[Array, Array]:
    """Σ grad and Σ grad · (rows - center) over rows: (K,) each."""
    total = array_module(rows).zeros(rows.shape[1], center.dtype)
    weighted = total.copy()
    for part in row_blocks(rows):
        total += column_sum(grad[part].astype(center.dtype, copy=False))
        deviation = rows[part] - center
        deviation *= grad[part]
        weighted += column_sum(deviation)
    return total, weighted


def input_gradient(
    rows: Array, grad: Array, scale: Array, slope: Array, shift: Array, center: Array | None = None, *,
    spare: bool = False,
) -> Array:
    """grad · scale - (rows - center) · slope + shift, in the dtype of rows.

    Args:
        spare: It may be written over grad, which is of that dtype.
    """
    xp = array_module(rows)
    out = grad if spare else empty(rows.shape, rows.dtype, rows)
    for part in row_blocks(rows):
        target = out[part] if rows.dtype == scale.dtype else None
        block = xp.multiply(grad[part], scale, out=target)
        block -= (rows[part] if center is None else rows[part] - center) * slope
        block += shift
        if target is None:
            out[part] = block
    return out


def as_rows(x: Array, folding: Folding) -> Array:
    """Any (N, C, ...) as the rows of a folding; x's own memory where it lies as images do."""
    pixels = to_nhwc(x) if _is_nhwc(x, folding) else channels_last(x)
    return pixels.reshape(x.size // max(folding.length, 1), folding.length)


def from_rows(rows: Array, like: Array, folding: Folding) -> Array:
    """What `as_rows` did, undone: the (N, C, ...) view of rows made of an array like this one."""
    height, width = height_and_width(like)
    if _is_nhwc(rows, folding):
        return from_nhwc(rows, like.shape)
    return channels_first(rows.reshape(height, like.shape[0], width, like.shape[1]), like.shape)


def _is_nhwc(x: Array, folding: Folding) -> bool:
    """Whether rows are of NHWC memory, as on a GPU, where a row is of any pixels; those of samples begin with H."""
    return x.__class__ is not np.ndarray and folding.samples == 1
