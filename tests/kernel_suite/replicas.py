"""Replicas summed in the fixed pairwise order, exactly as the collectives in memory do it."""

import pytest

from minigrad.backend.fused.replicas import MOST_REPLICAS, reduce_replicas_
from minigrad.distributed.collectives import ReduceOp, reduced
from tests.kernel_suite.values import DTYPES, SIZES, equal, wide_range


def expected_sum(hosts):
    return reduced([x.copy() for x in hosts], ReduceOp.SUM).astype(hosts[0].dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 8])
def test_replicas_are_summed_in_pairs(on, dtype, count):
    for size in SIZES:
        hosts = [wide_range((size, r), size, dtype) for r in range(count)]
        arrays = [on(x) for x in hosts]
        reduce_replicas_(arrays)
        assert all(equal(array, expected_sum(hosts)) for array in arrays)


@pytest.mark.parametrize("dtype", DTYPES)
def test_replicas_that_are_not_aligned(on, dtype):
    hosts = [wide_range(r, 70 + r, dtype) for r in range(3)]
    arrays = [on(x)[r:] for r, x in enumerate(hosts)]
    reduce_replicas_(arrays)
    assert all(equal(array, expected_sum([x[r:] for r, x in enumerate(hosts)])) for array in arrays)


def test_as_many_replicas_as_there_may_be(on):
    for count in (31, 32, MOST_REPLICAS):
        hosts = [wide_range(r, 40, "f32") for r in range(count)]
        arrays = [on(x) for x in hosts]
        reduce_replicas_(arrays)
        assert all(equal(array, expected_sum(hosts)) for array in arrays)
