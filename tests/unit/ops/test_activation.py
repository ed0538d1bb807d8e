"""Activations: dtypes, stability, errors."""

import math

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.errors import DtypeError
from minigrad.testing import assert_close

FLOATS = ["float16", "bfloat16", "float32", "float64"]
TAKE_INTEGERS = {"relu", "relu6", "hardtanh", "softsign", "tanhshrink"}
ACTIVATIONS = {
    "relu": ops.relu,
    "leaky_relu": ops.leaky_relu,
    "elu": lambda x: ops.elu(x, 0.5),
    "gelu": ops.gelu,
    "gelu_tanh": lambda x: ops.gelu(x, approximate="tanh"),
    "silu": ops.silu,
    "softplus": lambda x: ops.softplus(x, beta=2.0),
    "celu": lambda x: ops.celu(x, 0.5),
    "selu": ops.selu,
    "mish": ops.mish,
    "logsigmoid": ops.logsigmoid,
    "softsign": ops.softsign,
    "tanhshrink": ops.tanhshrink,
    "hardtanh": lambda x: ops.hardtanh(x, -0.5, 0.7),
    "relu6": ops.relu6,
    "hardsigmoid": ops.hardsigmoid,
    "hardswish": ops.hardswish,
    "softshrink": ops.softshrink,
    "softmax": lambda x: ops.softmax(x, -1),
    "log_softmax": lambda x: ops.log_softmax(x, 0),
}


def run(name, values, dtype):
    x = Tensor(values).to(dtype).requires_grad_()
    y = ACTIVATIONS[name](x)
    y.backward(y.detach())
    return y, x.grad


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(), (3, 4), (0, 3)])
def test_dtype_is_kept_and_values_are_near_those_of_float64(name, dtype, shape, rng):
    values = rng.standard_normal(shape)
    rounded = Tensor(values).to(dtype).double().data
    y, grad = run(name, values, dtype)
    exact, exact_grad = run(name, rounded, "float64")
    assert_close(y, exact.to(dtype))
    assert_close(grad, exact_grad.to(dtype), tolerance=0.1 if dtype == "bfloat16" else None)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if "softmax" not in name])
@pytest.mark.parametrize("layout", ["rows", "transposed", "gaps"])
def test_large_arrays_are_computed_in_blocks_with_the_same_result(name, dtype, layout, rng):
    values = rng.standard_normal((300, 200)).astype(dtype)
    x = {"rows": values, "transposed": values.T, "gaps": values[:, ::2]}[layout]
    y, grad = run(name, x, dtype)
    part, part_grad = run(name, x[:4].copy(), dtype)
    assert_close(y[:4], part)
    assert_close(grad[:4], part_grad)
    assert y.shape == grad.shape == x.shape


@pytest.mark.parametrize("dtype", FLOATS)
def test_activations_are_quiet_at_large_magnitudes(dtype):
    for name in ACTIVATIONS:
        y, grad = run(name, np.array([-1000.0, 0.0, 1000.0]), dtype)
        assert np.isfinite(y.double().data).all(), name
        assert np.isfinite(grad.double().data).all(), name


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_ignores_a_common_shift(name, rng):
    values = rng.standard_normal((3, 4))
    near, far = (run(name, values + shift, "float64")[0] for shift in (0.0, 1e4))
    assert_close(far, near, tolerance=1e-11)


def test_softmax_of_masked_places_is_zero():
    x = Tensor(np.array([[0.0, -math.inf], [-math.inf, 5.0]]), requires_grad=True)
    y = x.softmax(1)
    y.backward(Tensor(np.array([[1.0, 2.0], [3.0, 4.0]])))
    assert y.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_relu_of_integers_nan_and_zero():
    assert ops.relu(Tensor(np.array([-2, 3]))).tolist() == [0, 3]
    assert math.isnan(ops.relu(Tensor(np.array(math.nan))).item())
    x = Tensor(np.zeros(2), requires_grad=True)
    x.relu().sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


def test_leaky_relu_of_an_infinite_gradient():
    x = Tensor(np.array([-1.0, 4.0]), requires_grad=True)
    ops.leaky_relu(x, 0.5).backward(Tensor(np.array([1.0, math.inf])))
    assert x.grad.tolist() == [0.5, math.inf]


@pytest.mark.parametrize("alpha", [1.0, 0.5, -1.0])
def test_gradient_of_elu_at_infinity_is_one(alpha):
    x = Tensor(np.array([math.inf]), requires_grad=True)
    ops.elu(x, alpha).backward(Tensor(np.array([1.0])))
    assert x.grad.tolist() == [1.0]


@pytest.mark.parametrize("name", sorted(ACTIVATIONS.keys() - TAKE_INTEGERS))
def test_integers_are_refused(name):
    with pytest.raises(DtypeError, match=rf"{name.removesuffix('_tanh')}: expected a float tensor, got int64 \(2,\)"):
        ACTIVATIONS[name](Tensor(np.array([1, 2])))
