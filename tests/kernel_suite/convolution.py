"""Columns of images and back, and the sum of a weight's pieces, against NumPy."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused import convolution
from minigrad.backend.fused.convolution import Lengths, WeightSums, gather, tiling_of, spread
from tests.kernel_suite.values import DTYPES, draw, equal, error_in_ulps


def lengths(batch, image, kernel, outputs=1, groups=1, stride=(1, 1), dilation=(1, 1), before=(0, 0), after=(0, 0)):
    """Of a convolution of images (C, H, W) with zeros before and after."""
    sizes = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, k, s, d, a, b in zip(image[1:], kernel, stride, dilation, before, after)
    ]
    return Lengths(batch, groups, image, (outputs, *sizes), kernel, stride, dilation, before)


FORMS = {
    "one_pixel": lengths(1, (1, 1, 1), (1, 1)),
    "padded": lengths(2, (3, 5, 4), (3, 3), 2, before=(1, 1), after=(1, 1)),
    "uneven": lengths(2, (2, 3, 4), (2, 4), 3, before=(0, 1), after=(1, 2)),
    "beyond": lengths(1, (2, 2, 3), (5, 5), before=(2, 3), after=(3, 2)),
    "strided": lengths(2, (4, 7, 5), (3, 2), 2, stride=(2, 3), before=(1, 0)),
    "apart": lengths(1, (8, 6, 7), (2, 2), stride=(3, 4)),
    "dilated": lengths(2, (1, 9, 8), (3, 2), stride=(2, 1), dilation=(2, 3), before=(2, 1), after=(1, 2)),
    "groups": lengths(2, (12, 4, 5), (3, 3), 6, groups=3, before=(1, 1), after=(1, 1)),
    "depthwise": lengths(1, (5, 4, 4), (3, 3), 5, groups=5, stride=(2, 2), before=(1, 1), after=(1, 1)),
    "vectors": lengths(2, (16, 5, 4), (3, 3), 4, groups=2, before=(1, 1), after=(1, 1)),
    "row": lengths(3, (8, 1, 33), (1, 3), 2, dilation=(1, 2), before=(0, 2), after=(0, 2)),
}


def columns_of(x, form):
    """The columns (rows, C · taps) of images (N, C, H, W)."""
    (channels, height, width), (_, rows, columns) = form.inside, form.outside
    (top, left), (down, right) = form.before, form.stride
    reach = [d * (k - 1) + s * o for d, k, s, o in zip(form.dilation, form.kernel, form.stride, (rows, columns))]
    padded = np.zeros((form.batch, channels, top + height + reach[0], left + width + reach[1]), x.dtype)
    padded[:, :, top : top + height, left : left + width] = x
    taps = []
    for i, j in np.ndindex(*form.kernel):
        seen = padded[:, :, i * form.dilation[0] :, j * form.dilation[1] :]
        taps.append(seen[:, :, : rows * down : down, : columns * right : right])
    split = np.stack(taps).reshape(form.taps, form.batch, form.groups, channels // form.groups, rows, columns)
    return np.ascontiguousarray(split.transpose(1, 4, 5, 2, 0, 3)).reshape(form.rows, form.row)


def pixels_of(columns, form):
    """Where each number of the columns came from, all that came from there is added, in float64: (N, H, W, C)."""
    channels, height, width = form.inside
    count = form.batch * channels * height * width
    places = np.arange(1, count + 1, dtype=np.float64).reshape(form.batch, channels, height, width)
    found = np.bincount(columns_of(places, form).astype(np.int64).reshape(-1), columns.reshape(-1), count + 1)[1:]
    return found.reshape(form.batch, channels, height, width).transpose(0, 2, 3, 1)


def nhwc(x):
    """(N, C, H, W) as (N, H, W, C)."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


