"""How a convolution becomes products of matrices: each pixel of the output sees a row of numbers, its columns.

An image is padded, and unfolded into columns of (kernel height x kernel width x channels) strip by strip: a strip of
them stays in the cache until it is multiplied, and nobody keeps it. Backward unfolds again, which costs less than to
fetch from memory what is nine times as large as the image. The gradient of the input is such a convolution itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, accumulator_dtype, converted
from minigrad.backend.workspace import empty
from minigrad.ops.image_order import channels_last
from minigrad.ops.linalg import product, wide_product
from minigrad.ops.window import Window

_BLOCK = 131072  # elements of a product that stay in the cache until they are added
_STRIP = 262144  # elements of columns that stay in the cache until they are multiplied
_LEAST_PIXELS = 512  # of a strip, lest more time goes into the taps than into the pixels


class Geometry(NamedTuple):
    """The lengths of a convolution."""

    height: Window
    width: Window
    groups: int
    batch: int  # N
    in_shape: tuple[int, int, int]  # C, H, W
    out_shape: tuple[int, int, int]  # O, OH, OW
    axes: int = 2  # 1 where users see rows of pixels, which are images of height 1

    @property
    def pixels(self) -> int:
        """Pixels of one row of the output: N · OW."""
        return self.batch * self.out_shape[2]


# --------------------------------------------------------------------------------------------- from image to columns


def _strips(x: Array, geometry: Geometry) -> Iterator[tuple[slice, Array]]:
    """The columns of images (N, C, H, W), strip by strip, each in the memory of the one before.

    Yields which of the pixels (OH · N · OW) of the output they are for, and (groups, pixels, kH · kW · C / groups): of
    several rows, or of some samples of one.
    """
    windows, width = _windows(_padded(x, geometry), geometry), geometry.out_shape[2]
    length = math.prod(windows.shape[4:])
    most = max(_STRIP // (geometry.groups * length), _LEAST_PIXELS)
    rows, samples = _share(geometry.out_shape[1], geometry.pixels, most), _share(geometry.batch, width, most)
    lies_so = windows.flags.c_contiguous
    room = None if lies_so else empty((windows[:, :rows, :samples].size,), x.dtype, x)
    for row in range(0, geometry.out_shape[1], rows):
        for sample in range(0, geometry.batch, samples):
            columns = windows[:, row : row + rows, sample : sample + samples]
            if room is not None:
                seen, columns = columns, room[: columns.size].reshape(columns.shape)
                _copy(seen, columns)
            start, count = (row * geometry.batch + sample) * width, math.prod(columns.shape[1:4])
            yield slice(start, start + count), columns.reshape(geometry.groups, count, length)


def _copy(windows: Array, columns: Array) -> None:
    """Copy what pixels see: in runs along the width; tap by tap where groups part them, into runs that are short."""
    if len(windows) == 1:
        columns[...] = windows
        return
    for i, j in np.ndindex(windows.shape[4:6]):
        columns[..., i, j, :] = windows[..., i, j, :]


def _share(count: int, size: int, most: int) -> int:
    """How many of so many things of a size are taken at once, about as many each time: at most `most`, at least one."""
    fitting = max(most // max(size, 1), 1)
    return -(-count // max(-(-count // fitting), 1)) or 1


def _padded(x: Array, geometry: Geometry) -> Array:
    """Images (N, C, H, W) as (H, N, W, C) with zeros around."""
    channels, height, width = geometry.in_shape
    high, wide = (
        max(window.before + length, (count - 1) * window.stride + window.extent)
        for window, length, count in zip((geometry.height, geometry.width), (height, width), geometry.out_shape[1:])
    )
    if (high, wide) == (height, width):
        return channels_last(x)
    padded = empty((high, geometry.batch, wide, channels), x.dtype, x)
    top, left = geometry.height.before, geometry.width.before
    for rows in (padded[:top], padded[top + height :]):
        rows[...] = 0
    inside = padded[top : top + height]
    for pixels in (inside[:, :, :left], inside[:, :, left + width :]):
        pixels[...] = 0
    inside[:, :, left : left + width] = x.transpose(2, 0, 3, 1)
    return padded


def _windows(padded: Array, geometry: Geometry) -> Array:
    """What each pixel of the output sees: (groups, OH, N, OW, kH, kW, C / groups), a view."""
    high, wide, inner = geometry.height, geometry.width, geometry.in_shape[0] // geometry.groups
    down, sample, along, step = padded.strides
    shape = (geometry.groups, geometry.out_shape[1], geometry.batch, geometry.out_shape[2])
    return array_module(padded).lib.stride_tricks.as_strided(
        padded,
        (*shape, high.kernel, wide.kernel, inner),
        (inner * step, down * high.stride, sample, along * wide.stride)
        + (down * high.dilation, along * wide.dilation, step),
    )


# -------------------------------------------------------------------------------------------------------- products


def _taps(weight: Array, groups: int, whole: bool) -> Array:
    """The weight by rows of the kernel: (kH, groups, O / groups, kW · C / groups); of a whole one all in one."""
    outputs, channels, height, width = weight.shape
    split = weight.reshape(groups, outputs // groups, channels, height, width)
    split = split.transpose((0, 1, 3, 4, 2) if whole else (3, 0, 1, 4, 2))
    return array_module(weight).ascontiguousarray(split).reshape(1 if whole else height, groups, outputs // groups, -1)


def by_group(rows: Array, groups: int) -> Array:
    """(R, O) -> (groups, R, O / groups), contiguous."""
    split = rows.reshape(rows.shape[0], groups, rows.shape[1] // groups).transpose(1, 0, 2)
    return array_module(rows).ascontiguousarray(split)


def convolve(x: Array, kernel: Array, bias: Array | None, geometry: Geometry) -> Array:
    """The columns of images (N, C, H, W) times the weight (O, C / groups, kH, kW), plus bias: (OH, N, OW, O)."""
    outputs, height, width = geometry.out_shape
    taps = _taps(kernel, geometry.groups, whole=True)[0].swapaxes(-1, -2)
    out = empty((geometry.groups, height * geometry.pixels, outputs // geometry.groups), x.dtype, x)
    for pixels, columns in _strips(x, geometry):
        strip = out[:, pixels]
        _product(columns, taps, strip)
        if bias is not None:
            strip += bias.reshape(geometry.groups, 1, -1)
    return out.transpose(1, 0, 2).reshape(height, geometry.batch, width, outputs)


def weight_gradient(x: Array, grad: Array, geometry: Geometry, shape: tuple[int, ...]) -> Array:
    """gradᵀ times the columns of images (N, C, H, W): of the shape of the weight.

    Args:
        grad: (groups, OH · N · OW, O / groups).
    """
    outputs, channels, height, width = shape
    size = (geometry.groups, outputs // geometry.groups, height * width * channels)
    total = array_module(grad).zeros(size, accumulator_dtype(grad.dtype))
    for pixels, columns in _strips(x, geometry):
        total += _wide_product(grad[:, pixels].swapaxes(-1, -2), columns)
    return converted(total, grad.dtype).reshape(outputs, height, width, channels).transpose(0, 3, 1, 2)


def input_gradient(grad: Array, kernel: Array, geometry: Geometry) -> Array:
    """Σ over the kernel of grad @ tap, each added to the pixels that the tap saw: (H, N, W, C).

    Args:
        grad: (groups, OH · N · OW, O / groups).
        kernel: The weight, (O, C / groups, kH, kW).
    """
    turned = _turned(geometry) if grad.__class__ is np.ndarray and grad.dtype.itemsize > 2 else None
    if turned is None:
        return _scattered(grad, _taps(kernel, geometry.groups, whole=False), geometry)
    outputs, out_height, out_width = geometry.out_shape
    images = grad.reshape(out_height, geometry.batch, out_width, outputs).transpose(1, 3, 0, 2)
    return convolve(images, kernel.transpose(1, 0, 2, 3)[:, :, ::-1, ::-1], None, turned)


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


def _product(a: Array, b: Array, out: Array | None = None) -> Array:
    """a @ b for each group; one group is a plain product of matrices."""
    if len(a) > 1:
        return product(a, b, out)
    return product(a[0], b[0], None if out is None else out[0])[None]


def _wide_product(a: Array, b: Array) -> Array:
    """The same in the dtype that it is summed in."""
    return wide_product(a, b) if len(a) > 1 else wide_product(a[0], b[0])[None]
