"""What cuBLAS is asked for: a stand-in multiplies at the addresses it is given, columns first, as cuBLAS does."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minigrad
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.gemm import bmm
from minigrad.errors import DtypeError, ShapeError
from tests.strict_cupy.products import HostCublas

FAKE = HostCublas()
CALLS = FAKE.library.calls
LENGTHS = st.integers(1, 4)


def view(draw, shape, rng):
    """Normal float64 values of a shape, in memory that is permuted, has gaps, runs backwards or is stretched."""
    order = draw(st.permutations(range(len(shape))))
    gaps = [draw(st.sampled_from((1, 1, 1, 2, -1))) for _ in shape]
    stretched = [draw(st.integers(0, 9)) == 0 for _ in shape]
    lengths = [1 if wide else n * abs(gap) for n, gap, wide in zip(shape, gaps, stretched)]
    memory = rng.standard_normal([lengths[axis] for axis in order]).transpose(np.argsort(order))
    x = memory[tuple(slice(None, None, 1 if wide else gap) for gap, wide in zip(gaps, stretched))]
    return np.broadcast_to(x, shape)


@st.composite
def operands(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    batch = [draw(LENGTHS) for _ in range(draw(st.integers(0, 3)))]
    rows, inner, columns = draw(LENGTHS), draw(LENGTHS), draw(LENGTHS)
    axes = []
    for _ in range(2):
        kept = [1 if draw(st.integers(0, 3)) == 0 else n for n in batch]
        axes.append(kept[draw(st.integers(0, len(batch))) :])
    return view(draw, [*axes[0], rows, inner], rng), view(draw, [*axes[1], inner, columns], rng)


@given(operands())
def test_any_views_give_the_product(pair):
    a, b = pair
    before = a.copy(), b.copy()
    got = bmm(a, b, blas=FAKE)
    expected = np.matmul(a, b)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
    assert np.array_equal(a, before[0]) and np.array_equal(b, before[1])


@given(operands(), st.data())
def test_into_any_memory(pair, data):
    a, b = pair
    shape = np.matmul(a, b).shape
    order = data.draw(st.permutations(range(len(shape))))
    memory = np.full([shape[axis] + 1 for axis in order], 7.0)
    out = memory.transpose(np.argsort(order))[tuple(slice(n) for n in shape)]
    assert bmm(a, b, out, blas=FAKE) is out
    np.testing.assert_allclose(out, np.matmul(a, b), rtol=1e-12, atol=1e-12)
    assert (memory == 7.0).sum() == memory.size - out.size


def calls_of(a, b, **options):
    CALLS.clear()
    bmm(a, b, blas=FAKE, **options)
    return list(CALLS)


def test_a_batch_is_one_call_and_transposed_views_are_not_copied():
    a, b = np.ones((2, 3, 5, 4)), np.ones((2, 3, 6, 5))
    assert calls_of(a, a.swapaxes(-1, -2)) == [
        {"m": 5, "n": 5, "k": 4, "batch": 6, "compute": 70, "lda": 4, "ldb": 4}
    ]
    [call] = calls_of(b, a)
    assert (call["m"], call["n"], call["k"], call["batch"]) == (4, 6, 5, 6)
    [call] = calls_of(a.swapaxes(-1, -2), b.swapaxes(-1, -2))
    assert (call["lda"], call["ldb"]) == (5, 4)  # as in memory


def test_a_broadcast_operand_is_one_call():
    assert [call["batch"] for call in calls_of(np.ones((7, 5, 4)), np.ones((4, 3)))] == [7]
    assert [call["batch"] for call in calls_of(np.ones((2, 7, 5, 4)), np.ones((4, 3)))] == [14]


def test_axes_that_do_not_fold_take_a_call_for_each_index_of_the_shorter():
    a = np.ones((3, 9, 2, 4)).transpose(0, 2, 1, 3)  # heads out of the middle
    assert [call["batch"] for call in calls_of(a, a.swapaxes(-1, -2))] == [3, 3]
    assert [call["batch"] for call in calls_of(np.ones((2, 1, 3, 4)), np.ones((5, 4, 2)))] == [5, 5]


@pytest.mark.parametrize("dtype, compute", [("float16", 68), ("bfloat16", 68), ("float32", 68), ("float64", 70)])
def test_sums_are_wide(dtype, compute):
    """A sum of 4096 ones, and of one and 4096 parts too small to count one by one."""
    a, b = np.ones((2, 3, 4096), as_dtype(dtype)), np.full((2, 4096, 1), 2.0**-9, as_dtype(dtype))
    [call] = calls_of(a, b)
    assert call["compute"] == compute
    for found in (bmm(a, b, blas=FAKE), bmm(a, b)):
        assert found.dtype == a.dtype and (found.astype(np.float64) == 8.0).all()


@pytest.mark.parametrize("blas", [None, FAKE])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_is_summed_wide_may_stay_wide(dtype, blas):
    a, b = np.full((2, 3, 256), 1 + 2.0**-7, as_dtype(dtype)), np.ones((2, 256, 1), as_dtype(dtype))
    turned = np.empty((2, 1, 3), np.float32)
    for out in (np.empty((2, 3, 1), np.float32), turned.swapaxes(1, 2)):
        assert bmm(a, b, out, blas=blas) is out and (out == 258.0).all()
    with pytest.raises(ShapeError, match="expected out of"):
        bmm(a, b, np.empty((2, 3, 1)), blas=blas)


def test_tf32_is_never_the_default():
    a = np.ones((2, 3, 3), np.float32)
    assert [call["compute"] for call in calls_of(a, a)] == [68]
    assert [call["compute"] for call in calls_of(a, a, tf32=True)] == [77]
    with minigrad.allow_tf32():
        assert [call["compute"] for call in calls_of(a, a)] == [77]
        assert [call["compute"] for call in calls_of(a, a, tf32=False)] == [68]
        assert [call["compute"] for call in calls_of(a.astype(np.float16), a.astype(np.float16))] == [68]
    assert [call["compute"] for call in calls_of(a, a)] == [68]


def test_nothing_to_multiply_asks_for_nothing():
    CALLS.clear()
    assert bmm(np.ones((0, 3, 4)), np.ones((4, 5)), blas=FAKE).shape == (0, 3, 5)
    out = np.full((2, 3, 5), 7.0)
    assert not bmm(np.ones((2, 3, 0)), np.ones((2, 0, 5)), out, blas=FAKE).any()
    assert CALLS == []


@pytest.mark.parametrize("blas", [None, FAKE])
def test_what_does_not_fit_is_refused(blas):
    x = np.ones((2, 3, 4))
    with pytest.raises(DtypeError, match="one float dtype, got float64 and float32"):
        bmm(x, x.astype(np.float32), blas=blas)
    with pytest.raises(DtypeError, match="int64"):
        bmm(np.ones((2, 2), np.int64), np.ones((2, 2), np.int64), blas=blas)
    with pytest.raises(ShapeError, match=r"\(2, 3, 4\) @ \(2, 3, 4\)"):
        bmm(x, x, blas=blas)
    with pytest.raises(ShapeError, match="batch axes that broadcast"):
        bmm(x, np.ones((3, 4, 2)), blas=blas)
    with pytest.raises(ShapeError, match=r"got \(4,\) @"):
        bmm(np.ones(4), np.ones((4, 2)), blas=blas)
    with pytest.raises(ShapeError, match="expected out of float64"):
        bmm(x, np.ones((4, 2)), np.ones((3, 2)), blas=blas)
