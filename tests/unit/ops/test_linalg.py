"""Products where an axis has no elements; norms in another dtype."""

import numpy as np
import pytest

import minigrad
from minigrad import linalg, ops


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


@pytest.mark.parametrize("norm", [linalg.norm, linalg.vector_norm])
def test_a_norm_in_the_dtype_that_was_asked_for(norm):
    x = minigrad.Tensor(np.full(4, 1e30, np.float32))
    assert norm(x, dtype="float64").item() == pytest.approx(2e30) and norm(x, dtype="float64").dtype == np.float64
