"""How a convolution becomes products of matrices: one for each row of the kernel.

The input is unfolded along the width only, into columns of (kernel width x channels); a step of the kernel in height
is an offset into the same columns. That takes a kernel height less memory than a full unfolding. A stride in height
orders the rows of the columns by phase (row modulo stride), which makes every offset contiguous again.

A kernel of few elements, as a first layer has it, is unfolded along the height too: its products are too thin for BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted
from minigrad.backend.workspace import empty
from minigrad.ops.linalg import product
from minigrad.ops.window import Window

_BLOCK = 131072  # elements of a product that stay in the cache until they are added
_THIN = 64  # elements of a kernel, for one output, that are unfolded whole
_STRIP_BYTES = 4 * 1024**2  # of columns of a gradient, which nobody keeps


class Geometry(NamedTuple):
    """The lengths of a convolution.

    The columns are (groups, phases · rows · N · OW, kernel width · C / groups), or where `is_thin` says so
    (groups, OH · N · OW, kernel height · kernel width · C / groups).
    """

    height: Window
    width: Window
    groups: int
    batch: int  # N
    in_shape: tuple[int, int, int]  # C, H, W
    out_shape: tuple[int, int, int]  # O, OH, OW
    axes: int = 2  # 1 where users see rows of pixels, which are images of height 1

    @property
    def is_thin(self) -> bool:
        """Whether the kernel is unfolded along the height too."""
        area = self.height.kernel * self.width.kernel
        return self.height.kernel > 1 and area * self.in_shape[0] <= _THIN * self.groups

    @property
    def phases(self) -> list[int]:
        """The remainders, modulo the stride, of the padded rows that the kernel touches."""
        return sorted({i * self.height.dilation % self.height.stride for i in range(self.height.kernel)})

    @property
    def rows(self) -> int:
        """Rows of each phase."""
        return self.out_shape[1] + (self.height.extent - 1) // self.height.stride

    @property
    def pixels(self) -> int:
        """Columns of one row: N · OW."""
        return self.batch * self.out_shape[2]

    def offsets(self) -> list[int]:
        """For each row of the kernel, the first of the OH · N · OW columns that it is multiplied with."""
        if self.is_thin:
            return [0]
        phases, stride = self.phases, self.height.stride
        steps = [i * self.height.dilation for i in range(self.height.kernel)]
        return [(phases.index(step % stride) * self.rows + step // stride) * self.pixels for step in steps]


# --------------------------------------------------------------------------------------- between image and columns


def unfold(x: Array, geometry: Geometry) -> Array:
    """The columns of images (N, C, H, W); see `Geometry`. They are zero where an image is padded."""
    image = x.transpose(2, 0, 3, 1)
    if geometry.is_thin:
        return _unfold_whole(image, geometry)
    columns = empty(_columns_shape(geometry), x.dtype, x)
    for part, pixels, source in _overlaps(columns, geometry):
        part[: pixels[0].start] = 0
        part[pixels[0].stop :] = 0
        part[:, :, : pixels[2].start] = 0
        part[:, :, pixels[2].stop :] = 0
        part[pixels] = image[source].reshape(part[pixels].shape)
    return columns.reshape(geometry.groups, -1, columns.shape[5] * columns.shape[6])


def _unfold_whole(image: Array, geometry: Geometry) -> Array:
    """The columns of (H, N, W, C) for a kernel that is unfolded along both axes."""
    high, wide, groups = geometry.height, geometry.width, geometry.groups
    channels, height, width = geometry.in_shape
    out_height, out_width = geometry.out_shape[1:]
    rows = (out_height - 1) * high.stride + high.extent
    pixels = (out_width - 1) * wide.stride + wide.extent
    padded = array_module(image).zeros((rows, geometry.batch, pixels, channels), image.dtype)
    inside, across = max(min(height, rows - high.before), 0), max(min(width, pixels - wide.before), 0)
    padded[high.before : high.before + inside, :, wide.before : wide.before + across] = image[:inside, :, :across]
    down, sample, along, step = padded.strides
    inner = channels // groups
    windows = array_module(image).lib.stride_tricks.as_strided(
        padded,
        (groups, out_height, geometry.batch, out_width, high.kernel, wide.kernel, inner),
        (inner * step, down * high.stride, sample, along * wide.stride)
        + (down * high.dilation, along * wide.dilation, step),
    )
    columns = empty(windows.shape, image.dtype, image)
    columns[...] = windows
    return columns.reshape(groups, out_height * geometry.pixels, high.kernel * wide.kernel * inner)


def _columns_shape(geometry: Geometry) -> tuple[int, ...]:
    """(groups, phases, rows, N, OW, kernel width, C / groups)."""
    return (
        geometry.groups,
        len(geometry.phases),
        geometry.rows,
        geometry.batch,
        geometry.out_shape[2],
        geometry.width.kernel,
        geometry.in_shape[0] // geometry.groups,
    )


def _overlaps(columns: Array, geometry: Geometry) -> Iterator[tuple[Array, tuple[slice, ...], tuple[slice, ...]]]:
    """For each phase and tap along the width: its part of the columns (rows, N, OW, groups, C / groups), the pixels
    in it that lie inside the image, and where in the image (H, N, W, ...) they lie."""
    _, height, width = geometry.in_shape
    everything = slice(None)
    for p, phase in enumerate(geometry.phases):
        vertical = geometry.height.reach(phase, height, geometry.rows)
        for j in range(geometry.width.kernel):
            horizontal = geometry.width.reach(j * geometry.width.dilation, width, geometry.out_shape[2])
            part = columns[:, p, :, :, :, j].transpose(1, 2, 3, 0, 4)
            yield (
                part,
                (vertical.windows, everything, horizontal.windows),
                (vertical.inputs, everything, horizontal.inputs),
            )


# -------------------------------------------------------------------------------------------------------- products


def kernel_taps(weight: Array, geometry: Geometry) -> Array:
    """The weight by rows of the kernel: (kH, groups, O / groups, kW · C / groups); of a thin one all in one."""
    return _taps(weight, geometry.groups, geometry.is_thin)


def _taps(weight: Array, groups: int, whole: bool) -> Array:
    outputs, channels, height, width = weight.shape
    split = weight.reshape(groups, outputs // groups, channels, height, width)
    split = split.transpose((0, 1, 3, 4, 2) if whole else (3, 0, 1, 4, 2))
    return array_module(weight).ascontiguousarray(split).reshape(1 if whole else height, groups, outputs // groups, -1)


def by_group(rows: Array, groups: int) -> Array:
    """(R, O) -> (groups, R, O / groups), contiguous."""
    split = rows.reshape(rows.shape[0], groups, rows.shape[1] // groups).transpose(1, 0, 2)
    return array_module(rows).ascontiguousarray(split)


def convolve(columns: Array, taps: Array, bias: Array | None, geometry: Geometry, out: Array | None = None) -> Array:
    """Σ over the rows of the kernel of columns @ tapᵀ, plus bias: (OH, N, OW, O).

    Args:
        out: Where to; in C order.
    """
    outputs, height, width = geometry.out_shape
    count = height * geometry.pixels
    shape = (geometry.groups, count, outputs // geometry.groups)
    out = empty(shape, columns.dtype, columns) if out is None else out.reshape(shape)
    first, *others = zip(geometry.offsets(), taps.swapaxes(-1, -2))
    for start, stop in _blocks(out):
        block = out[:, start:stop]
        _product(columns[:, first[0] + start : first[0] + stop], first[1], block)
        for offset, tap in others:
            block += _product(columns[:, offset + start : offset + stop], tap)
        if bias is not None:
            block += bias.reshape(geometry.groups, 1, -1)
    return out.transpose(1, 0, 2).reshape(height, geometry.batch, width, outputs)


def input_gradient(grad: Array, kernel: Array, geometry: Geometry) -> Array:
    """Σ over the kernel of grad @ tap, each added to the pixels that the tap saw: (H, N, W, C).

    Args:
        grad: (groups, OH · N · OW, O / groups).
        kernel: The weight, (O, C / groups, kH, kW).
    """
    turned = _turned(geometry) if grad.__class__ is np.ndarray and grad.dtype.itemsize > 2 else None
    if turned is None:
        return _scattered(grad, _taps(kernel, geometry.groups, whole=False), geometry)
    return _gathered(grad[0], kernel, turned)


def _turned(geometry: Geometry) -> Geometry | None:
    """The convolution of the gradient with the turned kernel that gives that of the input.

    None where there is none, with strides, or where a sum of shares moves less memory, with few channels.
    """
    channels, outputs = geometry.in_shape[0], geometry.out_shape[0]
    windows = [
        window._replace(before=window.extent - 1 - window.before, after=window.extent - 1 - window.after)
        for window in (geometry.height, geometry.width)
    ]
    if geometry.groups > 1 or any(w.stride > 1 or min(w.before, w.after) < 0 for w in windows):
        return None
    if outputs > 2 * geometry.height.kernel * channels:
        return None
    return geometry._replace(
        height=windows[0], width=windows[1], in_shape=(outputs, *geometry.out_shape[1:]), out_shape=geometry.in_shape
    )


def _gathered(grad: Array, kernel: Array, turned: Geometry) -> Array:
    """The convolution of a gradient (OH · N · OW, O) with the turned kernel, strip by strip: (H, N, W, C)."""
    (outputs, out_height, out_width), (channels, height, width) = turned.in_shape, turned.out_shape
    taps = kernel_taps(kernel.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], turned)
    images = grad.reshape(out_height, turned.batch, out_width, outputs)
    pixels = empty((height, turned.batch, width, channels), grad.dtype, grad)
    window, row = turned.height, turned.pixels * turned.width.kernel * outputs * grad.dtype.itemsize
    step = max(_STRIP_BYTES // max(row, 1), 4 * (window.extent - 1), 1)
    for start in range(0, height, step):
        stop = min(start + step, height)
        seen = slice(max(start - window.before, 0), min(stop - window.before + window.extent - 1, out_height))
        strip = turned._replace(
            height=window._replace(before=max(window.before - start, 0)),
            in_shape=(outputs, seen.stop - seen.start, out_width),
            out_shape=(channels, stop - start, width),
        )
        columns = unfold(images[seen].transpose(1, 3, 0, 2), strip)
        convolve(columns, taps, None, strip, pixels[start:stop])
    return pixels


def _scattered(grad: Array, taps: Array, geometry: Geometry) -> Array:
    """Σ over the kernel of grad @ tap, each added to the pixels that the tap saw: (H, N, W, C)."""
    channels, height, width = geometry.in_shape
    _, out_height, out_width = geometry.out_shape
    wide = accumulator_dtype(grad.dtype)
    image = array_module(grad).zeros((height, geometry.batch, width, channels), wide)
    pixels = image.reshape(height, geometry.batch, width, geometry.groups, channels // geometry.groups)
    spans = [geometry.width.reach(j * geometry.width.dilation, width, out_width) for j in range(geometry.width.kernel)]
    for rows, samples in _tiles(grad, geometry):
        block = grad.reshape(geometry.groups, out_height, geometry.batch, out_width, grad.shape[-1])[:, rows, samples]
        flat = block.reshape(geometry.groups, math.prod(block.shape[1:4]), block.shape[-1])
        for i, tap in enumerate(taps):
            span = geometry.height.reach(i * geometry.height.dilation, height, rows.stop, rows.start)
            seen = slice(span.windows.start - rows.start, span.windows.stop - rows.start)
            shares = _product(flat, tap).reshape(*block.shape[:4], geometry.width.kernel, pixels.shape[-1])
            for j, (windows, columns) in enumerate(spans):
                pixels[span.inputs, samples, columns] += shares[:, seen, :, windows, j].transpose(1, 2, 3, 0, 4)
    return image if wide == grad.dtype else converted(image, grad.dtype)


def _tiles(grad: Array, geometry: Geometry) -> list[tuple[slice, slice]]:
    """Ranges of rows and samples, so small on a CPU that a product of them stays in the cache until it is added."""
    rows, batch = geometry.out_shape[1], geometry.batch
    if grad.__class__ is not np.ndarray:
        return [(slice(0, rows), slice(0, batch))]
    row = geometry.out_shape[2] * geometry.width.kernel * geometry.in_shape[0]
    samples = min(batch, max(1, _BLOCK // row))
    height = max(1, _BLOCK // (row * max(batch, 1)))
    return [
        (slice(i, min(i + height, rows)), slice(n, min(n + samples, batch)))
        for i in range(0, rows, height)
        for n in range(0, batch, max(samples, 1))
    ]


def weight_gradient(columns: Array, grad: Array, geometry: Geometry, shape: tuple[int, ...]) -> Array:
    """gradᵀ @ columns for each row of the kernel: of the shape of the weight."""
    count = grad.shape[1]
    turned = grad.swapaxes(-1, -2)
    taps = [_product(turned, columns[:, offset : offset + count]) for offset in geometry.offsets()]
    outputs, channels, height, width = shape
    if geometry.is_thin:
        return taps[0].reshape(outputs, height, width, channels).transpose(0, 3, 1, 2)
    stacked = array_module(grad).stack(taps).reshape(height, outputs, width, channels)
    return stacked.transpose(1, 3, 0, 2)


def _product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b for each group; one group is a plain product of matrices."""
    if len(a) > 1:
        return product(a, b, out)
    return product(a[0], b[0], None if out is None else out[0])[None]


def _blocks(rows: Array) -> list[tuple[int, int]]:
    """Ranges of the rows of (groups, R, D), so small on a CPU that a product is still in the cache when it is added."""
    count = rows.shape[1]
    step = max(1, _BLOCK // rows.shape[2]) if rows.__class__ is np.ndarray else max(1, count)
    return [(start, min(start + step, count)) for start in range(0, count, step)]
