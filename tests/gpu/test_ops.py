"""Every operation on a GPU against NumPy."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.backend.device import to_device
from minigrad.testing import assert_close
from tests.cases import CASES
from tests.cases.evaluate import evaluate

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 1e-4)])
def test_operation(case, dtype, tolerance, cuda, cupy):
    expected, expected_grads = evaluate(case, np.asarray, dtype)
    got, grads = evaluate(case, lambda array: to_device(array, cuda), dtype)
    assert isinstance(got, cupy.ndarray)
    assert_close(got, expected, tolerance=tolerance, what="output")
    for i, (grad, expected_grad) in enumerate(zip(grads, expected_grads)):
        assert (grad is None) == (expected_grad is None), f"gradient {i}"
        if grad is not None:
            assert isinstance(grad, cupy.ndarray)
            assert_close(grad, expected_grad, tolerance=tolerance, what=f"gradient {i}")


def test_picked_rows_add_up_to_the_same_bits_each_time(cuda):
    rng = np.random.default_rng(0)
    names, grad = (Tensor(to_device(a, cuda)) for a in (rng.integers(0, 7, 5000), rng.standard_normal((5000, 64))))

    def gradient():
        weight = Tensor(to_device(np.zeros((7, 64), np.float32), cuda), requires_grad=True)
        ops.embedding(weight, names).backward(grad.to("float32"))
        return weight.grad.cpu().numpy()

    first = gradient()
    assert all(np.array_equal(gradient(), first) for _ in range(5))
