"""What normalization refuses, running statistics, and precision."""

import numpy as np
import pytest

from minigrad import Tensor, no_grad, ops
from minigrad.errors import ArgumentError, AutogradError, DtypeError, ShapeError

X = Tensor(np.random.default_rng(0).standard_normal((3, 4, 2, 2)))


def ones(*shape, dtype=np.float64):
    return Tensor(np.ones(shape, dtype))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: ops.batch_norm(X, None, None), ArgumentError, "running_mean and running_var outside training"),
        (lambda: ops.batch_norm(X, ones(3), ones(4)), ShapeError, r"running_mean of shape \(4,\), got \(3,\)"),
        (lambda: ops.batch_norm(X, ones(4), ones(4), ones(5)), ShapeError, r"weight of shape \(4,\), got \(5,\)"),
        (lambda: ops.batch_norm(X, ones(4), ones(4), momentum=2.0), ArgumentError, r"a number in \[0, 1\], got 2.0"),
        (lambda: ops.batch_norm(X, ones(4), ones(4), eps=-1.0), ArgumentError, "a number >= 0, got -1.0"),
        (lambda: ops.batch_norm(X, ones(4), ones(4), eps=float("nan")), ArgumentError, "a number >= 0, got nan"),
        (lambda: ops.batch_norm(ones(4), None, None, training=True), ShapeError, r"2 axes, got \(4,\)"),
        (lambda: ops.batch_norm(ones(1, 4), None, None, training=True), ShapeError, r"several values.*\(1, 4\)"),
        (lambda: ops.batch_norm(X, ones(4), ones(4), ones(4, dtype=np.float32)), DtypeError, "float64 and float32"),
        (lambda: ops.batch_norm(ones(2, 3, dtype=int), ones(3), ones(3)), DtypeError, "float tensor, got int64"),
        (lambda: ops.group_norm(X, 3), ArgumentError, "divide the 4 channels, got 3"),
        (lambda: ops.group_norm(X, 0), ArgumentError, "num_groups to be an integer >= 1, got 0"),
        (lambda: ops.group_norm(X, 2, ones(2)), ShapeError, r"weight of shape \(4,\), got \(2,\)"),
        (lambda: ops.layer_norm(X, (4, 2)), ShapeError, r"x of shape \(..., 4, 2\), got \(3, 4, 2, 2\)"),
        (lambda: ops.layer_norm(X, ()), ShapeError, r"got \(3, 4, 2, 2\)"),
        (lambda: ops.layer_norm(X, 2, ones(2), ones(3)), ShapeError, r"bias of shape \(2,\), got \(3,\)"),
        (lambda: ops.layer_norm(X.numpy(), 2), DtypeError, "tensors, got ndarray"),
    ],
)
def test_refuses(call, error, message):
    with pytest.raises(error, match=f"^(batch|group|layer)_norm: expected .*{message}"):
        call()


def test_running_statistics_move_in_place():
    mean, variance = ones(4), ones(4)
    memory = mean.data
    ops.batch_norm(X, mean, variance, training=True, momentum=0.25)
    values = X.numpy()
    assert mean.data is memory
    np.testing.assert_allclose(mean.numpy(), 0.75 + 0.25 * values.mean((0, 2, 3)))
    np.testing.assert_allclose(variance.numpy(), 0.75 + 0.25 * values.var((0, 2, 3), ddof=1))


def test_an_empty_batch_moves_nothing():
    mean, variance, weight = ones(4), ones(4), Tensor(np.ones(4), True)
    ops.batch_norm(Tensor(np.zeros((0, 4, 2, 2))), mean, variance, weight, training=True).sum().backward()
    assert mean.tolist() == variance.tolist() == [1.0] * 4
    assert weight.grad.tolist() == [0.0] * 4


def test_evaluation_leaves_running_statistics_and_does_not_depend_on_them_later():
    mean, variance, x = ones(4), ones(4), Tensor(X.numpy().copy(), True)
    out = ops.batch_norm(x, mean, variance)
    mean.zero_()
    out.sum().backward()
    assert variance.tolist() == [1.0] * 4
    np.testing.assert_allclose(x.grad.numpy(), 1.0 / np.sqrt(1.0 + 1e-5))


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_changed_input_is_noticed(norm):
    x = Tensor(X.numpy().copy(), True)
    hidden = x * 1.0
    calls = {
        "batch": lambda: ops.batch_norm(hidden, None, None, training=True),
        "group": lambda: ops.group_norm(hidden, 2),
        "layer": lambda: ops.layer_norm(hidden, 2),
    }
    out = calls[norm]().sum()
    with no_grad():
        hidden.zero_()
    with pytest.raises(AutogradError, match="in place"):
        out.backward()


@pytest.mark.parametrize("shape", [(64, 8, 16, 16), (33, 8, 7, 7)])
def test_a_large_mean_costs_no_precision(shape):
    """The spread is 1 and float32 resolves 1000 to 6e-5; mean(x²) - mean(x)² would be off by 0.1."""
    x = (np.random.default_rng(0).standard_normal(shape) + 1000.0).astype(np.float32)
    wide = Tensor(x.astype(np.float64))
    for norm in (
        lambda t: ops.batch_norm(t, None, None, training=True),
        lambda t: ops.group_norm(t, 2),
        lambda t: ops.layer_norm(t, t.shape[1:]),
    ):
        exact = norm(wide).numpy()
        error = np.abs(norm(Tensor(x)).numpy() - exact).max()
        assert error < 4e-4 * max(1.0, np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_halves_are_float32(dtype):
    """A sum of 70,000 is more than float16 holds, and bfloat16 counts ones only to 256."""
    values = np.random.default_rng(0).integers(0, 3, (700, 2, 10, 10)).astype(np.float32)
    x = Tensor(values).to(dtype)
    out = ops.batch_norm(x, None, None, training=True)
    assert out.dtype == x.dtype
    exact = ops.batch_norm(Tensor(values), None, None, training=True)
    np.testing.assert_allclose(out.to("float32").numpy(), exact.numpy(), atol=1e-2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rms_norm_of_half_precision_adds_the_eps_of_float32(dtype):
    """That of float16, 1e-3, would leave nothing of 1e-4."""
    found = ops.rms_norm(ones(2, 4).to(dtype) * 1e-4, 4).float().numpy()
    assert np.allclose(found, 1e-4 / np.sqrt(1e-8 + np.finfo(np.float32).eps), rtol=1e-2)
