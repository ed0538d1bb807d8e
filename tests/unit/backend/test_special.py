"""The error function against the one of the C library."""

import math

import numpy as np
import pytest

from minigrad.backend.special import erf


@pytest.mark.parametrize("dtype, tolerance", [("float64", 6e-16), ("float32", 6e-7), ("float16", 1e-3)])
def test_relative_accuracy(dtype, tolerance):
    magnitudes = np.concatenate([np.linspace(0.01, 7.0, 5000), np.logspace(-4, 0, 500), [1.0, np.nextafter(1.0, 2.0)]])
    x = np.concatenate([magnitudes, -magnitudes]).astype(dtype)
    exact = np.array([math.erf(value) for value in x.astype(float)])
    assert np.abs(erf(x).astype(float) / exact - 1).max() <= tolerance


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_special_values(dtype):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 100.0], dtype)
    y = erf(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.array([0.0, 0.0, 1.0, -1.0, np.nan, 1.0], dtype))
    assert np.signbit(y[1])


def test_tiny_numbers_keep_their_relative_accuracy():
    x = np.logspace(-300, -10, 30)
    np.testing.assert_allclose(erf(x), x * 2 / math.sqrt(math.pi), rtol=6e-16)


def test_never_beyond_one():
    for dtype in (np.float32, np.float64):
        assert np.abs(erf(np.linspace(-10, 10, 20001).astype(dtype))).max() == 1.0
