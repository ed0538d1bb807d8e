"""Lesson 3's own solutions against sums by NumPy, and its formulas against times computed by hand."""

import math

import numpy as np
import pytest

from minigrad.course.lesson03_ring.checks import measured_crossing
from minigrad.course.lesson03_ring.picture import halving_all_reduce, seconds
from minigrad.course.lesson03_ring.solution import crossing_bytes, doubling_all_reduce, ring_all_reduce
from minigrad.distributed import run, simulate


def _sums(all_reduce, world_size, length):
    rows = np.random.default_rng(length).normal(size=(world_size, length))

    def body(comm):
        array = rows[comm.rank].copy()
        all_reduce(array, comm)
        return array

    return rows.sum(axis=0), run(body, world_size, timeout_s=20)


@pytest.mark.parametrize("all_reduce", [ring_all_reduce, doubling_all_reduce])
@pytest.mark.parametrize("world_size", [1, 3, 6])
def test_sums_are_those_of_numpy_and_alike(all_reduce, world_size):
    for length in (0, 2, 25):
        total, found = _sums(all_reduce, world_size, length)
        np.testing.assert_allclose(found[0], total, rtol=0, atol=1e-13)
        assert len({array.tobytes() for array in found}) == 1


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_halving_of_the_picture_is_an_all_reduce_too(world_size):
    total, found = _sums(halving_all_reduce, world_size, 21)
    np.testing.assert_allclose(found[-1], total, rtol=0, atol=1e-13)


def test_times_of_the_picture_are_those_of_the_formulas():
    alpha_s, beta_s, nbytes = 50e-6, 1 / 1.25e9, 2**16
    expected = {
        ring_all_reduce: 14 * (alpha_s + beta_s * nbytes / 8),
        doubling_all_reduce: 3 * (alpha_s + beta_s * nbytes),
        halving_all_reduce: 6 * alpha_s + 1.75 * beta_s * nbytes,
    }
    for all_reduce, expected_s in expected.items():
        assert math.isclose(seconds(all_reduce, nbytes), expected_s, rel_tol=1e-12)


@pytest.mark.parametrize("world_size, expected", [(2, math.inf), (4, 8e6), (5, 4 / 2.4 * 1e6), (8, 8.8e6)])
def test_the_crossing_is_where_the_formulas_are_equal_and_where_the_runs_are(world_size, expected):
    assert math.isclose(crossing_bytes(world_size, 1e-3, 1e9), expected, rel_tol=1e-12)
    assert math.isclose(measured_crossing(world_size, simulate.Link(1e-3, 1e9)), expected, rel_tol=1e-9)
