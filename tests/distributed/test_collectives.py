"""The list collectives: pure functions of arrays."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp


def _arrays(world_size, count, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(count).astype(dtype) for _ in range(world_size)]


@given(world_size=st.integers(1, 9), count=st.integers(0, 40), cut=st.integers(0, 40), seed=st.integers(0, 99))
def test_the_bits_do_not_depend_on_how_an_array_is_cut(world_size, count, cut, seed):
    whole, parts = (_arrays(world_size, count, seed) for _ in range(2))
    collectives.all_reduce(whole)
    for part in (slice(0, min(cut, count)), slice(min(cut, count), count)):
        collectives.all_reduce([array[part] for array in parts])
    assert all(array.tobytes() == whole[0].tobytes() for array in whole + parts)


@given(levels=st.integers(0, 4), split=st.integers(0, 4), seed=st.integers(0, 99))
def test_consecutive_shards_fit_into_the_tree_bit_for_bit(levels, split, seed):
    """V shards summed by W ranks, each its own V/W first, give the bits of one rank summing all V."""
    shards, ranks = 2**levels, 2 ** min(split, levels)
    one, many = (_arrays(shards, 7, seed) for _ in range(2))
    collectives.all_reduce(one)
    each = shards // ranks
    own = [many[r * each : (r + 1) * each] for r in range(ranks)]
    for arrays in own:
        collectives.all_reduce(arrays)
    collectives.all_reduce([arrays[0] for arrays in own])
    assert own[0][0].tobytes() == one[0].tobytes()


def test_order_is_neighbours_first():
    order = []
    collectives.pairwise(list(range(5)), lambda a, b: order.append((a, b)))
    assert order == [(0, 1), (2, 3), (0, 2), (0, 4)]


@pytest.mark.parametrize(
    "op, expected", [("SUM", 9.0), ("AVG", 3.0), ("MIN", 2.0), ("MAX", 4.0), ("PROD", 24.0)]
)
def test_operations(op, expected):
    arrays = [np.full(2, value) for value in (3.0, 4.0, 2.0)]
    collectives.all_reduce(arrays, ReduceOp[op])
    assert all(array.tolist() == [expected, expected] for array in arrays)


def test_low_precision_is_accumulated_wide():
    """512 ones in bfloat16: a running sum in bfloat16 would stall at 256."""
    arrays = [np.ones(1, ml_dtypes.bfloat16) for _ in range(512)]
    collectives.all_reduce(arrays)
    assert float(arrays[0][0]) == 512.0
    halves = [np.full(1, 1.0 if r == 0 else 2**-11, np.float16) for r in range(3)]
    collectives.all_reduce(halves)
    assert float(halves[0][0]) == 1.0 + 2**-10
