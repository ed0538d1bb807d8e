"""The list collectives: pure functions of arrays."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad.distributed import collectives
from minigrad.distributed.collectives import ReduceOp
from minigrad.errors import ArgumentError, DtypeError, ShapeError


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


def test_wrong_input():
    with pytest.raises(ArgumentError, match="at least one array"):
        collectives.all_reduce([])
    with pytest.raises(DtypeError, match="AVG, got int64"):
        collectives.all_reduce([np.ones(2, np.int64)], ReduceOp.AVG)


TWO, THREE = np.zeros(2), np.zeros(3)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: collectives.all_reduce([TWO, THREE]), ShapeError, r"one shape, got \(2,\) and \(3,\)"),
        (lambda: collectives.all_reduce([TWO, np.zeros(2, int)]), DtypeError, "one dtype, got float64 and int64"),
        (lambda: collectives.all_reduce(["abc"]), DtypeError, "expected an array of NumPy or CuPy, got str"),
        (lambda: collectives.broadcast([TWO, TWO.copy()], 2), ArgumentError, r"root .* in \[0, 2\), got 2"),
        (lambda: collectives.broadcast([TWO, THREE], 0), ShapeError, "broadcast: expected arrays of one shape"),
        (lambda: collectives.reduce_scatter([TWO], [THREE]), ShapeError, r"1 times the elements of \(2,\), got 1 of"),
        (lambda: collectives.all_gather([THREE] * 2, [TWO] * 2), ShapeError, r"2 times the elements of \(2,\)"),
        (lambda: collectives.all_gather([TWO], [TWO.astype(int)]), DtypeError, "got float64 and int64"),
        (lambda: collectives.all_gather([], []), ArgumentError, "all_gather: expected at least one array, got none"),
    ],
)
def test_arrays_that_do_not_fit_each_other_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