def shifted(on, array, shift):
    """It where kernels run, its memory so many elements after the start of a vector."""
    flat = np.concatenate([np.zeros(shift, array.dtype), array.reshape(-1)])
    return on(flat)[shift:].reshape(array.shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns(on, dtype):
    for name, form in FORMS.items():
        check_columns(on, form, dtype, name)


def check_columns(on, form, dtype, name=""):
    x = draw(1, (form.batch, *form.inside), dtype)
    weight = draw(2, (form.outside[0], form.inside[0] // form.groups, *form.kernel), dtype)
    expected = columns_of(x, form)
    inside = (form.groups, form.outside[0] // form.groups, form.row // form.groups)
    taps = np.ascontiguousarray(weight.transpose(0, 2, 3, 1)).reshape(inside[form.groups == 1 :])
    tiling = tiling_of(form, x.dtype)
    for images, planes in ((x, True), (nhwc(x), False)):
        columns, turned = gather(on(images), planes, tiling.part(slice(0, form.rows)), on(weight), tiling)
        assert equal(columns, expected) and equal(turned, taps), name


def test_some_of_the_columns(on):
    for name, form in FORMS.items():
        x = draw(1, (form.batch, *form.inside))
        images, tiling = shifted(on, nhwc(x), 1), tiling_of(form, x.dtype)
        for part in (slice(0, 1), slice(form.rows // 3, form.rows), slice(form.rows - 1, form.rows)):
            columns, turned = gather(images, False, tiling.part(part), None, tiling)
            assert equal(columns, columns_of(x, form)[part]) and turned is None, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "biased"])
def test_pixels(on, dtype, biased):
    for name, form in FORMS.items():
        check_pixels(on, form, dtype, biased, name)


def check_pixels(on, form, dtype, biased, name=""):
    columns, bias = draw(3, (form.rows, form.row), dtype), draw(4, form.inside[0], dtype)
    expected = pixels_of(columns.astype(np.float64), form) + (bias.astype(np.float64) if biased else 0)
    pixels = on(np.full(expected.shape, np.nan, DTYPES[dtype]))
    spread(on(columns), on(bias) if biased else None, pixels, tiling_of(form, columns.dtype))
    assert error_in_ulps(pixels, expected, dtype) <= (12 if dtype in ("f32", "f64") else 1), name


def test_pixels_that_are_not_aligned(on):
    form = FORMS["vectors"]
    columns = draw(3, (form.rows, form.row))
    expected = pixels_of(columns.astype(np.float64), form)
    for first, second in ((1, 0), (0, 1)):
        pixels = shifted(on, np.full(expected.shape, np.nan, np.float32), second)
        spread(shifted(on, columns, first), None, pixels, tiling_of(form, columns.dtype))
        assert error_in_ulps(pixels, expected, "f32") <= 12


@pytest.mark.parametrize("name", ["strided", "vectors"])
def test_so_many_elements_that_they_are_counted_in_64_bits(on, name, monkeypatch):
    monkeypatch.setattr(convolution, "BOUNDS", convolution.BOUNDS._replace(narrow=0))
    check_columns(on, FORMS[name], "f32")
    check_pixels(on, FORMS[name], "f32", True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [1, 4], ids=["at_once", "in_steps"])
def test_pieces_of_a_weight_are_added_in_order(on, dtype, steps, monkeypatch):
    """Pieces of one row each: products of numbers with no others to be added to, so only the order is left."""
    form = lengths(7, (6, 1, 9), (1, 3), 4, groups=2, before=(0, 1), after=(0, 1))
    monkeypatch.setattr(convolution, "BOUNDS", convolution.BOUNDS._replace(largest_piece=1))
    columns, rows = draw(5, (form.rows, form.row), dtype), draw(6, (form.rows, 4), dtype)
    sums = WeightSums(tiling_of(form, columns.dtype), on(columns))
    for start in range(0, form.rows, -(-form.rows // steps)):
        part = slice(start, start + -(-form.rows // steps))
        sums.add(on(columns[part]), on(rows[part]))
    wide = np.float64 if dtype == "f64" else np.float32
    total = np.zeros((4, 3, 3), wide)
    for row, slopes in zip(columns.astype(wide).reshape(-1, 2, 3, 3), rows.astype(wide).reshape(-1, 2, 2)):
        total += (slopes[:, :, None, None] * row[:, None]).reshape(4, 3, 3)
    expected = np.ascontiguousarray(total.swapaxes(1, 2)).reshape(4, 3, 1, 3).astype(DTYPES[dtype])
    assert equal(sums.total(None), expected)


def test_nothing_is_launched_for_nothing(on):
    form = lengths(0, (3, 4, 4), (3, 3), 2)
    grad, x, weight = (on(np.zeros(shape, np.float32)) for shape in ((0, 2, 2, 2), (0, 3, 4, 4), (2, 3, 3, 3)))
    pixels, total = convolution.gradients(x, weight, grad, form, (True, True))
    assert pixels.shape == (0, 4, 4, 3) and not to_host(total).any()
    assert convolution.convolve(x, weight, None, form).shape == (0, 2, 2, 2)
