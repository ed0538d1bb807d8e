"""Reductions: dtypes, axes, values where they are hard, errors."""

import math

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.errors import ArgumentError, ShapeError
from minigrad.testing import assert_close

REDUCTIONS = ["sum", "mean", "var", "std", "norm", "logsumexp", "prod", "any", "all", "amax", "amin"]
DIFFERENTIABLE = [name for name in REDUCTIONS if name not in ("any", "all")]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def run(name, values, dtype, **arguments):
    x = Tensor(values).to(dtype).requires_grad_()
    y = getattr(ops, name)(x, **arguments)
    y.backward(y.detach())
    return y, x.grad


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", DIFFERENTIABLE + ["cumsum"])
def test_dtype_is_kept_and_values_are_near_those_of_float64(name, dtype, rng):
    rounded = Tensor(rng.uniform(0.5, 1.5, (3, 4))).to(dtype).double().data
    y, grad = run(name, rounded, dtype, dim=1)
    exact, exact_grad = run(name, rounded, "float64", dim=1)
    assert_close(y, exact.to(dtype))
    assert_close(grad, exact_grad.to(dtype))


@pytest.mark.parametrize("name, expected", [("sum", 4096.0), ("mean", 1.0), ("norm", 64.0), ("var", 0.0)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_accumulated_in_float32(name, expected, dtype):
    """Sums of ones in the dtype itself would stop at 2048, or at 256."""
    y = getattr(ops, name)(Tensor(np.ones((2, 4096))).to(dtype), dim=1)
    assert_close(y, Tensor(np.full(2, expected)).to(dtype), tolerance=0.0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32"])
@pytest.mark.parametrize("name", ["sum", "prod", "cumsum"])
def test_integers_give_int64(name, dtype):
    y = getattr(ops, name)(Tensor(np.ones(300, dtype)), 0)
    assert y.dtype == np.int64
    assert (y.tolist()[-1] if name == "cumsum" else y.item()) == (1 if name == "prod" else 300)


def test_dtype_is_converted_to_first():
    x = Tensor(np.array([1, 2]))
    assert_close(x.mean(dtype="float32"), np.float32(1.5))
    assert_close(x.sum(dtype="float64"), np.float64(3.0))


def test_logsumexp_takes_integers_as_float32():
    assert_close(ops.logsumexp(Tensor(np.array([1, 2])), 0), np.float32(2.3132617))


@pytest.mark.parametrize("name", [name for name in REDUCTIONS if name != "prod"])
def test_axes_that_are_not_there(name):
    x = Tensor(np.ones((2, 3)))
    with pytest.raises(ShapeError, match=rf"{name}: expected an axis in \[-2, 2\), got 2"):
        getattr(ops, name)(x, dim=2)
    with pytest.raises(ShapeError, match=rf"{name}: expected different axes, got \(1, -1\)"):
        getattr(ops, name)(x, dim=(1, -1))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_keepdim_without_dim(name):
    if name != "logsumexp":
        assert getattr(ops, name)(Tensor(np.ones((2, 3))), keepdim=True).shape == (1, 1)


@pytest.mark.parametrize("layout", ["rows", "transposed", "gaps"])
@pytest.mark.parametrize("dim", [None, 0, 1, 2, (0, 1), (1, 2), (0, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_sum_and_max_of_any_layout(layout, dim, dtype, rng):
    values = (10 * rng.standard_normal((4, 6, 5))).astype(dtype)
    x = {"rows": values, "transposed": values.transpose(2, 0, 1), "gaps": values[:, ::2]}[layout]
    assert_close(ops.sum(Tensor(x), dim), x.sum(axis=dim, dtype=np.int64 if dtype == "int32" else dtype))
    assert_close(ops.amax(Tensor(x), dim), x.max(axis=dim))


# ------------------------------------------------------------------------------------------------------ var, std


@pytest.mark.parametrize("name", ["var", "std"])
def test_unbiased_is_a_correction_of_one(name, rng):
    x = Tensor(rng.standard_normal((3, 4)))
    reduce = getattr(ops, name)
    assert_close(reduce(x, 1), reduce(x, 1, True))
    assert_close(reduce(x, 1, False), reduce(x, 1, correction=0))
    assert_close(reduce(x, 1, correction=0), getattr(np, name)(x.data, axis=1))


@pytest.mark.parametrize("name", ["var", "std"])
def test_too_few_elements_give_nan(name):
    assert math.isnan(getattr(ops, name)(Tensor(np.ones(1))).item())
    assert math.isnan(getattr(ops, name)(Tensor(np.ones(0))).item())


def test_gradient_of_std_is_zero_where_all_are_equal():
    _, grad = run("std", np.ones((2, 3)), "float64", dim=1)
    assert_close(grad, np.zeros((2, 3)))


# --------------------------------------------------------------------------------------------------------- norm


@pytest.mark.parametrize("p", [2, 1, 3, 1.5, 0.5, 0, math.inf, -math.inf, "fro"])
def test_gradient_of_a_norm_is_zero_at_zero(p):
    x = Tensor(np.zeros((2, 3)), requires_grad=True)
    y = x.norm(p)
    y.backward()
    assert y.item() == 0.0
    assert_close(x.grad, np.zeros((2, 3)))


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_gradient_of_a_norm_of_negative_power_is_zero_beside_a_zero():
    x = Tensor(np.array([0.0, 1.0]), requires_grad=True)
    y = x.norm(-1)
    y.backward()
    assert y.item() == 0.0 and x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("p", ["nuc", None, math.nan])
def test_unknown_norm(p):
    with pytest.raises(ArgumentError, match=f"norm: expected p other than 'fro' to be a number, got {p!r}"):
        ops.norm(Tensor(np.ones(3)), p)


# ---------------------------------------------------------------------------------------------------- logsumexp


@pytest.mark.parametrize("dtype", FLOATS)
def test_logsumexp_of_infinite_rows(dtype):
    rows = np.array([[-math.inf, -math.inf], [-math.inf, 1.0], [math.inf, 1.0], [1000.0, 1000.0]])
    x = Tensor(rows).to(dtype).requires_grad_()
    y = ops.logsumexp(x, 1)
    assert_close(y, Tensor(np.array([-math.inf, 1.0, math.inf, 1000.0 + math.log(2)])).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradient_of_logsumexp_is_zero_at_minus_infinity(dtype):
    x = Tensor(np.array([[-math.inf, -math.inf], [-math.inf, 1.0]])).to(dtype).requires_grad_()
    x.logsumexp(1).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 1.0]]


# --------------------------------------------------------------------------------------------------------- prod


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradient_of_a_product_with_zeros(zeros):
    values = np.array([2.0, 3.0, 4.0])
    values[:zeros] = 0.0
    x = Tensor(values, requires_grad=True)
    ops.prod(x).backward()
    assert x.grad.tolist() == {0: [12.0, 8.0, 6.0], 1: [12.0, 0.0, 0.0], 2: [0.0, 0.0, 0.0]}[zeros]
