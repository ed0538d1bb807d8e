"""Activations, alone and behind a bias, and sums of columns, against their formulas in float64."""

import math

import numpy as np
import pytest

from minigrad.backend.device import to_host
from minigrad.backend.fused.activation import ACTIVATIONS, activate, activation_gradient
from minigrad.backend.fused.bias import activation_and_bias_gradient, add_bias, column_sum, mean_of_groups
from tests.kernel_suite.values import DTYPES, ULP, draw, equal

KINDS = list(ACTIVATIONS)
LENGTHS = (1, 33, 300)
SHAPES = [(1, 1), (5, 33), (64, 16), (70, 7)]
ROUNDING = {"f64": 1e-14, "f32": 2e-6, "f16": 2 * ULP["f16"], "bf16": 2 * ULP["bf16"]}


def formulas(kind, x):
    """An activation of float64 numbers, and its slope."""
    logistic = 1 / (1 + np.exp(-x))
    if kind == "relu":
        return np.maximum(x, 0), (x > 0) * 1.0
    if kind == "tanh":
        return np.tanh(x), 1 - np.tanh(x) ** 2
    if kind == "sigmoid":
        return logistic, logistic * (1 - logistic)
    if kind == "silu":
        return x * logistic, logistic * (1 + x * (1 - logistic))
    if kind == "gelu":
        gate = np.vectorize(lambda v: 0.5 * (1 + math.erf(v / math.sqrt(2))), otypes=[float])(x)
        return x * gate, gate + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    if kind == "gelu_tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        gate = np.tanh(inner)
        return x * (1 + gate) / 2, (1 + gate) / 2 + x * (1 - gate**2) * slope / 2
    return x, np.ones_like(x)


def assert_near(got, want, bound, what):
    got = to_host(got).astype(np.float64)
    assert got.shape == want.shape
    error = np.abs(got - want).max(initial=0.0)
    assert error <= bound * max(1.0, np.abs(want).max(initial=0.0)), f"{what}: {error}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_activation_and_its_gradient(on, dtype, kind):
    for size in LENGTHS:
        x, grad = draw(size, size, dtype, spread=2), draw(size + 1, size, dtype)
        want, slope = formulas(kind, x.astype(np.float64))
        y = activate(kind, on(x))
        assert_near(y, want, ROUNDING[dtype], kind)
        kept = y if ACTIVATIONS[kind].keeps_output else on(x)
        bound = ROUNDING[dtype] * (4 if ACTIVATIONS[kind].keeps_output else 1)  # of a y that was rounded
        assert_near(activation_gradient(kind, on(grad), kept), grad.astype(np.float64) * slope, bound, f"d{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_is_not_aligned(on, kind):
    x = draw(0, 71)
    want = formulas(kind, x.astype(np.float64))[0]
    assert_near(activate(kind, on(x)[1:]), want[1:], ROUNDING["f32"], kind)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_and_what_is_far_from_0_is_finite(on, kind):
    x = np.array([np.nan, 1e4, -1e4, 0.0], np.float32)
    y = to_host(activate(kind, on(x)))
    assert np.isnan(y[0]) and np.isfinite(y[1:]).all()
    grad = np.array([1, 2, 3, 4], np.float32)
    kept = y if ACTIVATIONS[kind].keeps_output else x
    dx = to_host(activation_gradient(kind, on(grad), on(kept)))
    assert np.isfinite(dx[1:]).all() and (dx[0] == 1 if kind in ("relu", "identity") else np.isnan(dx[0]))


def test_relu_gives_nothing_of_an_infinite_gradient_where_it_is_0(on):
    grad, y = np.full(3, np.inf, np.float32), np.array([0.0, -0.0, 2.0], np.float32)
    assert to_host(activation_gradient("relu", on(grad), on(y))).tolist() == [0.0, 0.0, np.inf]


@pytest.mark.parametrize("kind", ["relu", "gelu"])
def test_results_lie_as_what_they_are_of(on, kind):
    x = on(draw(0, (2, 3, 4, 5))).transpose(0, 3, 1, 2)
    y = activate(kind, x)
    assert y.strides == x.strides
    assert_near(y, formulas(kind, to_host(x).astype(np.float64))[0], ROUNDING["f32"], kind)
    grad = draw(1, x.shape)
    dx = activation_gradient(kind, on(grad), y)
    assert dx.strides == x.strides
    same = activation_gradient(kind, on(grad), on(np.ascontiguousarray(to_host(y))))
    assert np.array_equal(to_host(dx), to_host(same))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_and_an_activation(on, dtype, kind):
    for shape in SHAPES:
        h, bias, grad = draw(1, shape, dtype), draw(2, shape[1], dtype), draw(3, shape, dtype)
        total = (h.astype(np.promote_types(h.dtype, np.float32)) + bias).astype(h.dtype)
        y, kept = add_bias(on(h), on(bias), kind)
        assert equal(y, to_host(activate(kind, on(total))))
        assert equal(kept, to_host(y) if ACTIVATIONS[kind].keeps_output else total)
        dx, dbias = activation_and_bias_gradient(kind, on(grad), kept)
        want = to_host(activation_gradient(kind, on(grad), kept))
        assert equal(dx, want)
        assert_near(dbias, want.astype(np.float64).sum(axis=0), ROUNDING[dtype], "dbias")


def test_a_bias_whose_memory_is_not_aligned(on):
    h, bias = draw(1, (5, 8)), draw(2, 9)
    assert equal(add_bias(on(h), on(bias)[1:])[0], h + bias[1:])


def test_what_no_backward_needs_is_not_kept(on):
    h = on(draw(0, (4, 8)))
    y, kept = add_bias(h, on(draw(1, 8)), "gelu", keep=False)
    assert y is kept is h


@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_are_summed(on, dtype):
    for shape in [*SHAPES, (0, 5), (5, 0), (2048, 1), (2049, 9)]:
        x = draw(shape[0], shape, dtype)
        got = column_sum(on(x))
        assert to_host(got).dtype == x.dtype
        assert_near(got, x.astype(np.float64).sum(axis=0), ROUNDING[dtype], f"sum of {shape}")


def test_sums_go_where_they_are_to_go(on):
    x, out = draw(0, (40, 6)), on(np.zeros(8, np.float32))
    column_sum(on(x), out[1:7])
    assert_near(out[1:7], x.sum(axis=0, dtype=np.float64), 1e-6, "sums")
    assert to_host(out)[[0, 7]].tolist() == [0, 0]


def test_many_rows_behind_an_activation(on):
    h, bias, grad = draw(0, (2100, 10)), draw(1, 10), draw(2, (2100, 10))
    _, kept = add_bias(on(h), on(bias), "relu")
    dx, dbias = activation_and_bias_gradient("relu", on(grad), kept)
    want = grad * (h + bias > 0)
    assert equal(dx, want)
    assert_near(dbias, want.sum(axis=0, dtype=np.float64), 2e-6, "dbias")


@pytest.mark.parametrize("dtype", DTYPES)
def test_means_of_groups_of_rows(on, dtype):
    for groups, height, length in [(1, 1, 1), (3, 5, 7), (2, 64, 33)]:
        x = draw(height, (groups * height, length), dtype)
        want = x.astype(np.float64).reshape(groups, height, length).mean(axis=1)
        assert_near(mean_of_groups(on(x), height), want, ROUNDING[dtype], "means")
