"""Convolution of NHWC images: a gather of what each output pixel sees, and products of matrices.

The reference is `minigrad.ops.conv2d` on a CPU. Columns are (output pixels, groups, taps, channels of a group). With a
kernel of one tap that moves by one the pixels are the columns. At most `WORKSPACE` bytes of columns live at
a time, or those of one sample in an input gradient; backward gathers again rather than keep them. The weight gradient
is a sum of products over pieces of the pixels, which the lengths alone decide, in one order: its bits are the same in
each run and for each workspace, as far as cuBLAS multiplies a piece alike whatever the number of pieces. Outputs and
input gradients are products of rows, and of a row cuBLAS promises no bits where the number of rows changes: between
workspaces they may differ in rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype
from minigrad.backend.gemm import bmm
from minigrad.backend.kernels import KernelLoader, kernels_for, suffix_of
from minigrad.backend.memory import contiguous

WORKSPACE = 2**28  # bytes of columns
NARROW = 2**31 - 1  # elements, up to which kernels count in 32 bits

_MOST_PIECES = 64  # of a weight gradient, that all processors of a GPU have work
_LEAST_ROWS = 256  # of a piece
_LARGEST_PIECE = 2**25  # elements of columns
_PIECES_TOGETHER = 2**22  # elements of all pieces of a weight gradient
_VECTOR_BYTES = 16  # that a thread moves at a time, where memory allows it


class Lengths(NamedTuple):
    """The lengths of a convolution, each pair of height and width."""

    batch: int
    groups: int
    inside: tuple[int, int, int]  # C, H, W of what is convolved
    outside: tuple[int, int, int]  # O, OH, OW of what comes out
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # zeros above and to the left

    @property
    def pixels(self) -> int:
        """Of an output."""
        return self.outside[1] * self.outside[2]

    @property
    def rows(self) -> int:
        """Pixels of all outputs."""
        return self.batch * self.pixels

    @property
    def taps(self) -> int:
        """Of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def row(self) -> int:
        """Elements of a row of columns."""
        return self.inside[0] * self.taps

    @property
    def is_pointwise(self) -> bool:
        """Whether the pixels of the input are the columns."""
        return self.taps == 1 and self.stride == (1, 1) and self.inside[1:] == self.outside[1:]

    @property
    def is_turned(self) -> bool:
        """Whether a weight lies in another order than the columns."""
        return self.taps > 1 and self.inside[0] > self.groups


# ------------------------------------------------------------------------------------------------------ operations


def convolve(x: Array, weight: Array, bias: Array | None, lengths: Lengths) -> Array:
    """The convolution of images, plus bias.

    Shapes:
        x: (N, C, H, W), weight: (O, C / groups, kH, kW), bias: (O,) -> (N, OH, OW, O)

    Args:
        x: Read as it lies where that is in row order or with the channels last.
    """
    outputs, height, width = lengths.outside
    y = array_module(x).empty((lengths.batch, height, width, outputs), x.dtype)
    for part, columns, taps in _unfolded(x, weight, lengths, _rows_at_once(lengths, x.dtype)):
        _multiply(columns, taps, y, part, lengths)
    if bias is not None:
        y += bias
    return y


def input_gradient(
    grad: Array, weight: Array, bias: Array | None, lengths: Lengths, taps: Array | None = None
) -> Array:
    """What the pixels of the input get from those of the output, plus bias.

    Shapes:
        grad: (N, OH, OW, O), weight: (O, C / groups, kH, kW), bias: (C,) -> (N, H, W, C)

    Args:
        grad: Contiguous.
        taps: The weight in the order of columns, where the caller has it.
    """
    xp = array_module(grad)
    channels, height, width = lengths.inside
    pixels = xp.empty((lengths.batch, height, width, channels), grad.dtype)
    kernel = _turned(weight, lengths) if taps is None else taps
    if lengths.is_pointwise:
        rows, out = grad.reshape(-1, grad.shape[3]), pixels.reshape(-1, channels)
        bmm(_by_group(rows, lengths), kernel, _by_group(out, lengths))
        if bias is not None:
            pixels += bias
        return pixels
    for samples in _samples_at_once(lengths, grad.dtype):
        part = grad[samples]
        columns = xp.empty((len(part) * lengths.pixels, lengths.row), grad.dtype)
        bmm(_by_group(part.reshape(-1, part.shape[3]), lengths), kernel, _by_group(columns, lengths))
        spread(columns, bias, lengths, pixels[samples])
    return pixels


