"""Products where an axis has no elements."""

import numpy as np
import pytest

import minigrad
from minigrad import ops


@pytest.mark.parametrize("shape", [(3, 0), (2, 3, 0), (0,), (0, 0), (0, 2)])
def test_linear_with_an_axis_of_no_elements(shape):
    weight = minigrad.Tensor(np.ones((5, shape[-1])), requires_grad=True)
    bias = minigrad.Tensor(np.ones(5), requires_grad=True)
    x = minigrad.Tensor(np.ones(shape), requires_grad=True)
    out = ops.linear(x, weight, bias)
    out.sum().backward()
    np.testing.assert_array_equal(out.data, np.ones((*shape[:-1], 5)))
    assert weight.grad.shape == weight.shape and x.grad.shape == shape
    np.testing.assert_array_equal(weight.grad.data, np.zeros(weight.shape))
    np.testing.assert_array_equal(bias.grad.data, np.full(5, float(np.prod(shape[:-1]))))
