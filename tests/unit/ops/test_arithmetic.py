"""The arithmetic operators, where the cases shared by all operations do not reach."""

import numpy as np
import pytest

from minigrad import Tensor, where


@pytest.mark.parametrize("shape", [(0,), (1, 0), ()], ids=str)
def test_a_gradient_of_no_elements_is_summed_to_the_shape_of_its_operand(shape):
    x = Tensor(np.zeros(shape), requires_grad=True)
    y = Tensor(np.zeros((3, 0)), requires_grad=True)
    where(y > 0, x, y).sum().backward()
    (x * y).sum().backward()
    assert x.grad.shape == shape and y.grad.shape == (3, 0) and not x.grad.numpy().any()
