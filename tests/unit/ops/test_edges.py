"""Numbers at the edges: NaN, infinity, zeros of both signs and the largest numbers, as PyTorch 2.13 gives them."""

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, ops
from minigrad.errors import ArgumentError
from minigrad.nn import functional as F

NAN, INF = np.nan, np.inf
BIG = {"float32": 3e38, "float64": 1e308}
FUNCTIONS = {
    "gelu_tanh": lambda x: ops.gelu(x, approximate="tanh"),
    "clamp": lambda x: x.clamp(-1, 1),
    "prelu": lambda x: x.prelu(minigrad.tensor(0.25, dtype=x.dtype)),
}
L, A = 1.0507009873554805, 1.6732632423543772  # of selu


def edges(dtype):
    return np.array([NAN, INF, -INF, BIG[dtype], -BIG[dtype], 0.0, -0.0], dtype)


def values(b):
    """Values and slopes at NaN, inf, -inf, b, -b, 0 and -0."""
    return {
        "relu": ([NAN, INF, 0, b, 0, 0, 0], [1, 1, 0, 1, 0, 0, 0]),
        "leaky_relu": ([NAN, INF, -INF, b, -b / 100, 0, -0.0], [0.01, 1, 0.01, 1, 0.01, 0.01, 0.01]),
        "elu": ([NAN, INF, -1, b, -1, 0, 0], [1, 1, 0, 1, 0, 1, 1]),
        "gelu": ([NAN, INF, NAN, b, -0.0, 0, -0.0], [NAN, NAN, NAN, 1, 0, 0.5, 0.5]),
        "gelu_tanh": ([NAN, INF, NAN, b, -0.0, 0, -0.0], [NAN, NAN, NAN, NAN, NAN, 0.5, 0.5]),
        "silu": ([NAN, INF, NAN, b, -0.0, 0, -0.0], [NAN, NAN, NAN, 1, 0, 0.5, 0.5]),
        "softplus": ([NAN, INF, 0, b, 0, np.log(2), np.log(2)], [NAN, 1, 0, 1, 0, 0.5, 0.5]),
        "sigmoid": ([NAN, 1, 0, 1, 0, 0.5, 0.5], [NAN, 0, 0, 0, 0, 0.25, 0.25]),
        "tanh": ([NAN, 1, -1, 1, -1, 0, -0.0], [NAN, 0, 0, 0, 0, 1, 1]),
        "abs": ([NAN, INF, INF, b, b, 0, 0], [0, 1, -1, 1, -1, 0, 0]),
        "sign": ([0, 1, -1, 1, -1, 0, 0], [0] * 7),
        "clamp": ([NAN, 1, -1, 1, -1, 0, -0.0], [0, 0, 0, 0, 0, 1, 1]),
        "hardtanh": ([NAN, 1, -1, 1, -1, 0, -0.0], [1, 0, 0, 0, 0, 1, 1]),
        "relu6": ([NAN, 6, 0, 6, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0]),
        "hardsigmoid": ([NAN, 1, 0, 1, 0, 0.5, 0.5], [0, 0, 0, 0, 0, 1 / 6, 1 / 6]),
        "hardswish": ([NAN, INF, NAN, b, -0.0, 0, -0.0], [NAN, 1, 0, 1, 0, 0.5, 0.5]),
        "softshrink": ([NAN, INF, -INF, b, -b, 0, 0], [1, 1, 1, 1, 1, 0, 0]),
        "prelu": ([NAN, INF, -INF, b, -b / 4, 0, 0], [0.25, 1, 0.25, 1, 0.25, 0.25, 0.25]),
        "celu": ([NAN, INF, -1, b, -1, 0, 0], [1, 1, 0, 1, 0, 1, 1]),
        "selu": ([NAN, INF, -L * A, b * L, -L * A, 0, 0], [L, L, 0, L, 0, L * A, L * A]),
        "mish": ([NAN, INF, NAN, b, -0.0, 0, -0.0], [NAN, NAN, NAN, 1, 0, 0.6, 0.6]),
        "logsigmoid": ([NAN, 0, -INF, 0, -b, -np.log(2), -np.log(2)], [NAN, 0, 1, 0, 1, 0.5, 0.5]),
        "softsign": ([NAN, NAN, NAN, 1, -1, 0, -0.0], [NAN, 0, 0, 0, 0, 1, 1]),  # at infinity PyTorch has NaN, not 0
        "tanhshrink": ([NAN, INF, -INF, b, -b, 0, 0], [NAN, 1, 1, 1, 1, 0, 0]),
    }


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # -inf · 0
@pytest.mark.parametrize("dtype", BIG)
@pytest.mark.parametrize("name", values(1.0))
def test_functions_of_one_element(name, dtype):
    x = Tensor(edges(dtype), requires_grad=True)
    y = FUNCTIONS.get(name, getattr(ops, name, None))(x)
    y.backward(minigrad.ones_like(y))
    wanted, slopes = values(BIG[dtype])[name]
    np.testing.assert_allclose(y.data, np.array(wanted, dtype), rtol=1e-6)
    np.testing.assert_allclose(x.grad.data, np.array(slopes, dtype), rtol=1e-6)
    assert np.array_equal(np.signbit(y.data[-2:]), np.signbit(wanted[-2:])), "the sign of 0"


