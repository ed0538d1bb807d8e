"""The arithmetic operators, where the cases shared by all operations do not reach."""

import math

import numpy as np
import pytest

from minigrad import Tensor, cat, div, fmod, ones, remainder, where


@pytest.mark.parametrize("shape", [(0,), (1, 0), ()], ids=str)
def test_a_gradient_of_no_elements_is_summed_to_the_shape_of_its_operand(shape):
    x = Tensor(np.zeros(shape), requires_grad=True)
    y = Tensor(np.zeros((3, 0)), requires_grad=True)
    where(y > 0, x, y).sum().backward()
    (x * y).sum().backward()
    assert x.grad.shape == shape and y.grad.shape == (3, 0) and not x.grad.numpy().any()


@pytest.mark.parametrize("mode, rounded", [("floor", math.floor), ("trunc", math.trunc)])
def test_a_quotient_of_integers_is_rounded(mode, rounded):
    x, y = range(-7, 8), (-3, -2, -1, 1, 2, 3)
    found = div(Tensor(np.array(x)[:, None]), Tensor(np.array(y)), rounding_mode=mode)
    assert found.dtype == np.int64 and found.tolist() == [[rounded(a / b) for b in y] for a in x]


@pytest.mark.parametrize("rest, slopes", [(fmod, [-3, 3, 3, -3]), (remainder, [-3, 4, 4, -3])])
def test_the_gradient_of_a_divisor_is_how_often_it_went_in(rest, slopes):
    x, y = Tensor(np.array([7.0, -7.0, 7.0, -7.0])), Tensor(np.array([2.0, 2.0, -2.0, -2.0]), requires_grad=True)
    rest(x, y).sum().backward()
    assert y.grad.tolist() == slopes


def test_what_cat_leaves_out_gets_a_gradient_without_elements():
    begun, x = Tensor(np.zeros(0), requires_grad=True), Tensor(np.ones((2, 3)), requires_grad=True)
    cat([begun, x]).sum().backward()
    assert begun.grad.shape == (0,) and x.grad.tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_number_is_added_so_many_times(dtype):
    x = ones(2, dtype=dtype)
    assert x.add(3, alpha=0.5).tolist() == x.sub(3, alpha=-0.5).tolist() == x.add_(3, alpha=0.5).tolist() == [2.5] * 2
