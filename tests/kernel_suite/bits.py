"""The fingerprint of bits, against the formula in Python's integers."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.bits import fingerprint_of_bits
from tests.kernel_suite.values import SIZES


def expected_fingerprint(bits, start):
    word, total = 2**64 - 1, 0
    for i, b in enumerate(bits.tolist(), start + 1):
        z = b + i * 0x9E3779B97F4A7C15 & word
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & word
        z = (z ^ z >> 27) * 0x94D049BB133111EB & word
        total += z ^ z >> 31
    return total & word


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("shift", [0, 1])
def test_fingerprint(on, dtype, shift):
    for size in SIZES:
        bits = np.random.default_rng(size).integers(0, 256, (size + shift) * 8, np.uint8).view(dtype)[: size + shift]
        for start in (0, 2**40 + 3):
            got = fingerprint_of_bits(on(bits)[shift:], start)
            assert got.shape == () and got.dtype == np.uint64
            assert int(to_host(got)) == expected_fingerprint(bits[shift:], start)


def test_the_fingerprint_of_nothing_is_zero(on):
    assert int(to_host(fingerprint_of_bits(on(np.zeros(0, np.uint32)), 5))) == 0
