"""Pooling of images against windows that are cut out one by one, in float64."""

import itertools

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.pool import Axis, max_pool, max_pool_gradient, mean_pool, mean_pool_gradient
from tests.kernel_suite.values import DTYPES, ULP, draw, equal

ROUNDING = {"f64": 1e-14, "f32": 2e-6, "f16": 2 * ULP["f16"], "bf16": 2 * ULP["bf16"]}
# length, outputs, kernel, stride, dilation, before: plain, overlapping, with padding and dilation, hanging over the end
SLIDING = [
    (Axis(4, 2, 2, 2), Axis(6, 3, 2, 2)),
    (Axis(5, 3, 3, 1), Axis(1, 1, 1, 1)),
    (Axis(5, 5, 3, 1, 1, 1), Axis(7, 2, 3, 3, 2, 1)),
    (Axis(6, 4, 3, 2, 1, 1), Axis(5, 3, 2, 2)),
]
EVEN = [(Axis(5, 3), Axis(7, 7)), (Axis(3, 1), Axis(4, 1)), (Axis(2, 5), Axis(9, 2))]


def windows(axes):
    """For each window the rows and columns inside the image that it sees, and the numbers of their taps."""
    for outputs in itertools.product(range(axes[0].outputs), range(axes[1].outputs)):
        seen = []
        for axis, output in zip(axes, outputs):
            first = output * axis.stride - axis.before
            places = [(first + tap * axis.dilation, tap) for tap in range(axis.kernel)]
            seen.append([(place, tap) for place, tap in places if 0 <= place < axis.length])
        yield outputs, [(y[0], x[0], y[1] * axes[1].kernel + x[1]) for y in seen[0] for x in seen[1]]


def expected_max(x, grad, axes):
    """Largest elements, winners and the gradient of the images."""
    shape = (x.shape[0], axes[0].outputs, axes[1].outputs, x.shape[3])
    y, winners, dx = np.full(shape, -np.inf), np.full(shape, -1), np.zeros(x.shape)
    for (i, j), seen in windows(axes):
        for n, c in np.ndindex(x.shape[0], x.shape[3]):
            values = [x[n, row, column, c] for row, column, _ in seen]
            if values:
                best = int(np.argmax(values))  # the first NaN, or the first of the largest
                row, column, winners[n, i, j, c] = seen[best]
                y[n, i, j, c] = values[best]
                dx[n, row, column, c] += grad[n, i, j, c]
    return y, winners, dx


def share(axis, output, counts_padding):
    """Where a window begins and ends inside the image, and how many elements it counts along this axis."""
    if axis.kernel:
        start = output * axis.stride - axis.before
        stop = min(start + axis.kernel, axis.length + axis.before)
    else:
        start, stop = output * axis.length // axis.outputs, -(-(output + 1) * axis.length // axis.outputs)
    inside = slice(max(start, 0), min(stop, axis.length))
    return inside, stop - start if counts_padding else inside.stop - inside.start


def expected_mean(x, grad, axes, counts_padding):
    y, dx = np.zeros(grad.shape), np.zeros(x.shape)
    for i, j in np.ndindex(axes[0].outputs, axes[1].outputs):
        (rows, high), (columns, wide) = share(axes[0], i, counts_padding), share(axes[1], j, counts_padding)
        y[:, i, j] = x[:, rows, columns].sum(axis=(1, 2)) / (high * wide)
        dx[:, rows, columns] += grad[:, i : i + 1, j : j + 1] / (high * wide)
    return y, dx


def arrays(axes, dtype, channels, samples=2):
    """Images and the gradient of what is pooled of them."""
    x = draw(1, (samples, axes[0].length, axes[1].length, channels), dtype)
    return x, draw(2, (samples, axes[0].outputs, axes[1].outputs, channels), dtype)


def assert_near(got, want, dtype, what):
    error = np.abs(to_host(got).astype(np.float64) - want).max(initial=0.0)
    assert error <= ROUNDING[dtype] * max(1.0, np.abs(want).max(initial=0.0)), f"{what}: {error}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", SLIDING, ids=str)
def test_the_largest_of_windows(on, dtype, axes):
    for channels in (3, 8):
        x, grad = arrays(axes, dtype, channels)
        x = np.round(x * 2) / DTYPES[dtype].type(2)  # with equal ones
        y, winners, dx = expected_max(x.astype(np.float64), grad.astype(np.float64), axes)
        got, taps = max_pool(on(x.astype(DTYPES[dtype])), axes)
        assert equal(got, y.astype(DTYPES[dtype])) and np.array_equal(to_host(taps), winners)
        assert_near(max_pool_gradient(on(grad), taps, axes), dx, dtype, "dx")


def test_the_first_nan_is_the_largest(on):
    axes = (Axis(2, 1, 2), Axis(4, 1, 4))
    x = np.array([1, np.nan, np.inf, np.nan, 5, -np.inf, np.nan, 0], np.float32).reshape(1, 2, 4, 1)
    y, taps = max_pool(on(x), axes)
    assert np.isnan(to_host(y)).all() and to_host(taps).item() == 1
    x = np.full((1, 2, 4, 1), -np.inf, np.float32)
    y, taps = max_pool(on(x), axes)
    assert to_host(y).item() == -np.inf and to_host(taps).item() == 0


def test_a_window_that_sees_nothing_gives_nothing_back(on):
    axes = (Axis(4, 1, 2, 1, 5, 1), Axis(1, 1, 1))
    x, grad = draw(0, (1, 4, 1, 2)), np.ones((1, 1, 1, 2), np.float32)
    y, taps = max_pool(on(x), axes)
    assert (to_host(y) == -np.inf).all() and not to_host(max_pool_gradient(on(grad), taps, axes)).any()


def test_windows_of_many_taps(on):
    axes = (Axis(17, 1, 17), Axis(16, 1, 16))
    x, grad = arrays(axes, "f32", 2)
    x[:, 16, 3] = 100
    y, taps = max_pool(on(x), axes)
    assert to_host(taps).dtype == np.int32 and (to_host(taps) == 16 * 16 + 3).all()
    dx = to_host(max_pool_gradient(on(grad), taps, axes))
    assert np.array_equal(dx[:, 16, 3], grad[:, 0, 0]) and np.count_nonzero(dx) == 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axes", [*(axes for axes in SLIDING if axes[1].dilation == 1), *EVEN], ids=str)
def test_the_mean_of_windows(on, dtype, axes):
    for channels in (3, 8):
        x, grad = arrays(axes, dtype, channels)
        for counts_padding in (False, True) if axes[0].kernel else (False,):
            y, dx = expected_mean(x.astype(np.float64), grad.astype(np.float64), axes, counts_padding)
            assert_near(mean_pool(on(x), axes, counts_padding), y, dtype, "y")
            assert_near(mean_pool_gradient(on(grad), axes, counts_padding), dx, dtype, "dx")


def test_nothing_is_launched_for_no_images(on):
    axes = (Axis(4, 2, 2, 2), Axis(4, 2, 2, 2))
    for samples, channels in ((0, 3), (2, 0)):
        x, grad = arrays(axes, "f32", channels, samples)
        y, taps = max_pool(on(x), axes)
        assert y.shape == grad.shape and max_pool_gradient(on(grad), taps, axes).shape == x.shape
        assert mean_pool(on(x), axes).shape == grad.shape and mean_pool_gradient(on(grad), axes).shape == x.shape
