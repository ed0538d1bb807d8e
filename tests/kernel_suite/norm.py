"""Sums of squares and largest values."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.norm import largest, sum_of_squares
from tests.kernel_suite.values import DTYPES, SIZES, draw, wide_range


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shift", [0, 1])
def test_sum_of_squares(on, dtype, shift):
    hosts = [wide_range(size, size + shift, dtype) for size in SIZES]
    arrays = [on(x)[shift:] for x in hosts]
    expected = [np.dot(*[x[shift:].astype(np.float64)] * 2) for x in hosts]
    for array, square in zip(arrays, expected):
        got = sum_of_squares([array])
        assert got.dtype == np.float64 and got.shape == ()
        np.testing.assert_allclose(to_host(got), square, rtol=1e-14)
    np.testing.assert_allclose(to_host(sum_of_squares(arrays)), sum(expected), rtol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest(on, dtype):
    for size in SIZES:
        x = wide_range(size, size, dtype)
        assert to_host(largest([on(x)])) == np.abs(x.astype(np.float64)).max()
        assert to_host(largest([on(x[: size // 2]), on(x)])) == np.abs(x.astype(np.float64)).max()


@pytest.mark.parametrize("count", [48, 49, 100])
def test_many_arrays_of_two_dtypes(on, count):
    hosts = [draw(i, (7 * i) % 41).astype(np.float64 if i % 3 else np.float32) for i in range(count)]
    arrays, whole = [on(x) for x in hosts], np.concatenate(hosts)
    np.testing.assert_allclose(to_host(sum_of_squares(arrays)), np.dot(whole, whole), rtol=1e-14)
    assert to_host(largest(arrays)) == np.abs(whole).max()


def test_the_sum_does_not_overflow_in_half_precision(on):
    x = np.full(1000, 60000, np.float16)
    np.testing.assert_allclose(to_host(sum_of_squares([on(x)])), np.dot(*[x.astype(np.float64)] * 2), rtol=1e-14)


@pytest.mark.parametrize("at", [0, 31, 500, 999])
def test_nan_and_infinity_win(on, at):
    x = draw(0, 1000)
    x[at] = np.nan
    assert np.isnan(to_host(largest([on(x)]))) and np.isnan(to_host(sum_of_squares([on(x)])))
    x[at] = -np.inf
    assert to_host(largest([on(x)])) == np.inf == to_host(sum_of_squares([on(x)]))


def test_nothing_has_no_norm(on):
    empty = on(np.zeros(0, np.float32))
    assert to_host(largest([empty])) == 0 == to_host(sum_of_squares([empty]))
