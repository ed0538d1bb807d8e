"""Batch, group and instance norm of images with the channels last: two launches forward, and two backward.

The references are `batch_norm` and `group_norm` of `minigrad.ops` on a CPU.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array
from minigrad.backend.fused.rows import compute_dtype
from minigrad.backend.kernels import KernelLoader, int32, loader_for, suffix_of
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
    loader = loader_for(x)
    plan = _planned(loader, segments, x.dtype)
    moments = array_module(x).empty((3, plan.numbers), plan.wide)
    three = moments[0], moments[1], moments[2]
    loader.launch("channel_norm", plan.moments, plan.blocks, plan.threads, (x, *plan.size, *three))
    return _normalize(x, plan, gain, shift, eps, three, (None, None), running, with_variance)


def normalize_fixed(
    x: Array, mean: Array | None, variance: Array | None, gain: Array | None, shift: Array | None, eps: float
) -> tuple[Array, Statistics]:
    """The same with given statistics, (channels,) each, both in the dtype of x or in the one that kernels compute in;
    with 0 and 1 where they are None.
    """
    segments = Segments(1, x.size // x.shape[-1], x.shape[-1], x.shape[-1])
    plan, given, wide = _planned(loader_for(x), segments, x.dtype), (mean, variance), (None, None)
    if mean is None or variance is None:
        given = (None, None)
    elif mean.dtype != x.dtype:
        given, wide = wide, given
    return _normalize(x, plan, gain, shift, eps, (*wide, None), given, Running(), False)


def _normalize(
    x: Array,
    plan: _Plan,
    gain: Array | None,
    shift: Array | None,
    eps: float,
    moments: tuple[Array | None, Array | None, Array | None],
    fixed: tuple[Array | None, Array | None],
    running: Running,
    with_variance: bool,
) -> tuple[Array, Statistics]:
    loader, xp = loader_for(x), array_module(x)
    y = xp.empty(x.shape, x.dtype)
    found = xp.empty((3 + with_variance, *plan.statistics), plan.wide)
    variance = found[3] if with_variance else None
    kept = (found[0], found[1], found[2], variance)
    moved = (running.mean, running.variance, running.batches, np.float64(running.momentum))
    args = (x, gain, shift, *plan.size, np.float64(eps), plan.by_block, *moments, *fixed, *moved, y, *kept)
    loader.launch("channel_norm", plan.normalize, plan.blocks, plan.threads, args)
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
    loader = loader_for(x)
    plan = _planned(loader, segments, x.dtype)
    blocks = plan.blocks
    by_channel = dgain is not None or dshift is not None
    statistics = (found.mean, found.rest, found.rstd)
    totals = weighted = None
    if by_channel or not found.fixed:
        sums = array_module(x).empty((2, plan.numbers), found.mean.dtype)
        totals, weighted = sums[0], sums[1]
        sums_of = (grad, x, *plan.size, *statistics, totals, weighted)
        loader.launch("channel_norm", plan.sums, blocks, plan.threads, sums_of)
    if dx is None:
        blocks = 0
    if by_channel:
        blocks += segments.channels
    if blocks:
        options = (int32(found.fixed), plan.by_block, plan.long_columns)
        args = (grad, x, gain, *plan.size, *statistics, *options, totals, weighted, dx, dgain, dshift)
        loader.launch("channel_norm", plan.gradients, min(blocks, loader.max_blocks), plan.threads, args)


# ------------------------------------------------------------------------------------------------- shapes of launches


class _Plan(NamedTuple):
    """What is launched for rows of one form and dtype.

    Attributes:
        moments, normalize, sums, gradients: The kernels.
        size: How the rows are shared out.
        blocks, threads: Of a launch.
        wide: The dtype in which kernels compute.
        numbers: How many a kernel leaves of one kind, one for each part and channel.
        statistics: The shape of means.
        by_block, long_columns: Whether a whole block merges the numbers of a group, and those of a channel.
    """

    moments: str
    normalize: str
    sums: str
    gradients: str
    size: Size
    blocks: int
    threads: int
    wide: np.dtype[Any]
    numbers: int
    statistics: tuple[int, int]
    by_block: np.int32
    long_columns: np.int32


@functools.lru_cache(maxsize=256)
def _planned(loader: KernelLoader, segments: Segments, dtype: np.dtype[Any]) -> _Plan:
    number, length, channels, groups = segments
    tiles = -(-channels * dtype.itemsize // _TILE_BYTES)
    parts, height = _parts(segments, tiles)
    moments, normalize, sums, gradients = (
        f"channel_norm_{kind}_{suffix_of(dtype)}" for kind in ("moments", "normalize", "sums", "gradients")
    )
    small = np.int32(number), np.int32(channels), np.int32(groups), np.int32(parts)
    return _Plan(
        moments,
        normalize,
        sums,
        gradients,
        size=Size(*small, np.int64(length), np.int64(height)),
        blocks=min(number * parts * tiles, loader.max_blocks),
        threads=min(loader.threads, _THREADS),
        wide=compute_dtype(dtype),
        numbers=number * channels * parts,
        statistics=(number, groups),
        by_block=np.int32(parts * (channels // groups) > _LONGEST_OF_A_WARP),
        long_columns=np.int32(number * parts > _LONGEST_OF_A_WARP),
    )


def _parts(segments: Segments, tiles: int) -> tuple[int, int]:
    """How many parts a segment is cut into, and how high they are."""
    wanted = min(_MOST_PARTS, max(1, _BLOCKS // (tiles * segments.number)))
    height = max(_LEAST_ROWS, -(-segments.length // wanted))
    parts = -(-segments.length // height)
    if segments.number * parts * tiles >= 2**31 - _MOST_BLOCKS:
        raise ShapeError(f"norm: expected fewer rows and channels than fill 2^31 blocks, got {segments}")
    return parts, height