@pytest.mark.parametrize(
    "name", ["silu", "gelu", "gelu_tanh", "sigmoid", "elu", "softplus", "mish", "hardswish", "logsigmoid", "softsign"]
)
def test_finite_numbers_give_no_warning(name):
    x = Tensor(np.array([-3e38, -1e30, -90.0, 90.0, 1e30, 3e38], np.float32), requires_grad=True)
    y = FUNCTIONS.get(name, getattr(ops, name, None))(x)
    y.backward(minigrad.ones_like(y))
    assert np.isfinite(y.data).all()


def test_small_gradients_have_their_digits():
    x = np.array([-60.0, -15.0, -3.0, 15.0, 30.0])
    for function, slope in [
        (lambda x: ops.elu(x, 0.3), np.where(x > 0, 1, 0.3 * np.exp(x))),
        (lambda x: F.binary_cross_entropy_with_logits(x, x * 0, reduction="sum"), 1 / (1 + np.exp(-x))),
        (lambda x: F.binary_cross_entropy_with_logits(x, x * 0 + 1, reduction="sum"), -1 / (1 + np.exp(x))),
    ]:
        inputs = Tensor(x, requires_grad=True)
        function(inputs).sum().backward()
        np.testing.assert_allclose(inputs.grad.data, slope, rtol=1e-9)


def test_softplus_is_straight_from_a_negative_threshold_on():
    x = Tensor(np.array([-2.0, -0.5, 0.5], np.float32), requires_grad=True)
    y = ops.softplus(x, 1, -1)
    y.sum().backward()
    np.testing.assert_allclose(y.data, [np.log1p(np.exp(-2)), -0.5, 0.5], rtol=1e-6)
    np.testing.assert_allclose(x.grad.data, [1 / (1 + np.exp(2)), 1, 1], rtol=1e-6)


@pytest.mark.parametrize("beta", [2.0, -2.0])
def test_softplus_of_the_largest_numbers(beta):
    x = Tensor(np.array([3e38, -3e38], np.float32))
    assert ops.softplus(x, beta).tolist() == ([x[0].item(), 0.0] if beta > 0 else [0.0, x[1].item()])


def test_nan_takes_all_of_both_gradients():
    for pick in (ops.maximum, ops.minimum):
        x, y = (Tensor(np.array(part), requires_grad=True) for part in ([NAN, NAN, 1.0], [1.0, NAN, 1.0]))
        pick(x, y).backward(Tensor(np.full(3, 4.0)))
        assert x.grad.tolist() == y.grad.tolist() == [4.0, 4.0, 2.0]


def test_the_last_nan_of_a_window_gets_its_gradient():
    image = np.array([[[NAN, 1.0, 2.0, 3.0], [4.0, NAN, 6.0, 5.0]]], np.float32)
    for stride, wanted in [(2, [[0, 0, 0, 0], [0, 1, 1, 0]]), (1, [[0, 0, 0, 0], [0, 2, 1, 0]])]:
        x = Tensor(image, requires_grad=True)
        ops.max_pool2d(x, 2, stride).sum().backward()
        assert x.grad.tolist() == [wanted]


def test_a_difference_that_is_nan_has_no_slope():
    x, target = Tensor(np.array([NAN, INF, 1.0]), requires_grad=True), Tensor(np.array([0.0, 2.0, INF]))
    F.l1_loss(x, target, "sum").backward()
    assert x.grad.tolist() == [0.0, 1.0, -1.0]


def test_tiny_divisors():
    x, y = Tensor(np.zeros(1), requires_grad=True), Tensor(np.full(1, 5e-324), requires_grad=True)
    with np.errstate(over="ignore"):
        (x / y).backward(Tensor(np.ones(1)))
    assert x.grad.tolist() == [INF] and y.grad.tolist() == [0.0]


# ----------------------------------------------------------------------------------------------------- integers


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float64"])
def test_a_reduction_has_the_dtype_that_was_asked_for(dtype):
    x = minigrad.tensor([3, -2, 5])
    found = [x.sum(dtype=dtype), x.sum(0, dtype=dtype), x.prod(dtype=dtype), x.cumsum(0, dtype=dtype)]
    assert {y.dtype.name for y in found} == {dtype}
    if dtype.endswith("int8"):
        x = minigrad.tensor([200, 100], dtype="int32")
        assert x.sum(dtype=dtype).item() == 44  # around its range


