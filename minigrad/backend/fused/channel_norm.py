"""Batch, group and instance norm of images with the channels last: two launches forward, and two backward.

The references are `batch_norm` and `group_norm` of `minigrad.ops` on a CPU.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import compute_dtype
from minigrad.backend.kernels import KernelLoader, loader_for, suffix_of
from minigrad.errors import ShapeError

_THREADS = 256  # of a block, at most: column_warps of columns.cuh
_TILE_BYTES = 128  # of a row that a block takes
_BLOCKS = 512  # that are enough to fill a GPU
_MOST_BLOCKS = 2**16  # of a launch, and channels
_MOST_PARTS = 128  # of a segment; each block merges those that it needs
_LEAST_ROWS = 32  # of a part
_LONGEST_OF_A_WARP = 1024  # numbers that one warp merges


class Segments(NamedTuple):
    """How rows of channels share their statistics: those of a segment and a group of channels have the same.

    Attributes:
        number: Of segments; 1 for batch norm, one for each sample for group and instance norm.
        length: Rows of a segment.
        groups: Of channels; each channel is one for batch and instance norm.
    """

    number: int
    length: int
    channels: int
    groups: int

    @property
    def population(self) -> int:
        """Elements that share a statistic."""
        return self.length * (self.channels // self.groups)


class Size(NamedTuple):
    """The arguments of kernels that say how rows are shared out; height is that of a part."""

    segments: np.int32
    channels: np.int32
    groups: np.int32
    parts: np.int32
    length: np.int64
    height: np.int64


class Statistics(NamedTuple):
    """By what rows were normalized, (segments, groups) each, in the dtype that kernels compute in.

    Attributes:
        mean: Rounded.
        rest: What rounding took from the mean.
        rstd: 1 / sqrt(variance + eps).
        variance: None where it was not asked for.
        fixed: Whether they do not depend on the rows.
    """

    mean: Array
    rest: Array
    rstd: Array
    variance: Array | None
    fixed: bool


class Running(NamedTuple):
    """What a training pass moves: statistics of each channel, in the dtype of the rows, and an int64 of no axes."""

    mean: Array | None = None
    variance: Array | None = None
    batches: Array | None = None
    momentum: float = 0.0


def normalize_channels(
    x: Array,
    segments: Segments,
    gain: Array | None,
    shift: Array | None,
    eps: float,
    running: Running = Running(),
    with_variance: bool = False,
) -> tuple[Array, Statistics]:
    """(x - mean) / sqrt(var + eps) · gain + shift, with mean and biased variance of what shares them.

    Args:
        x: Rows of channels, contiguous and not empty.
        gain, shift: (channels,), contiguous, in the dtype of x.
        running: Moved towards the mean and the unbiased variance; of one segment alone.
    """
    loader, size = loader_for(x), _shape(x, segments)
    xp, suffix, dtype = array_module(x), suffix_of(x.dtype), compute_dtype(x.dtype)
    moments = xp.empty((3, segments.number * segments.channels * int(size.parts)), dtype)
    about, away, squares = moments[0], moments[1], moments[2]
    blocks, threads = _launch(loader, x, segments, size)
    name = f"channel_norm_moments_{suffix}"
    loader.launch("channel_norm", name, blocks, threads, (x, *size, about, away, squares))
    return _normalize(x, segments, size, gain, shift, eps, (about, away, squares), (None, None), running, with_variance)


def normalize_fixed(
    x: Array, mean: Array | None, variance: Array | None, gain: Array | None, shift: Array | None, eps: float
) -> tuple[Array, Statistics]:
    """The same with given statistics, (channels,) each, both in the dtype of x or in the one that kernels compute in;
    with 0 and 1 where they are None.
    """
    segments = Segments(1, x.size // x.shape[-1], x.shape[-1], x.shape[-1])
    size, given, wide = _shape(x, segments), (mean, variance), (None, None)
    if mean is None or variance is None:
        given = (None, None)
    elif mean.dtype != x.dtype:
        given, wide = wide, given
    return _normalize(x, segments, size, gain, shift, eps, (*wide, None), given, Running(), False)


def _normalize(
    x: Array,
    segments: Segments,
    size: Size,
    gain: Array | None,
    shift: Array | None,
    eps: float,
    moments: tuple[Array | None, Array | None, Array | None],
    fixed: tuple[Array | None, Array | None],
    running: Running,
    with_variance: bool,
) -> tuple[Array, Statistics]:
    loader = loader_for(x)
    xp, by_block = array_module(x), _by_block(segments, int(size.parts))
    y = xp.empty(x.shape, x.dtype)
    found = xp.empty((3 + with_variance, segments.number, segments.groups), compute_dtype(x.dtype))
    variance = found[3] if with_variance else None
    kept = (found[0], found[1], found[2], variance)
    moved = (running.mean, running.variance, running.batches, np.float64(running.momentum))
    args = (x, gain, shift, *size, np.float64(eps), by_block, *moments, *fixed, *moved, y, *kept)
    blocks, threads = _launch(loader, x, segments, size)
    loader.launch("channel_norm", f"channel_norm_normalize_{suffix_of(x.dtype)}", blocks, threads, args)
    return y, Statistics(*kept, fixed=moments[2] is None)


def channel_gradients(
    grad: Array,
    x: Array,
    segments: Segments,
    gain: Array | None,
    found: Statistics,
    dx: Array | None,
    dgain: Array | None,
    dshift: Array | None,
) -> None:
    """Write the gradients of x, gain and shift into arrays of the dtype of x; None stands for one not wanted.

    Args:
        grad, x: Rows of channels, contiguous and not empty.
    """
    loader, size = loader_for(x), _shape(x, segments)
    xp, suffix, parts = array_module(x), suffix_of(x.dtype), int(size.parts)
    blocks, threads = _launch(loader, x, segments, size)
    by_channel = dgain is not None or dshift is not None
    statistics = (found.mean, found.rest, found.rstd)
    totals = weighted = None
    if by_channel or not found.fixed:
        sums = xp.empty((2, segments.number * segments.channels * parts), found.mean.dtype)
        totals, weighted = sums[0], sums[1]
        name = f"channel_norm_sums_{suffix}"
        loader.launch("channel_norm", name, blocks, threads, (grad, x, *size, *statistics, totals, weighted))
    if dx is None:
        blocks = 0
    if by_channel:
        blocks += segments.channels
    long_columns = np.int32(segments.number * parts > _LONGEST_OF_A_WARP)
    options = (np.int32(found.fixed), _by_block(segments, parts), long_columns)
    args = (grad, x, gain, *size, *statistics, *options, totals, weighted, dx, dgain, dshift)
    if blocks:
        blocks = min(blocks, loader.max_blocks)
        loader.launch("channel_norm", f"channel_norm_gradients_{suffix}", blocks, threads, args)


# ------------------------------------------------------------------------------------------------- shapes of launches


@functools.lru_cache(maxsize=256)
def _plan(segments: Segments, tiles: int) -> Size:
    """How many parts a segment is cut into, and how high they are."""
    wanted = min(_MOST_PARTS, max(1, _BLOCKS // (tiles * segments.number)))
    height = max(_LEAST_ROWS, -(-segments.length // wanted))
    if segments.number * -(-segments.length // height) * tiles >= 2**31 - _MOST_BLOCKS:
        raise ShapeError(f"norm: expected fewer rows and channels than fill 2^31 blocks, got {segments}")
    small = (segments.number, segments.channels, segments.groups, -(-segments.length // height))
    number, channels, groups, parts = map(np.int32, small)
    return Size(number, channels, groups, parts, np.int64(segments.length), np.int64(height))


def _tiles(x: Array, segments: Segments) -> int:
    return -(-segments.channels * int(x.itemsize) // _TILE_BYTES)


def _shape(x: Array, segments: Segments) -> Size:
    """The arguments that say how the rows of x are shared out."""
    return _plan(segments, _tiles(x, segments))


def _launch(loader: KernelLoader, x: Array, segments: Segments, size: Size) -> tuple[int, int]:
    """Blocks, and threads of one."""
    work = segments.number * int(size.parts) * _tiles(x, segments)
    return min(work, loader.max_blocks), min(loader.threads, _THREADS)


def _by_block(segments: Segments, parts: int) -> np.int32:
    """Whether a whole block merges the numbers of a group."""
    many: np.int32 = np.int32(parts * (segments.channels // segments.groups) > _LONGEST_OF_A_WARP)
    return many
