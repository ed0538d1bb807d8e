"""Products of matrices whose addresses are listed: one call for all, and those of a loop."""

import numpy as np
import pytest

import minigrad
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.gemm import bmm, listed
from tests.strict_cupy import counted


@pytest.fixture
def cupy(cuda, strict_cupy):
    """The stand-in, on its second device."""
    return strict_cupy


def heads(cupy, samples, length, count, width, dtype="float32", parts=3):
    """Parts of a joint projection, each (samples, heads, length, width)."""
    x = np.random.default_rng(0).standard_normal((samples, length, parts, count, width)).astype(as_dtype(dtype))
    return tuple(cupy.asarray(x).transpose(2, 0, 3, 1, 4))


def calls(run):
    """What it gives, and how many products and lists it took."""
    with counted() as work:
        found = run()
    return found, work.pieces["gemm"], work.pieces["addresses_of_matrices"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_two_batch_axes_are_one_call(cupy, dtype, length):
    q, k, out = heads(cupy, 2, length, 3, 8, dtype)
    scores = cupy.empty((2, 3, length, length), np.float64 if dtype == "float64" else np.float32)
    before = bmm(q, k.swapaxes(-1, -2), cupy.empty_like(scores))

    def run():
        addresses = listed((2, 3), q, k, scores, out)
        bmm(q, k.swapaxes(-1, -2), scores, addresses=addresses)
        if scores.dtype == q.dtype:
            bmm(scores, k, out, addresses=addresses)  # into memory with gaps

    aligned = dtype == "float64" or dtype == "float32" or length * length % 4 == 0
    _, products, lists = calls(run)
    count = 1 + (scores.dtype == q.dtype)
    assert (products, lists) == ((count, 1) if aligned else (2 * count, 0))
    assert np.array_equal(scores.get(), before.get())
    if scores.dtype == q.dtype:
        np.testing.assert_allclose(out.get(), np.matmul(before.get(), k.get()), rtol=1e-4, atol=1e-5)


def test_what_is_stretched_and_what_is_not_in_the_list(cupy):
    q, k, other = heads(cupy, 2, 4, 3, 8)
    shared = k[:1]  # starts where k does
    out = cupy.empty((2, 3, 4, 4), np.float32)
    addresses = listed((2, 3), q, k, shared, out)
    for y, expected in ((shared, 1), (k, 1), (other, 2)):
        got, products, _ = calls(lambda: bmm(q, y.swapaxes(-1, -2), out, addresses=addresses))
        assert got is out and products == expected
        np.testing.assert_allclose(out.get(), np.matmul(q.get(), y.get().swapaxes(-1, -2)), rtol=1e-5, atol=1e-5)


def test_nothing_is_listed_where_nothing_is_gained(cupy):
    plain, many = cupy.empty((2, 3, 4, 4), np.float32), cupy.empty((2, 3, 4, 5, 4, 4), np.float32)
    assert listed((2, 3), plain, plain) is None
    assert listed((4, 3, 2), many.transpose(2, 1, 0, 3, 4, 5)[:, :, :, 0]) is None
    assert listed((2, 3), plain.get()) is None
    assert listed((3, 2), plain.swapaxes(0, 1), plain.swapaxes(0, 1)[..., :0, :]) is not None
    assert listed((0, 3), *heads(cupy, 0, 4, 3, 8)) is None


def test_tf32_asks_for_matrices_that_are_aligned(cupy):
    q, k, _ = heads(cupy, 2, 4, 3, 6)  # heads of 24 bytes
    out = cupy.empty((2, 3, 4, 4), np.float32)
    addresses = listed((2, 3), q, k, out)
    assert calls(lambda: bmm(q, k.swapaxes(-1, -2), out, addresses=addresses))[1] == 1
    assert calls(lambda: bmm(q, k.swapaxes(-1, -2), out, addresses=addresses, tf32=True))[1] == 2
    with minigrad.allow_tf32():
        assert listed((2, 3), q, k, out) is None