def gradients(
    x: Array, weight: Array, grad: Array, lengths: Lengths, wanted: tuple[bool, bool], out: Array | None = None
) -> tuple[Array | None, Array | None]:
    """The gradients of the images, (N, H, W, C), and of the weight; None where not wanted.

    Shapes:
        x: (N, C, H, W), weight: (O, C / groups, kH, kW), grad: (N, OH, OW, O)

    Args:
        out: Where the gradient of the weight may be written; of its shape, contiguous.
    """
    total = taps = None
    if wanted[1]:
        rows = grad.reshape(-1, grad.shape[3])
        sums = WeightSums(lengths, grad)
        for part, columns, taps in _unfolded(x, weight if wanted[0] else None, lengths, sums.step):
            sums.add(columns, rows[part])
        total = sums.total(out)
    return input_gradient(grad, weight, None, lengths, taps) if wanted[0] else None, total


def transposed_gradients(
    x: Array, weight: Array, grad: Array, lengths: Lengths, wanted: tuple[bool, bool], out: Array | None = None
) -> tuple[Array | None, Array | None]:
    """The same of `input_gradient`, as which a transposed convolution runs forward.

    Shapes:
        x: (N, OH, OW, O), weight: (O, C / groups, kH, kW), grad: (N, C, H, W) -> (N, OH, OW, O), as weight
    """
    found = array_module(x).empty(x.shape, x.dtype) if wanted[0] else None
    sums = WeightSums(lengths, x) if wanted[1] else None
    rows, step = x.reshape(-1, x.shape[3]), _rows_at_once(lengths, x.dtype) if sums is None else sums.step
    for part, columns, taps in _unfolded(grad, weight if wanted[0] else None, lengths, step):
        if sums is not None:
            sums.add(columns, rows[part])
        if found is not None:
            _multiply(columns, taps, found, part, lengths)
    return found, None if sums is None else sums.total(out)


# ---------------------------------------------------------------------------------------------------------- columns


def _unfolded(
    x: Array, weight: Array | None, lengths: Lengths, step: int
) -> Iterator[tuple[slice, Array, Array | None]]:
    """Ranges of rows, their columns, (R, C · taps), and the weight in the order of those."""
    if not lengths.rows:
        return
    if lengths.is_pointwise:
        taps = None if weight is None else _turned(weight, lengths)
        rows = contiguous(x.transpose(0, 2, 3, 1)).reshape(lengths.rows, lengths.row)
        yield slice(0, lengths.rows), rows, taps
        return
    taps = None
    planes = x.flags.c_contiguous
    images = x if planes else contiguous(x.transpose(0, 2, 3, 1))
    for start in range(0, lengths.rows, step):
        part = slice(start, min(start + step, lengths.rows))
        columns, turned = gather(images, planes, part, weight if taps is None else None, lengths)
        taps = turned if taps is None else taps
        yield part, columns, taps


