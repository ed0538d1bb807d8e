"""Convolution of NHWC images: a gather of what each output pixel sees, and products of matrices.

The reference is `minigrad.ops.conv2d` on a CPU. Columns are (output pixels, groups, taps, channels of a group). With a
kernel of one tap that moves by one the pixels are the columns. At most `BOUNDS.workspace` bytes of columns live at
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
from minigrad.backend.fused.bias import add_bias
from minigrad.backend.gemm import bmm
from minigrad.backend.kernels import launch_of, loader_for
from minigrad.backend.memory import contiguous

_VECTOR_BYTES = 16  # that a thread moves at a time, where memory allows it
_NO: np.int32 = np.int32(0)
_YES: np.int32 = np.int32(1)


class Bounds(NamedTuple):
    """How work is cut.

    Attributes:
        workspace: Bytes of columns.
        narrow: Elements, up to which kernels count in 32 bits.
        most_pieces, least_rows, largest_piece, together: Of a weight gradient: pieces, so that all processors of a GPU
            have work; rows of a piece; elements of its columns; elements of the products of all pieces.
    """

    workspace: int = 2**28
    narrow: int = 2**31 - 1
    most_pieces: int = 64
    least_rows: int = 256
    largest_piece: int = 2**25
    together: int = 2**22


BOUNDS = Bounds()


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


class RowRange(NamedTuple):
    """A range of the rows of columns, with what a gather of it is launched with."""

    rows: slice
    shape: tuple[int, int]
    first: np.int64
    length: np.int64
    narrow: np.int32
    threads: int


class Tiling:
    """What the lengths and the dtype of a convolution decide: what is launched, and in which parts; see `tiling_of`."""

    def __init__(self, lengths: Lengths, dtype: np.dtype[Any], bounds: Bounds) -> None:
        self.lengths, self.dtype, self._bounds = lengths, dtype, bounds
        (channels, height, width), (outputs, out_height, out_width) = lengths.inside, lengths.outside
        self.is_pointwise, self.is_turned = lengths.is_pointwise, lengths.is_turned
        self.inside = channels // lengths.groups
        self.out_shape = (lengths.batch, out_height, out_width, outputs)
        self.in_shape = (lengths.batch, height, width, channels)
        self.taps_shape = (lengths.groups, outputs // lengths.groups, lengths.row // lengths.groups)
        numbers = (height, width, channels, lengths.groups, out_height, out_width)
        pairs = (*lengths.kernel, *lengths.stride, *lengths.dilation, *lengths.before)
        self.scalars = tuple(map(np.int32, (*numbers, *pairs)))
        self.outputs = np.int64(outputs)
        self.piece = self._rows_of_piece()
        step = self._rows_at_once()
        self.parts = self._cut(step)
        self.weight_parts = self._cut(max(1, step // self.piece) * self.piece)  # whole pieces, but for the last one
        self.samples = self._samples_at_once()

    def part(self, rows: slice) -> RowRange:
        """A range of rows."""
        count = rows.stop - rows.start
        elements = count * self.lengths.row
        narrow = self.is_narrow(max(elements, rows.stop))
        shape = (count, self.lengths.row)
        return RowRange(rows, shape, np.int64(rows.start), np.int64(count), narrow, self.threads(elements))

    def threads(self, elements: int) -> int:
        """The threads for so many elements: one for a vector of channels."""
        vector = _VECTOR_BYTES // self.dtype.itemsize
        return elements if self.inside % vector else elements // vector

    def is_narrow(self, elements: int) -> np.int32:
        """Whether kernels count so many elements in 32 bits."""
        return _YES if elements <= self._bounds.narrow else _NO

    def _cut(self, step: int) -> tuple[RowRange, ...]:
        rows = self.lengths.rows
        return tuple([self.part(slice(start, min(start + step, rows))) for start in range(0, rows, step)])

    def _rows_at_once(self) -> int:
        """The rows of columns that fit into the workspace, at least one; of several parts all are about as long."""
        lengths = self.lengths
        if lengths.is_pointwise:
            return max(lengths.rows, 1)
        limit = max(1, self._bounds.workspace // (lengths.row * self.dtype.itemsize))
        return max(1, -(-lengths.rows // max(1, -(-lengths.rows // limit))))

    def _samples_at_once(self) -> tuple[slice, ...]:
        """Ranges of samples whose columns fit into the workspace, at least one sample each."""
        lengths = self.lengths
        limit = max(1, self._bounds.workspace // max(1, lengths.pixels * lengths.row * self.dtype.itemsize))
        starts = range(0, lengths.batch, limit)
        return tuple([slice(start, min(start + limit, lengths.batch)) for start in starts])

    def _rows_of_piece(self) -> int:
        """The rows of a piece of the weight gradient: the same for any workspace and dtype."""
        lengths, bounds = self.lengths, self._bounds
        weights = lengths.outside[0] * (lengths.row // lengths.groups)
        most = min(bounds.most_pieces // lengths.groups, bounds.together // weights)  # groups share the work, too
        pieces = max(1, min(most, lengths.rows // bounds.least_rows))
        return max(1, min(-(-lengths.rows // pieces), bounds.largest_piece // lengths.row))


def tiling_of(lengths: Lengths, dtype: np.dtype[Any]) -> Tiling:
    """The tiling of a convolution, found at the first time."""
    return _tiling_of(lengths, dtype, BOUNDS)


_tiling_of = functools.lru_cache(maxsize=256)(Tiling)


# ------------------------------------------------------------------------------------------------------ operations


def convolve(x: Array, weight: Array, bias: Array | None, lengths: Lengths) -> Array:
    """The convolution of images, plus bias.

    Shapes:
        x: (N, C, H, W), weight: (O, C / groups, kH, kW), bias: (O,) -> (N, OH, OW, O)

    Args:
        x: Read as it lies where that is in row order or with the channels last.
    """
    tiling = tiling_of(lengths, x.dtype)
    y = array_module(x).empty(tiling.out_shape, x.dtype)
    for rows, columns, taps in _unfolded(x, weight, tiling, tiling.parts):
        _multiply(columns, taps, y, rows, lengths)
    if bias is not None:
        add_bias(y.reshape(-1, y.shape[3]), bias)
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
    tiling, xp = tiling_of(lengths, grad.dtype), array_module(grad)
    pixels = xp.empty(tiling.in_shape, grad.dtype)
    kernel = _turned(weight, tiling) if taps is None else taps
    if tiling.is_pointwise:
        rows, out = grad.reshape(-1, grad.shape[3]), pixels.reshape(-1, pixels.shape[3])
        bmm(_by_group(rows, lengths), kernel, _by_group(out, lengths))
        if bias is not None:
            add_bias(out, bias)
        return pixels
    for samples in tiling.samples:
        part = grad[samples]
        columns = xp.empty((len(part) * lengths.pixels, lengths.row), grad.dtype)
        bmm(_by_group(part.reshape(-1, part.shape[3]), lengths), kernel, _by_group(columns, lengths))
        spread(columns, bias, pixels[samples], tiling)
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
        tiling, slopes = tiling_of(lengths, grad.dtype), grad.reshape(-1, grad.shape[3])
        sums = WeightSums(tiling, grad)
        for rows, columns, taps in _unfolded(x, weight if wanted[0] else None, tiling, tiling.weight_parts):
            sums.add(columns, slopes[rows])
        total = sums.total(out)
    return input_gradient(grad, weight, None, lengths, taps) if wanted[0] else None, total


def transposed_gradients(
    x: Array, weight: Array, grad: Array, lengths: Lengths, wanted: tuple[bool, bool], out: Array | None = None
) -> tuple[Array | None, Array | None]:
    """The same of `input_gradient`, as which a transposed convolution runs forward.

    Shapes:
        x: (N, OH, OW, O), weight: (O, C / groups, kH, kW), grad: (N, C, H, W) -> (N, OH, OW, O), as weight
    """
    tiling, pixels = tiling_of(lengths, x.dtype), x.reshape(-1, x.shape[3])
    found = array_module(x).empty(x.shape, x.dtype) if wanted[0] else None
    sums = WeightSums(tiling, x) if wanted[1] else None
    parts = tiling.parts if sums is None else tiling.weight_parts
    for rows, columns, taps in _unfolded(grad, weight if wanted[0] else None, tiling, parts):
        if sums is not None:
            sums.add(columns, pixels[rows])
        if found is not None:
            _multiply(columns, taps, found, rows, lengths)
    return found, None if sums is None else sums.total(out)


# ---------------------------------------------------------------------------------------------------------- columns


def _unfolded(
    x: Array, weight: Array | None, tiling: Tiling, parts: tuple[RowRange, ...]
) -> Iterator[tuple[slice, Array, Array | None]]:
    """The rows of each part, their columns, (R, C · taps), and the weight in the order of those."""
    lengths = tiling.lengths
    if tiling.is_pointwise and parts:
        taps = None if weight is None else _as_taps(weight, tiling)
        columns = contiguous(x.transpose(0, 2, 3, 1)).reshape(lengths.rows, lengths.row)
        yield slice(0, lengths.rows), columns, taps
        return
    taps = None
    planes = x.flags.c_contiguous
    images = x if planes else contiguous(x.transpose(0, 2, 3, 1))
    for part in parts:
        columns, turned = gather(images, planes, part, weight if taps is None else None, tiling)
        taps = turned if taps is None else taps
        yield part.rows, columns, taps


def gather(
    images: Array, planes: bool, part: RowRange, weight: Array | None, tiling: Tiling
) -> tuple[Array, Array | None]:
    """A range of rows of the columns, and the weight in their order; one in another order is turned by the same kernel.

    Shapes:
        images: (N, C, H, W) where planes, else (N, H, W, C); weight: (O, C / groups, kH, kW)
        -> (R, C · taps), (groups, O / groups, taps · C / groups) or without the first axis where it is 1
    """
    xp, loader = array_module(images), loader_for(images)
    columns = xp.empty(part.shape, tiling.dtype)
    turned = lying = None
    if weight is not None and tiling.is_turned:
        turned, lying = xp.empty(weight.shape, tiling.dtype), contiguous(weight)
    args = (
        *(*tiling.scalars, images, _YES if planes else _NO),
        *(part.first, part.length, part.narrow, columns, lying, tiling.outputs, turned),
    )
    loader.launch(*launch_of(loader, "convolution", "convolution_columns", tiling.dtype, part.threads), args)
    if weight is None:
        return columns, None
    return columns, _as_taps(weight if turned is None else turned, tiling)


def _turned(weight: Array, tiling: Tiling) -> Array:
    """A weight in the order of columns; its own memory where it lies so."""
    return _as_taps(contiguous(weight.transpose(0, 2, 3, 1)) if tiling.is_turned else weight, tiling)


def _as_taps(weight: Array, tiling: Tiling) -> Array:
    """What lies in the order of columns as (groups, O / groups, taps · C / groups); one group is a matrix."""
    return weight.reshape(tiling.taps_shape if tiling.taps_shape[0] > 1 else tiling.taps_shape[1:])


def _by_group(rows: Array, lengths: Lengths) -> Array:
    """(R, D) as (groups, R, D / groups), a view; one group is a matrix."""
    if lengths.groups == 1:
        return rows
    return rows.reshape(rows.shape[0], lengths.groups, rows.shape[1] // lengths.groups).transpose(1, 0, 2)


def _multiply(columns: Array, taps: Array, y: Array, rows: slice, lengths: Lengths) -> None:
    """Write a range of the pixels of an output."""
    out = y.reshape(-1, y.shape[3])[rows]
    bmm(_by_group(columns, lengths), taps.swapaxes(-1, -2), _by_group(out, lengths))


def spread(columns: Array, bias: Array | None, pixels: Array, tiling: Tiling) -> None:
    """Write the pixels of some samples: the sums of what their columns hold, plus bias.

    Shapes:
        columns: (samples · OH · OW, C · taps), bias: (C,), pixels: (samples, H, W, C)
    """
    if pixels.size:
        loader = loader_for(columns)
        shift = None if bias is None else contiguous(bias)
        args = (*tiling.scalars, columns, shift, np.int64(len(pixels)), tiling.is_narrow(pixels.size), pixels)
        threads = tiling.threads(pixels.size)
        loader.launch(*launch_of(loader, "convolution", "convolution_pixels", tiling.dtype, threads), args)


# -------------------------------------------------------------------------------------------------- weight gradient


class WeightSums:
    """The gradient of a weight: products over pieces of the pixels, added one after the other."""

    def __init__(self, tiling: Tiling, like: Array) -> None:
        self._plan, self._xp = tiling, array_module(like)
        self._parts: Array = None  # (places, groups, O / groups, taps · C / groups), of which so many hold something:
        self._used = 0

    def add(self, columns: Array, rows: Array) -> None:
        """Add a range of rows: columns (R, C · taps), and the gradient of the output for the same, (R, O)."""
        tiling, piece = self._plan, self._plan.piece
        whole, rest = divmod(len(rows), piece)
        needed = whole + (rest > 0)
        if self._parts is None:
            places = needed + (len(rows) < tiling.lengths.rows)  # the first one for what was added before
            self._parts = self._xp.empty((places, *tiling.taps_shape), accumulator_dtype(tiling.dtype))
        if self._used + needed > len(self._parts):
            self._add_up(None)
            self._used = 1
        if whole:
            self._multiply(columns[: whole * piece], rows[: whole * piece], whole)
        if rest:
            self._multiply(columns[whole * piece :], rows[whole * piece :], 1)

    def _multiply(self, columns: Array, rows: Array, pieces: int) -> None:
        """rowsᵀ @ columns for each piece and group, into the next places."""
        groups = self._plan.lengths.groups
        seen, slopes = (part.reshape(pieces, len(part) // pieces, groups, -1) for part in (columns, rows))
        out = self._parts[self._used : self._used + pieces]
        bmm(slopes.transpose(0, 2, 3, 1), seen.transpose(0, 2, 1, 3), out)
        self._used += pieces

    def total(self, out: Array | None) -> Array:
        """The sum of what was added, of the shape of the weight; written into out where that is given."""
        tiling = self._plan
        if out is None:
            out = self._xp.empty((tiling.lengths.outside[0], tiling.inside, *tiling.lengths.kernel), tiling.dtype)
        if self._parts is None:
            out[...] = 0
        else:
            self._add_up(out)
        return out

    def _add_up(self, total: Array | None) -> None:
        """Sum the places in use, in their order: into total, turned to the order of the weight, or into the first."""
        tiling, loader = self._plan, loader_for(self._parts)
        counts = (np.int32(self._used), tiling.outputs, np.int32(tiling.inside), np.int32(tiling.lengths.taps))
        launch = launch_of(loader, "convolution", "convolution_weight", tiling.dtype, self._parts[0].size)
        loader.launch(*launch, (self._parts, *counts, total))
