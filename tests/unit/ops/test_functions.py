"""What cases can't say of the functions beyond elementwise.py."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.backend.dtypes import as_dtype


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_infinities_become_the_ends_of_the_dtype(dtype):
    x = Tensor(np.array([np.inf, -np.inf, np.nan, 1.5]).astype(as_dtype(dtype)))
    found = ops.nan_to_num(x).data
    assert found.dtype == as_dtype(dtype) and np.isfinite(found).all()
    with np.errstate(over="ignore"):
        assert not np.isfinite(np.nextafter(found[0], np.array(np.inf, found.dtype)))
    assert found[1] == -found[0] and found[2:].tolist() == [0.0, 1.5]


def test_integers_are_promoted():
    for name in ("acos", "acosh", "asin", "asinh", "atan", "cosh", "exp2", "log10", "log2", "sinh", "tan"):
        assert getattr(ops, name)(Tensor(np.array([1]))).dtype == np.float32
    assert ops.atan2(Tensor(np.array([1])), Tensor(np.array([0]))).item() == pytest.approx(np.pi / 2)


def test_the_angle_of_the_origin_has_no_slope():
    x, other = (Tensor(np.array([0.0, 1.0]), requires_grad=True) for _ in range(2))
    ops.atan2(x, other).sum().backward()
    assert x.grad.tolist() == [0.0, 0.5] and other.grad.tolist() == [0.0, -0.5]
