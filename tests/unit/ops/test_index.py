"""What the cases of tests/cases/index.py do not show: in which order, and how exactly, gradients of picked rows add."""

import numpy as np
import pytest

import minigrad
from minigrad import ops
from minigrad.tensor import Tensor

NAMES = np.array([[3, 0, 3, 1], [3, 3, 0, 3]])


def gradient(dtype, asarray=np.asarray):
    """Of a table of 5 rows that NAMES picks, where the gradient of the k-th picked one is k, and nan in column 2."""
    weight = Tensor(asarray(np.zeros((5, 3), dtype)), requires_grad=True)
    grad = np.arange(8.0).reshape(2, 4, 1).repeat(3, 2)
    grad[0, 3, 2] = np.nan
    ops.embedding(weight, Tensor(asarray(NAMES))).backward(Tensor(asarray(grad.astype(dtype))))
    return weight.grad.cpu().numpy()


def check(found):
    expected = np.array([1 + 6, 3, 0, 0 + 2 + 4 + 5 + 7, 0.0])
    assert np.array_equal(found[:, :2].astype(float), expected[:, None].repeat(2, 1))
    assert np.array_equal(np.isnan(found[:, 2].astype(float)), [False, True, False, False, False])


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_what_is_not_finite_stays_in_its_row(dtype):
    check(gradient(dtype))


def test_a_gpu_adds_in_a_fixed_order_and_waits_for_nothing(cuda, strict_cupy, monkeypatch):
    """add.at would add in the order in which threads happen to come."""
    monkeypatch.setattr(type(strict_cupy.add), "at", None)
    for dtype in (np.float32, np.float16):
        check(gradient(dtype, strict_cupy.asarray))
    weight = Tensor(strict_cupy.zeros((5, 3)), requires_grad=True)
    names, grad = strict_cupy.asarray(NAMES[0]), Tensor(strict_cupy.ones((4, 3)))
    with strict_cupy.no_sync():
        weight[Tensor(names)].backward(grad)
        ops.index_select(weight.t(), 1, Tensor(names)).backward(grad.t())
    assert weight.grad[:, 0].tolist() == [2, 2, 0, 4, 0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(dtype):
    """Ones one after the other end at 2,048 in float16, and at 256 in bfloat16, which NumPy adds by itself."""
    weight = minigrad.zeros(2, 3, dtype=dtype, requires_grad=True)
    ops.embedding(weight, minigrad.ones(2064, dtype="int64")).backward(minigrad.ones(2064, 3, dtype=dtype))
    assert weight.grad[1].tolist() == [2064.0] * 3


def test_a_table_that_is_used_again_adds_up():
    """As a tied head is; one row is picked in both, one in one, one in none."""
    weight = minigrad.zeros(3, 2, dtype="float64", requires_grad=True)
    first, second = (ops.embedding(weight, Tensor(np.array(names))) for names in ([0, 1, 1], [1]))
    (first.sum() + 10 * second.sum() + 100 * (weight @ minigrad.ones(2, 1, dtype="float64")).sum()).backward()
    assert weight.grad.tolist() == [[101.0] * 2, [112.0] * 2, [100.0] * 2]
