"""Elementwise functions: dtypes, values where they are hard, errors."""

import math

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.testing import assert_close

TRANSCENDENTAL = ["cos", "erf", "exp", "expm1", "log", "log1p", "reciprocal", "rsqrt", "sigmoid", "sin", "sqrt", "tanh"]
OTHERS = ["abs", "ceil", "floor", "round", "sign", "square"]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def tensor(values, dtype="float32", requires_grad=False):
    array = np.asarray(values, np.float64)
    x = Tensor(array).to(dtype)
    return x.requires_grad_() if requires_grad else x


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", TRANSCENDENTAL + OTHERS)
@pytest.mark.parametrize("shape", [(), (3, 4)])
def test_float_dtype_is_kept_and_the_value_is_near_that_of_float64(name, dtype, shape, rng):
    values = rng.uniform(0.5, 2.0, shape)
    x = tensor(values, dtype, requires_grad=True)
    y = getattr(ops, name)(x)
    y.backward(Tensor(np.ones(shape)).to(dtype))
    exact = getattr(ops, name)(x.detach().double())
    assert y.dtype == x.dtype
    assert x.grad.dtype == x.dtype
    assert_close(y, exact.to(dtype))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "int64"])
@pytest.mark.parametrize("name", TRANSCENDENTAL)
def test_transcendental_functions_take_integers_as_float32(name, dtype):
    x = Tensor(np.ones(3, dtype))
    assert_close(getattr(ops, name)(x), getattr(ops, name)(x.float()))


@pytest.mark.parametrize("name", OTHERS)
def test_the_others_keep_integers(name):
    x = Tensor(np.array([-2, 0, 3], np.int32))
    y = getattr(ops, name)(x)
    assert y.dtype == np.int32
    assert y.data is not x.data
    expected = {"abs": [2, 0, 3], "sign": [-1, 0, 1], "square": [4, 0, 9]}.get(name, [-2, 0, 3])
    assert y.tolist() == expected


@pytest.mark.parametrize("name", TRANSCENDENTAL + OTHERS + ["clamp", "relu", "gelu", "sum", "max", "isnan"])
def test_what_is_no_tensor_is_refused(name):
    arguments = ("one", 0, 1) if name == "clamp" else ("one",)
    with pytest.raises(DtypeError, match=rf"{name}: expected a tensor, an array or a number, got str"):
        getattr(ops, name)(*arguments)


def test_numbers_and_arrays_are_taken():
    assert ops.exp(0).item() == 1.0
    assert ops.exp(0).dtype == np.float32
    assert ops.sqrt(np.array([4.0])).tolist() == [2.0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_sigmoid_is_quiet_and_right_at_any_magnitude(dtype):
    x = tensor([-math.inf, -1000.0, 0.0, 1000.0, math.inf, math.nan], dtype, requires_grad=True)
    y = ops.sigmoid(x)
    y.backward(Tensor(np.ones(6)).to(dtype))
    assert_close(y, tensor([0.0, 0.0, 0.5, 1.0, 1.0, math.nan], dtype), tolerance=1e-30)
    assert_close(x.grad, tensor([0.0, 0.0, 0.25, 0.0, 0.0, math.nan], dtype), tolerance=1e-30)


def test_sigmoid_of_negative_numbers_is_relatively_accurate():
    x = np.linspace(-80.0, -1.0, 50)
    assert_close(ops.sigmoid(x).data / (np.exp(x) / (1 + np.exp(x))), np.ones(50), tolerance=1e-14)


@pytest.mark.parametrize("name", ["abs", "sign"])
def test_gradient_at_zero_is_zero(name):
    x = tensor([0.0, -0.0], requires_grad=True)
    getattr(ops, name)(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["sign", "floor", "ceil", "round"])
def test_steps_have_a_gradient_of_zero(name):
    x = tensor([0.3, 1.7], requires_grad=True)
    getattr(ops, name)(x).sum().backward()
    assert x.grad.tolist() == [0.0, 0.0]


# ------------------------------------------------------------------------------------------------------- clamp


def test_clamp_passes_the_gradient_on_the_bounds():
    x = tensor([-1.0, 0.0, 0.5, 1.0, 2.0], requires_grad=True)
    y = x.clamp(0.0, 1.0)
    y.sum().backward()
    assert y.tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


@pytest.mark.parametrize("dtype", FLOATS)
def test_clamp_keeps_float_dtypes(dtype):
    assert_close(tensor([-1.0, 2.0], dtype).clamp(-0.5, np.float64(0.5)), tensor([-0.5, 0.5], dtype))


def test_clamp_of_integers():
    x = Tensor(np.array([1, 5]))
    assert_close(x.clamp(max=3), np.array([1, 3]))
    assert_close(x.clamp(2, 3.5), np.array([2.0, 3.5], np.float32))


def test_clamp_keeps_nan():
    assert math.isnan(tensor(math.nan).clamp(0, 1).item())


def test_clamp_needs_a_bound():
    with pytest.raises(ArgumentError, match="clamp: expected min or max, got neither"):
        ops.clamp(tensor([1.0]))


def test_clamp_refuses_what_is_no_bound():
    with pytest.raises(DtypeError, match="clamp: expected a tensor, an array or a number, got str"):
        tensor([1.0]).clamp("low")
    with pytest.raises(ShapeError, match="clamp: expected shapes that broadcast"):
        tensor([1.0, 2.0]).clamp(tensor([0.0, 0.0, 0.0]))
