"""Lists of addresses, against sums of steps."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.addresses import MOST, MatrixPlaces, list_addresses


@pytest.mark.parametrize("arrays", [1, 3, MOST])
@pytest.mark.parametrize("lengths", [(1, 1), (2, 3), (3, 2), (1, 700), (500, 1)])
def test_addresses_of_matrices(on, arrays, lengths):
    given = [MatrixPlaces(2**40 * (k + 1) + 16, 4096 * k, 2**33 + 16 * k) for k in range(arrays)]
    table = on(np.zeros((arrays, lengths[0] * lengths[1]), np.uint64))
    list_addresses(table, lengths, given)
    outer, inner = np.indices(lengths).reshape(2, -1)
    expected = np.array([array.start + array.outer * outer + array.inner * inner for array in given])
    assert np.array_equal(to_host(table), expected)
