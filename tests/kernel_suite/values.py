"""Awkward sizes, and values for them."""

import ml_dtypes
import numpy as np

from minigrad.backend.device import to_host

SIZES = (1, 31, 32, 33, 1000, 4099)
DTYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
}
# Rounding of a result by one unit in the last place, relative.
ULP = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


def draw(seed, size, dtype="f32", spread=1.0):
    """A seeded normal array."""
    return (np.random.default_rng(seed).standard_normal(size) * spread).astype(DTYPES[dtype])


def wide_range(seed, size, dtype):
    """Values over many powers of two, none of them so small that a GPU takes it for 0."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(size) * 2.0 ** rng.integers(-8, 12, size)).astype(DTYPES[dtype])


def equal(actual, expected):
    """Whether two arrays have the same elements, NaN equal to NaN."""
    actual = to_host(actual)
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    return np.array_equal(actual.astype(np.float64), expected.astype(np.float64), equal_nan=True)


def error_in_ulps(actual, expected, dtype):
    """The largest difference, in units in the last place of the largest expected value."""
    actual, expected = to_host(actual).astype(np.float64), expected.astype(np.float64)
    scale = max(np.abs(expected).max(), 1e-30)
    return np.abs(actual - expected).max() / (scale * ULP[dtype])
