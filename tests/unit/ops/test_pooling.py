"""What pooling refuses, ties and infinities."""

import numpy as np
import pytest

from minigrad import Tensor, ops
from minigrad.errors import ArgumentError, DtypeError, ShapeError

X = Tensor(np.arange(32, dtype=np.float64).reshape(1, 2, 4, 4))


@pytest.mark.parametrize("pool", [ops.max_pool2d, ops.avg_pool2d])
@pytest.mark.parametrize(
    "arguments, options, error, message",
    [
        ((5,), {}, ShapeError, r"window \(5, 5\).*\(4, 4\)"),
        ((0,), {}, ArgumentError, "kernel_size.*got 0"),
        ((2, 0), {}, ArgumentError, "stride.*got 0"),
        ((2,), {"padding": 2}, ArgumentError, r"half of kernel_size \(2, 2\), got 2"),
        (((2, 2, 2),), {}, ArgumentError, r"kernel_size.*\(2, 2, 2\)"),
    ],
)
def test_refuses(pool, arguments, options, error, message):
    with pytest.raises(error, match=f"{pool.__name__}: expected .*{message}"):
        pool(X, *arguments, **options)


@pytest.mark.parametrize("pool", [ops.max_pool2d, ops.avg_pool2d, ops.adaptive_avg_pool2d])
def test_refuses_what_is_no_image(pool):
    with pytest.raises(ShapeError, match=rf"{pool.__name__}: expected x of shape \(N, C, H, W\).*\(4, 4\)"):
        pool(Tensor(np.zeros((4, 4))), 2)
    with pytest.raises(DtypeError, match=f"{pool.__name__}: expected a float tensor, got int64"):
        pool(Tensor(np.zeros((1, 1, 4, 4), np.int64)), 2)
    with pytest.raises(DtypeError, match=f"{pool.__name__}: expected a tensor, got ndarray"):
        pool(np.zeros((1, 1, 4, 4)), 2)


def test_adaptive_refuses():
    with pytest.raises(ArgumentError, match="output_size.*got 0"):
        ops.adaptive_avg_pool2d(X, 0)


def test_the_first_of_equal_elements_gets_the_gradient():
    x = Tensor(np.zeros((1, 1, 4, 4)), True)
    ops.max_pool2d(x, 2).sum().backward()
    expected = np.zeros((4, 4))
    expected[::2, ::2] = 1.0
    np.testing.assert_array_equal(x.grad.numpy()[0, 0], expected)


@pytest.mark.parametrize("kernel", [(2, 2), (2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize("nan", [False, True])
def test_windows_side_by_side_give_each_gradient_to_one_element(kernel, nan):
    """Element by element: the first that is largest, or the last NaN; gradients that are not finite stay in place."""
    rng = np.random.default_rng(0)
    x = rng.integers(-1, 2, (2, 3, 6, 6)).astype(np.float32)
    if nan:
        x[rng.random(x.shape) < 0.2] = np.nan
    tensor = Tensor(x, True)
    out = ops.max_pool2d(tensor, kernel)
    grad = rng.standard_normal(out.shape, np.float32)
    grad[0, 0, 0, 0], grad[1, 2, 1, 1] = np.inf, np.nan
    out.backward(Tensor(grad))
    expected = np.zeros_like(x)
    high, wide = kernel
    for n, c, i, j in np.ndindex(out.shape):
        window = x[n, c, i * high : (i + 1) * high, j * wide : (j + 1) * wide].reshape(-1)
        missing = np.flatnonzero(np.isnan(window))
        place = missing[-1] if len(missing) else window.argmax()
        np.testing.assert_equal(out.data[n, c, i, j], window[place])
        expected[n, c, i * high + place // wide, j * wide + place % wide] = grad[n, c, i, j]
    np.testing.assert_array_equal(tensor.grad.numpy(), expected)


def test_overlapping_windows_add_up_at_equal_elements():
    x = Tensor(np.zeros((1, 1, 3, 3)), True)
    ops.max_pool2d(x, 2, stride=1).sum().backward()
    np.testing.assert_array_equal(x.grad.numpy()[0, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])


def test_padding_never_wins():
    x = Tensor(np.full((1, 1, 2, 2), -5.0))
    np.testing.assert_array_equal(ops.max_pool2d(x, 3, padding=1).numpy(), [[[[-5.0]]]])


def test_nan_and_infinity_come_through():
    x = np.zeros((1, 1, 2, 4))
    x[0, 0, 1, 0], x[0, 0, 0, 3] = np.nan, np.inf
    np.testing.assert_array_equal(ops.max_pool2d(Tensor(x), 2).numpy(), [[[[np.nan, np.inf]]]])


def test_halves_are_summed_wide():
    """2048 ones are more than float16 can count."""
    x = Tensor(np.ones((1, 1, 64, 64), np.float16))
    assert ops.adaptive_avg_pool2d(x, 1).item() == 1.0
    assert ops.avg_pool2d(x, 64).item() == 1.0