def gather(
    images: Array, planes: bool, part: slice, weight: Array | None, lengths: Lengths
) -> tuple[Array, Array | None]:
    """A range of rows of the columns, and the weight in their order; one in another order is turned by the same kernel.

    Shapes:
        images: (N, C, H, W) where planes, else (N, H, W, C); weight: (O, C / groups, kH, kW)
        -> (R, C · taps), (groups, O / groups, taps · C / groups) or without the first axis where it is 1
    """
    xp, dtype, loader = array_module(images), images.dtype, _loader(images)
    columns = xp.empty((part.stop - part.start, lengths.row), dtype)
    turned = lying = None
    if weight is not None and lengths.is_turned:
        turned, lying = xp.empty(weight.shape, dtype), contiguous(weight)
    args = (
        *_scalars(lengths),
        *(images, np.int32(planes), np.int64(part.start), np.int64(len(columns))),
        np.int32(max(columns.size, part.stop) <= NARROW),
        *(columns, lying, np.int64(lengths.outside[0]), turned),
    )
    blocks = loader.blocks(_threads(columns.size, lengths, dtype))
    loader.launch("convolution", f"convolution_columns_{suffix_of(dtype)}", blocks, loader.threads, args)
    if weight is None:
        return columns, None
    return columns, _as_taps(weight if turned is None else turned, lengths)


def _turned(weight: Array, lengths: Lengths) -> Array:
    """A weight in the order of columns, (groups, O / groups, taps · C / groups); its own memory where it lies so."""
    if not lengths.is_turned:
        return _as_taps(weight, lengths)
    return _as_taps(contiguous(weight.transpose(0, 2, 3, 1)), lengths)


