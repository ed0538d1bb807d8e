"""Batch, group and instance norm of rows of channels, against their formulas in float64."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused import channel_norm
from minigrad.backend.fused.channel_norm import Running, Segments, channel_gradients, normalize_channels
from tests.kernel_suite.rows import assert_near, tolerance
from tests.kernel_suite.values import DTYPES, draw

EPS = 1e-2
# Rows of one part and of several, channels fewer than a tile, in several tiles, and not a multiple of a vector.
SHAPES = {
    "batch": Segments(1, 70, 12, 12),
    "two_rows": Segments(1, 2, 3, 3),
    "tiles": Segments(1, 9, 130, 130),
    "group": Segments(3, 33, 24, 4),
    "wide_group": Segments(2, 5, 152, 2),
    "layer": Segments(2, 33, 20, 1),
    "instance": Segments(5, 16, 16, 16),
    "single": Segments(2, 1, 6, 2),
}


def expected(x, grad, gain, shift, s):
    """y, mean, variance, dx, dgain and dshift, in float64."""
    split = (s.number, s.length, s.groups, s.channels // s.groups)
    wide, slope = (array.astype(np.float64).reshape(split) for array in (x, grad))
    mean, variance = wide.mean((1, 3), keepdims=True), wide.var((1, 3), keepdims=True)
    normal = (wide - mean) / np.sqrt(variance + EPS)
    factor, offset = (np.full(s.channels, v, np.float64) if a is None else a.astype(np.float64)
                      for a, v in ((gain, 1), (shift, 0)))
    h = slope * factor.reshape(s.groups, -1)
    dx = h - h.mean((1, 3), keepdims=True) - normal * (h * normal).mean((1, 3), keepdims=True)
    y = normal * factor.reshape(s.groups, -1) + offset.reshape(s.groups, -1)
    facts = (one.reshape(s.number, s.groups) for one in (mean, variance))
    sums = (one.sum((0, 1)).reshape(-1) for one in (slope * normal, slope))
    return (y.reshape(x.shape), *facts, (dx / np.sqrt(variance + EPS)).reshape(x.shape), *sums)


def check(on, segments, dtype, affine, shift=0):
    """Both ways, with x and grad `shift` elements off a good address."""
    shape = (segments.number * segments.length, segments.channels)
    x, grad = (draw((segments.length, i), shape, dtype, spread=3) for i in range(2))
    x += DTYPES[dtype].type(2)
    vectors = [draw(i, segments.channels, dtype) if affine else None for i in range(2)]
    gain, offset = (None if v is None else on(v) for v in vectors)
    placed = []
    for array in (x, grad):
        memory = on(np.concatenate([array.reshape(-1)[:shift], array.reshape(-1)]))
        placed.append(memory[shift:].reshape(shape))
    y, found = normalize_channels(placed[0], segments, gain, offset, EPS, with_variance=True)
    want, mean, variance, want_dx, want_dgain, want_dshift = expected(x, grad, *vectors, segments)
    exact, near = (tolerance(d, x.size) for d in ("f64" if dtype == "f64" else "f32", dtype))
    assert_near(found.mean, mean, exact, "mean")
    assert_near(found.variance, variance, exact, "variance")
    assert_near(y, want, near * 2, "y")
    dx, dgain, dshift = (on(np.full_like(one, 77)) for one in (x, x[0], x[0]))
    channel_gradients(placed[1], placed[0], segments, gain, found, dx, dgain, dshift)
    assert_near(dx, want_dx, near * 4, "dx")
    assert_near(dgain, want_dgain, near * 4, "dgain")
    assert_near(dshift, want_dshift, near * 4, "dshift")
    only = on(np.full_like(x, 77))
    channel_gradients(placed[1], placed[0], segments, gain, found, only, None, None)
    assert np.array_equal(to_host(only), to_host(dx))


@pytest.mark.parametrize(
    "shape, dtype", [(shape, "f32") for shape in SHAPES] + [("group", dtype) for dtype in DTYPES if dtype != "f32"]
)
def test_channels(on, shape, dtype):
    check(on, SHAPES[shape], dtype, affine=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_without_gain_and_off_a_good_address(on, dtype):
    check(on, SHAPES["group"], dtype, affine=False, shift=1)


@pytest.mark.parametrize("shape", ["batch", "layer", "instance"])
def test_a_block_merges_what_is_many(on, shape, monkeypatch):
    monkeypatch.setattr(channel_norm, "_LONGEST_OF_A_WARP", 1)
    check(on, SHAPES[shape], "f32", affine=True)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("shape", ["batch", "group"])
def test_a_large_mean_costs_no_digit(on, dtype, shape):
    """float32 resolves 1e4 to 1e-3, a tenth of the spread: what is left of x without a first one is exact."""
    s = SHAPES[shape]
    x = draw(0, (s.number * s.length, s.channels), dtype, spread=1e-2) + DTYPES[dtype].type(1e4)
    y, found = normalize_channels(on(x), s, None, None, 1e-9, with_variance=True)
    wide = (x.astype(np.float64) - 1e4).reshape(s.number, s.length, s.groups, -1)
    mean, variance = wide.mean((1, 3), keepdims=True), wide.var((1, 3), keepdims=True)
    bound = 1e-6 if dtype == "f32" else 1e-12
    ratio = to_host(found.variance) / variance.reshape(s.number, -1)
    assert_near(ratio, np.ones((s.number, s.groups)), bound, "variance")
    want = ((wide - mean) / np.sqrt(variance + 1e-9)).reshape(x.shape)
    assert_near(y, want, bound * 3, "y")


def test_a_spike_in_front_costs_little(on):
    """It is what others are measured from; the spread without it would be lost to its square."""
    x = draw(0, (500, 8)) * np.float32(1e-3)
    x[0] = 1e3
    _, found = normalize_channels(on(x), Segments(1, 500, 8, 8), None, None, EPS, with_variance=True)
    want = x.astype(np.float64).var(axis=0)[None]
    assert_near(to_host(found.variance) / want, np.ones((1, 8)), 1e-5, "variance")


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_statistics_move_and_batches_are_counted(on, dtype):
    s = SHAPES["batch"]
    start = [draw(i, s.channels, dtype) for i in range(2)]
    x = draw(3, (s.length, s.channels), dtype, spread=2)
    running = Running(*map(on, start), on(np.array(4)), 0.3)
    normalize_channels(on(x), s, None, None, EPS, running)
    wide = x.astype(np.float64)
    for moved, before, new in zip(running, start, (wide.mean(axis=0), wide.var(axis=0, ddof=1))):
        want = 0.7 * before.astype(np.float64) + 0.3 * new
        assert_near(moved, want, tolerance(dtype, s.length) * 2, "running")
    assert to_host(running.batches) == 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_fixed_statistics(on, dtype):
    x, grad = (draw(i, (70, 40), dtype, spread=2) for i in range(2))
    mean, gain, shift = (draw(i, 40, dtype) for i in range(2, 5))
    variance = np.abs(draw(5, 40, dtype)) + DTYPES[dtype].type(0.5)
    y, found = channel_norm.normalize_fixed(on(x), on(mean), on(variance), on(gain), on(shift), EPS)
    rstd = 1 / np.sqrt(variance.astype(np.float64) + EPS)
    normal = (x.astype(np.float64) - mean.astype(np.float64)) * rstd
    near, factor = tolerance(dtype, x.size) * 4, gain.astype(np.float64)
    assert found.fixed
    assert_near(y, normal * factor + shift.astype(np.float64), near, "y")
    dx, dgain, dshift = (on(np.empty_like(one)) for one in (x, gain, gain))
    channel_gradients(on(grad), on(x), Segments(1, 70, 40, 40), on(gain), found, dx, dgain, dshift)
    wide = grad.astype(np.float64)
    assert_near(dx, wide * factor * rstd, near, "dx")
    assert_near(dgain, (wide * normal).sum(axis=0), near, "dgain")
    assert_near(dshift, wide.sum(axis=0), near, "dshift")
    given = [on(one.astype(np.float32 if one.itemsize == 2 else one.dtype)) for one in (mean, variance)]
    same, _ = channel_norm.normalize_fixed(on(x), *given, on(gain), on(shift), EPS)
    assert np.array_equal(to_host(same).view(np.uint8), to_host(y).view(np.uint8)), "wide statistics"
    y, _ = channel_norm.normalize_fixed(on(x), None, None, None, None, 0.0)
    assert np.array_equal(to_host(y), x)


def test_equal_inputs_give_equal_bits(on):
    s = SHAPES["batch"]
    x, grad = (on(draw(i, (s.length, s.channels))) for i in range(2))
    seen = []
    for _ in range(2):
        y, found = normalize_channels(x, s, None, None, EPS)
        out = [on(np.empty(shape, np.float32)) for shape in ((s.length, s.channels), s.channels, s.channels)]
        channel_gradients(grad, x, s, None, found, *out)
        seen.append([to_host(one).tobytes() for one in (y, found.mean, found.rest, found.rstd, *out)])
    assert seen[0] == seen[1]