def test_padding_of_integers_and_bools():
    assert F.pad(minigrad.tensor([1, 2]), (1, 0)).tolist() == [0, 1, 2]
    assert F.pad(minigrad.tensor([1, 2]), (1, 0), value=7.0).tolist() == [7, 1, 2]
    padded = F.pad(minigrad.tensor([True]), (1, 1))
    assert padded.tolist() == [False, True, False] and padded.dtype == np.bool_


def test_arange_counts_as_pytorch_does():
    assert minigrad.arange(3.1, dtype="int64").tolist() == [0, 1, 2]
    assert minigrad.arange(3.1, dtype="int32").tolist() == [0, 1, 2, 3]
    assert minigrad.arange(-0.5, 2, dtype="int64").tolist() == [0, 1]
    assert minigrad.arange(5, 1.5, -1, dtype="int64").tolist() == [5, 4, 3, 2]


def test_bytes_are_a_mask_and_a_list_of_lists_is_a_tuple():
    x = minigrad.arange(12).reshape(3, 4)
    for mask in (minigrad.tensor([1, 0, 2], dtype="uint8"), np.array([1, 0, 2], np.uint8)):
        assert x[mask].tolist() == x[[0, 2]].tolist()
        assert x[:2, minigrad.tensor([0, 1, 0, 0], dtype="uint8")].tolist() == [[1], [5]]
    assert x[[[0, 1], [1, 0]]].tolist() == x[[0, 1], [1, 0]].tolist() == [1, 4]
    assert x[[slice(1), minigrad.tensor(2)]].tolist() == [2] and x[[0]].tolist() == x[range(1)].tolist()
    assert x[[[0, 1]] * 32].shape == (32, 2, 4)
    x[[[0, 1], [1, 0]]] = -1
    x[minigrad.tensor([0, 0, 1], dtype="uint8")] = 0
    assert x.tolist() == [[0, -1, 2, 3], [-1, 5, 6, 7], [0, 0, 0, 0]]


def test_activations_that_take_integers():
    x = minigrad.tensor([-3, 0, 9])
    assert F.relu6(x).tolist() == [0, 0, 6] and F.relu6(x).dtype == F.hardtanh(x).dtype == np.int64
    assert F.hardtanh(x, -2, 2.0).tolist() == [-2, 0, 2] and F.softsign(x).tolist() == [-0.75, 0.0, np.float32(0.9)]


def test_nothing_may_be_divided_by_zero():
    assert (minigrad.zeros(0, dtype="int64") // 0).shape == (0,)
    assert (minigrad.tensor([-7]) % minigrad.tensor([3])).tolist() == [2]


def test_narrow_takes_its_start_from_an_integer_tensor():
    x = minigrad.arange(5)
    assert x.narrow(0, minigrad.tensor(2), 2).tolist() == x.narrow(0, minigrad.tensor(-3), 2).tolist() == [2, 3]


def test_linspace_of_integers_is_exact_at_both_ends_and_reads_tensors():
    assert minigrad.linspace(4.3, -3, 6, dtype="int64").tolist() == [4, 2, 1, 0, -1, -3]
    assert minigrad.linspace(0, 7, 50, dtype="int64").tolist() == [n // 7 for n in range(49)] + [7]
    assert minigrad.linspace(5.5, 1, 1, dtype="int32").tolist() == [5]
    assert minigrad.linspace(minigrad.tensor(0.5), minigrad.tensor(2), 3).tolist() == [0.5, 1.25, 2.0]
    assert minigrad.logspace(0, 1.2, 2, 5.0, dtype="int64").tolist() == [1, 5]


def test_bools_have_a_square_and_a_sign():
    x = minigrad.tensor([True, False])
    assert ops.square(x).dtype == np.int64 and ops.square(x).tolist() == [1, 0]
    assert ops.sign(x).dtype == np.bool_ and ops.sign(x).tolist() == [True, False]


@pytest.mark.parametrize("function", [ops.std, ops.var])
def test_a_bool_in_the_place_of_dim_says_whether_to_correct(function):
    x = minigrad.tensor([[1.0, 2.0], [4.0, 8.0]])
    for value in (True, False):
        assert function(x, value).tolist() == function(x, unbiased=value).tolist()
        assert [y.tolist() for y in ops.var_mean(x, value)] == [ops.var(x, value).tolist(), x.mean().tolist()]
    with pytest.raises(ArgumentError, match="expected unbiased or correction, got both: False and 0"):
        function(x, False, correction=0)