def _as_taps(weight: Array, lengths: Lengths) -> Array:
    taps = weight.reshape(lengths.groups, lengths.outside[0] // lengths.groups, lengths.row // lengths.groups)
    return taps if lengths.groups > 1 else taps[0]


def _by_group(rows: Array, lengths: Lengths) -> Array:
    """(R, D) as (groups, R, D / groups), a view; one group is a matrix."""
    if lengths.groups == 1:
        return rows
    return rows.reshape(rows.shape[0], lengths.groups, rows.shape[1] // lengths.groups).transpose(1, 0, 2)


def _multiply(columns: Array, taps: Array, y: Array, part: slice, lengths: Lengths) -> None:
    """Write a range of the pixels of an output."""
    out = y.reshape(-1, y.shape[3])[part]
    bmm(_by_group(columns, lengths), taps.swapaxes(-1, -2), _by_group(out, lengths))


def spread(columns: Array, bias: Array | None, lengths: Lengths, pixels: Array) -> None:
    """Write the pixels of some samples: the sums of what their columns hold, plus bias.

    Shapes:
        columns: (samples · OH · OW, C · taps), bias: (C,), pixels: (samples, H, W, C)
    """
    if pixels.size:
        loader, dtype = _loader(columns), columns.dtype
        shift = None if bias is None else contiguous(bias)
        narrow = np.int32(pixels.size <= NARROW)
        args = (*_scalars(lengths), columns, shift, np.int64(len(pixels)), narrow, pixels)
        blocks = loader.blocks(_threads(pixels.size, lengths, dtype))
        loader.launch("convolution", f"convolution_pixels_{suffix_of(dtype)}", blocks, loader.threads, args)


def _threads(elements: int, lengths: Lengths, dtype: np.dtype[Any]) -> int:
    """The threads for so many elements: one for a vector of channels."""
    vector = _VECTOR_BYTES // dtype.itemsize
    return elements // vector if lengths.inside[0] // lengths.groups % vector == 0 else elements


# -------------------------------------------------------------------------------------------------- weight gradient


class WeightSums:
    """The gradient of a weight: products over pieces of the pixels, added one after the other.

    Attributes:
        step: Rows to be added at a time; the last ones may be fewer.
    """

    def __init__(self, lengths: Lengths, like: Array) -> None:
        self._lengths, self._dtype, self._xp = lengths, like.dtype, array_module(like)
        self._piece = _rows_of_piece(lengths)
        self.step = self._piece * max(1, _rows_at_once(lengths, like.dtype) // self._piece)
        self._parts: Array = None  # (places, groups, O / groups, taps · C / groups), of which so many hold something:
        self._used = 0

    def add(self, columns: Array, rows: Array) -> None:
        """Add a range of rows: columns (R, C · taps), and the gradient of the output for the same, (R, O)."""
        lengths, piece = self._lengths, self._piece
        whole, rest = divmod(len(rows), piece)
        needed = whole + (rest > 0)
        if self._parts is None:
            shape = (lengths.groups, lengths.outside[0] // lengths.groups, lengths.row // lengths.groups)
            places = needed + (len(rows) < lengths.rows)
            self._parts = self._xp.empty((places, *shape), accumulator_dtype(self._dtype))
        if self._used + needed > len(self._parts):
            self._add_up(None)
            self._used = 1
        if whole:
            self._multiply(columns[: whole * piece], rows[: whole * piece], whole)
        if rest:
            self._multiply(columns[whole * piece :], rows[whole * piece :], 1)

    def _multiply(self, columns: Array, rows: Array, pieces: int) -> None:
        """rowsᵀ @ columns for each piece and group, into the next places."""
        seen, slopes = (part.reshape(pieces, len(part) // pieces, self._lengths.groups, -1) for part in (columns, rows))
        out = self._parts[self._used : self._used + pieces]
        bmm(slopes.transpose(0, 2, 3, 1), seen.transpose(0, 2, 1, 3), out)
        self._used += pieces

    def total(self, out: Array | None) -> Array:
        """The sum of what was added, of the shape of the weight; written into out where that is given."""
        if out is None:
            lengths = self._lengths
            shape = (lengths.outside[0], lengths.inside[0] // lengths.groups, *lengths.kernel)
            out = self._xp.empty(shape, self._dtype)
        if self._parts is None:
            out[...] = 0
        else:
            self._add_up(out)
        return out

    def _add_up(self, total: Array | None) -> None:
        """Sum the places in use, in their order: into total, turned to the order of the weight, or into the first."""
        lengths, loader = self._lengths, _loader(self._parts)
        inside = np.int32(lengths.inside[0] // lengths.groups)
        counts = (np.int32(self._used), np.int64(lengths.outside[0]), inside, np.int32(lengths.taps))
        blocks = loader.blocks(self._parts[0].size)
        name = f"convolution_weight_{suffix_of(self._dtype)}"
        loader.launch("convolution", name, blocks, loader.threads, (self._parts, *counts, total))


# ------------------------------------------------------------------------------------------------------------ sizes


def _rows_at_once(lengths: Lengths, dtype: np.dtype[Any]) -> int:
    """The rows of columns that fit into the workspace, at least one; of several parts all are about as long."""
    if lengths.is_pointwise:
        return max(lengths.rows, 1)
    limit = max(1, WORKSPACE // (lengths.row * dtype.itemsize))
    return max(1, -(-lengths.rows // max(1, -(-lengths.rows // limit))))


def _samples_at_once(lengths: Lengths, dtype: np.dtype[Any]) -> list[slice]:
    """Ranges of samples whose columns fit into the workspace, at least one sample each."""
    limit = max(1, WORKSPACE // max(1, lengths.pixels * lengths.row * dtype.itemsize))
    return [slice(start, min(start + limit, lengths.batch)) for start in range(0, lengths.batch, limit)]


def _rows_of_piece(lengths: Lengths) -> int:
    """The rows of a piece of the weight gradient: the same for any workspace and dtype."""
    weights = lengths.outside[0] * (lengths.row // lengths.groups)
    most = min(_MOST_PIECES // lengths.groups, _PIECES_TOGETHER // weights)  # each group has work for a processor too
    pieces = max(1, min(most, lengths.rows // _LEAST_ROWS))
    return max(1, min(-(-lengths.rows // pieces), _LARGEST_PIECE // lengths.row))


@functools.lru_cache(maxsize=256)
def _scalars(lengths: Lengths) -> tuple[np.int32, ...]:
    """As the kernels take them."""
    channels, height, width = lengths.inside
    numbers = (height, width, channels, lengths.groups, *lengths.outside[1:])
    return tuple(map(np.int32, (*numbers, *lengths.kernel, *lengths.stride, *lengths.dilation, *lengths.before)))


def _loader(array: Array) -> KernelLoader:
    loader = kernels_for(array)
    assert loader is not None
    return loader
