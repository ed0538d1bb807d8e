"""Comparing arrays and tensors, with one tolerance for each dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arguments import as_amount
from minigrad.backend.device import to_host
from minigrad.tensor import Tensor

TOLERANCE = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-5, "float64": 1e-12}


def assert_close(actual: Any, expected: Any, *, tolerance: float | None = None, what: str = "values") -> None:
    """Check that |actual - expected| <= tolerance · max(1, max|expected|) everywhere, and that shapes and dtypes agree.

    NaN equals NaN. Integers and bools must be equal.

    Args:
        actual, expected: Tensors or arrays, on any device.
        tolerance: By default that of the dtype: 1e-12 for float64, 1e-5 float32, 1e-2 float16, 5e-2 bfloat16.
        what: What is compared, for the message.

    Raises:
        AssertionError: they differ; the message holds the first element that differs most.
        ArgumentError: the tolerance is no finite number >= 0.
    """
    x, y = _host(actual), _host(expected)
    default = TOLERANCE.get(x.dtype.name, 0.0)
    allowed = default if tolerance is None else as_amount("assert_close", "tolerance", tolerance)
    if x.shape != y.shape or x.dtype != y.dtype:
        raise AssertionError(f"{what}: expected {y.dtype.name} {y.shape}, got {x.dtype.name} {x.shape}")
    if not x.size:
        return
    wide_x, wide_y = x.astype(np.float64), y.astype(np.float64)
    same = (wide_x == wide_y) | (np.isnan(wide_x) & np.isnan(wide_y))
    finite = np.abs(wide_y[np.isfinite(wide_y)])
    bound = allowed * max(1.0, float(finite.max()) if finite.size else 1.0)
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(wide_x - wide_y))
    error[np.isnan(error)] = np.inf
    if error.max() > bound:
        at = np.unravel_index(int(np.argmax(error)), error.shape)
        place = tuple(int(i) for i in at)
        raise AssertionError(
            f"{what}: expected a difference of at most {bound:.3g}, got {error.max():.3g} at {place}: "
            f"{x[at]!r} for {y[at]!r}, {np.count_nonzero(error > bound)} of {error.size} differ"
        )


def _host(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.data
    return to_host(value) if hasattr(value, "dtype") else np.asarray(value)
