"""Range checks: which integers are found, wherever they are, and what is kept of them."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.kernels import kernels_for
from tests.kernel_suite.values import SIZES

DTYPES = ["int64", "int32", "int16", "int8", "uint8"]


def check(on, x, low, high, allowed=None, found=None):
    """What the kernel leaves in four words."""
    there = on(x)
    found = on(np.zeros(4, np.uint64)) if found is None else found
    loader = kernels_for(there)
    bounds = (np.int64(bound) for bound in (low, high, low if allowed is None else allowed))
    args = (there, np.int64(x.size), *bounds, found)
    loader.launch("range_check", f"range_check_{x.dtype.name}", loader.blocks(x.size), loader.threads, args)
    return found


def words(found):
    return to_host(found).view(np.int64).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_one_that_is_too_large_or_too_small_is_found_wherever_it_is(on, dtype, size):
    x = (np.arange(size) % 100).astype(dtype)
    assert words(check(on, x, 0, 100)) == [0, 0, 0, 0]
    for place in {0, size // 2, size - 1}:
        for value in (100, 120) if dtype == "uint8" else (100, -1):
            wrong = x.copy()
            wrong[place] = value
            assert words(check(on, wrong, 0, 100)) == [1, value, 0, 100]


def test_one_value_may_be_allowed(on):
    x = np.array([3, -100, 0])
    assert words(check(on, x, 0, 4, allowed=-100)) == [0, 0, 0, 0]
    assert words(check(on, x, 0, 4, allowed=-99)) == [1, -100, 0, 4]
    assert words(check(on, x, -100, 3)) == [1, 3, -100, 3]


def test_the_first_launch_that_found_something_is_kept(on):
    found = check(on, np.array([7]), 0, 4)
    check(on, np.arange(100, 300), 1, 5, found=found)
    assert words(found) == [1, 7, 0, 4]


def test_value_and_range_are_of_one_launch(on):
    """All are wrong; one is kept, whole."""
    flagged, value, low, high = words(check(on, np.arange(1000, 1500), -5, 9))
    assert (flagged, low, high) == (1, -5, 9) and 1000 <= value < 1500


def test_large_integers(on):
    x = np.array([2**40, 2**62])
    assert words(check(on, x, 0, 2**63 - 1)) == [0, 0, 0, 0]
    assert words(check(on, x, -(2**63), 2**62)) == [1, 2**62, -(2**63), 2**62]
