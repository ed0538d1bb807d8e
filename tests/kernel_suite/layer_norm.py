"""Layer and RMS norm of rows, against their formulas in float64."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.layer_norm import gradients_of_rows, normalize_rows
from tests.kernel_suite.rows import ROWS, assert_near, tolerance
from tests.kernel_suite.values import DTYPES, SIZES, draw

EPS = 1e-2


def expected_normal(x, gain, shift, eps, centered=True):
    x = x.astype(np.float64)
    mean = x.mean(axis=1) if centered else np.zeros(len(x))
    rstd = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(axis=1) + eps)
    normal = (x - mean[:, None]) * rstd[:, None]
    out = normal if gain is None else normal * gain.astype(np.float64)
    return out if shift is None else out + shift.astype(np.float64), mean, rstd, normal


def check(on, length, dtype, affine, centered, rows=ROWS, places=0):
    """Both ways, with x and grad some places off a good address."""
    x, grad = (draw((length, i), (rows, length), dtype, spread=3) for i in range(2))
    x += DTYPES[dtype].type(2)
    gain, shift = ((draw(length + i, length, dtype) if affine else None) for i in range(2))
    shift = shift if centered else None
    placed = []
    for array in (x, grad):
        memory = on(np.concatenate([np.resize(array, places), array.reshape(-1)]))
        placed.append(memory[places:].reshape(array.shape))
    device = [None if v is None else on(v) for v in (gain, shift)]
    y, mean, rstd = normalize_rows(placed[0], *device, EPS, centered)
    want, want_mean, want_rstd, normal = expected_normal(x, gain, shift, EPS, centered)
    exact = tolerance("f64" if dtype == "f64" else "f32", length)
    if centered:
        assert_near(mean, want_mean, exact, "mean")
    assert_near(rstd, want_rstd, exact, "rstd")
    assert_near(y, want, tolerance(dtype, length) * 2, "y")
    wide = grad.astype(np.float64)
    h = wide if gain is None else wide * gain.astype(np.float64)
    moved = h.mean(1, keepdims=True) if centered else 0.0
    dx = want_rstd[:, None] * (h - moved - normal * (h * normal).mean(1, keepdims=True))
    found = [on(np.full_like(one, 77)) for one in (x, x[0], x[0])]
    gradients_of_rows(placed[1], placed[0], device[0], mean, rstd, *found)
    near = tolerance(dtype, length) * 4
    for got, what, name in zip(found, (dx, (wide * normal).sum(0), wide.sum(0)), ("dx", "dgain", "dshift")):
        assert_near(got, what, near, name)
    only = [on(np.full_like(one, 77)) for one in (x, x[0])]
    gradients_of_rows(placed[1], placed[0], device[0], mean, rstd, only[0], None, None)
    gradients_of_rows(placed[1], placed[0], device[0], mean, rstd, None, only[1], None)
    assert np.array_equal(to_host(only[0]), to_host(found[0])), "dx alone"
    assert np.array_equal(to_host(only[1]), to_host(found[1])), "dgain alone"
    base = draw(length, x.shape, dtype)
    there = on(base)
    for out in (only[0], there):  # beside what it is added to, and in its place
        gradients_of_rows(placed[1], placed[0], device[0], mean, rstd, out, None, None, there)
        assert_near(out, base.astype(np.float64) + dx, near, "dx and more")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("affine", [False, True], ids=["plain", "affine"])
def test_layer_norm_of_rows(on, dtype, affine):
    for length in SIZES:
        check(on, length, dtype, affine, centered=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_rows(on, dtype):
    for length in (1, 33, 1032):
        check(on, length, dtype, affine=True, centered=False)


def test_rows_off_a_good_address(on):
    check(on, 64, "f32", affine=True, centered=True, places=1)


def test_many_rows_are_summed_in_parts(on):
    for rows in (64, 2300):
        check(on, 36, "f32", affine=False, centered=True, rows=rows)


def test_rows_far_from_zero(on):
    x = draw(0, (3, 500)) + np.float32(3000)
    y, _, _ = normalize_rows(on(x), None, None, 1e-5)
    assert_near(y, expected_normal(x, None, None, 1e-5)[0], 1e-3, "y")


def test_gradients_of_no_rows_are_zero(on):
    x = on(np.zeros((0, 6), np.float32))
    y, mean, rstd = normalize_rows(x, None, None, EPS)
    dgain = on(np.full(6, 77, np.float32))
    gradients_of_rows(x, x, None, mean, rstd, None, dgain, None)
    assert y.shape == (0, 6) and not to_host(dgain).any()
