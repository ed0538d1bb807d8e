"""Rows picked by integers, and sums by integers, against NumPy."""

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused import embedding
from tests.kernel_suite.values import DTYPES, ULP, draw, equal

COUNTS, WIDTHS = (1, 33, 300), (1, 31, 33, 130)


def sums(rows, index, length, skipped=None):
    """The sums and what they are summed from in absolute value, in float64."""
    total, size = np.zeros((2, length, rows.shape[1]))
    for name, row in zip(index % length, rows.astype(np.float64)):
        if name != skipped:
            total[name] += row
            size[name] += abs(row)
    return total, size


@pytest.fixture(params=["looking", "sorting"])
def way(request, monkeypatch):
    """Both ways to find the rows of a name."""
    monkeypatch.setattr(embedding, "_MOST_LOOKS", 0 if request.param == "sorting" else 2**40)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_picked(on, dtype):
    for count in COUNTS:
        for width in WIDTHS:
            table, index = draw(width, (7, width), dtype), np.random.default_rng(count).integers(0, 7, (count, 1))
            found = on(np.zeros(4, np.uint64))
            assert equal(embedding.pick_rows(on(table), on(index), found), table[index])
            assert not to_host(found).any()


@pytest.mark.parametrize("bad", [-1, 7, -8, 2**40])
def test_an_index_out_of_range_wraps_around_and_is_kept(on, bad):
    table, index, found = draw(0, (7, 40)), np.array([3, bad, 0]), on(np.zeros(4, np.uint64))
    assert equal(embedding.pick_rows(on(table), on(index), found), table[index % 7])
    assert to_host(found).view(np.int64).tolist() == [1, bad, 0, 7]
    assert equal(embedding.pick_rows(on(table), on(index), None), table[index % 7])


def test_tables_that_are_not_aligned(on):
    table = on(draw(0, 7 * 36 + 1))[1:].reshape(7, 36)
    index = np.array([6, 0, 3])
    assert equal(embedding.pick_rows(table, on(index), None), to_host(table)[index])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_summed_by_name(on, dtype, way):
    check_sums(on, dtype)


def check_sums(on, dtype):
    for count in COUNTS:
        for width in WIDTHS:
            rows, index = draw(width, (count, width), dtype), np.random.default_rng(count).integers(-2, 9, count)
            got = to_host(embedding.sum_rows(on(rows), on(index), 7)).astype(np.float64)
            want, size = sums(rows, index, 7)
            inexact = ULP["f64" if dtype == "f64" else "f32"] * count * size + ULP[dtype] * abs(want)
            assert (abs(got - want) <= inexact).all()


def test_a_name_may_be_skipped_and_a_place_given(on, way):
    check_skipped(on)


def check_skipped(on):
    rows, index = draw(0, (300, 33)), np.arange(300) % 5
    rows[index == 3] = np.nan
    out = on(np.full((6, 33), 7, np.float32))
    assert embedding.sum_rows(on(rows), on(index), 6, 3, out) is out
    np.testing.assert_allclose(to_host(out), sums(rows, index, 6, 3)[0], atol=1e-5)


def test_one_name_for_all_and_other_integers(on, way):
    rows = draw(1, (700, 3))
    for dtype in ("int32", "uint8"):
        got = embedding.sum_rows(on(rows), on(np.full(700, 2, dtype)), 4)
        np.testing.assert_allclose(to_host(got), sums(rows, np.full(700, 2), 4)[0], atol=1e-4)


def test_nothing_is_named(on, way):
    assert not to_host(embedding.sum_rows(on(np.zeros((0, 5), np.float32)), on(np.zeros(0, np.int64)), 4)).any()
    assert embedding.pick_rows(on(draw(0, (3, 5))), on(np.zeros((2, 0), np.int64)), None).shape == (2, 0, 5)
    assert embedding.pick_rows(on(draw(0, (3, 0))), on(np.zeros(2, np.int64)), None).shape == (2, 0)
