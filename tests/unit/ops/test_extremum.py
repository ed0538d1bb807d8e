"""Largest and smallest elements: ties, NaN, indices, errors."""

import math

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.testing import assert_close

TIES = [[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]


@pytest.fixture
def x():
    return Tensor(np.array(TIES), requires_grad=True)


def test_max_of_all_splits_the_gradient_evenly(x):
    y = x.max()
    y.backward()
    assert isinstance(y, Tensor) and y.shape == ()
    assert x.grad.tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]


def test_max_along_an_axis_gives_the_gradient_to_the_first(x):
    values, indices = x.max(1)
    values.sum().backward()
    assert values.tolist() == [3.0, 2.0]
    assert indices.tolist() == [1, 0]
    assert x.grad.tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]


def test_amax_splits_the_gradient_evenly(x):
    x.amax(1).sum().backward()
    assert_close(x.grad, np.array([[0.0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]]))


def test_min_mirrors_max(x):
    negative = Tensor(-x.data)
    assert negative.min(0).values.tolist() == [-v for v in x.max(0).values.tolist()]
    assert negative.min(0).indices.tolist() == x.max(0).indices.tolist()
    assert negative.amin((0, 1)).item() == -x.amax((0, 1)).item() == -3.0
    assert negative.argmin().item() == x.argmax().item() == 1


@pytest.mark.parametrize("name", ["max", "min", "amax", "amin"])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "bfloat16", "float32"])
def test_dtype_is_kept(name, dtype):
    x = Tensor(np.array([[0, 1], [1, 0]])).to(dtype)
    assert getattr(x, name)().dtype == x.dtype
    along = getattr(x, name)(1)
    assert (along if isinstance(along, Tensor) else along.values).dtype == x.dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_keep_the_dtype(dtype):
    for reduce in (ops.amax, lambda x, dim: x.max(dim).values):
        x = Tensor(np.array(TIES)).to(dtype).requires_grad_()
        reduce(x, 0).sum().backward()
        assert x.grad.dtype == x.dtype


@pytest.mark.parametrize("name", ["max", "min"])
def test_nan_wins_and_shares_the_gradient(name):
    x = Tensor(np.array([1.0, math.nan, 3.0, math.nan]), requires_grad=True)
    found = getattr(x, name)(0)
    assert math.isnan(found.values.item()) and found.indices.item() == x.argmin().item() == x.argmax().item() == 1
    getattr(x, name)().backward(Tensor(np.array(5.0)))
    assert x.grad.tolist() == [0.0, 2.5, 0.0, 2.5]


@pytest.mark.parametrize("name", ["amax", "amin"])
def test_nan_spoils_the_gradient_of_its_slice(name):
    x = Tensor(np.array([[1.0, math.nan], [2.0, 2.0]]), requires_grad=True)
    getattr(x, name)(1).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), [[math.nan, math.nan], [0.5, 0.5]])


def test_keepdim(x):
    assert x.max(0, keepdim=True).values.shape == x.max(0, keepdim=True).indices.shape == (1, 3)
    assert x.argmax(1, keepdim=True).tolist() == [[1], [0]]
    assert x.argmax(keepdim=True).tolist() == [[1]]
    assert x.max(keepdim=True).shape == (1, 1)


def test_indices_are_int64(x):
    assert x.max(0).indices.dtype == x.argmax().dtype == x.argmin(1).dtype == np.int64


def test_argmax_counts_in_the_order_of_rows(x):
    assert Tensor(x.data.T).argmax().item() == 2


def test_a_copy_not_a_view_of_a_scalar():
    x = Tensor(np.array(1.0))
    values = x.max(0).values
    assert not np.shares_memory(values.data, x.data)
