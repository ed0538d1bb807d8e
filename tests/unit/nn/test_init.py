"""Initial weights: the distributions that were promised, the same for one seed everywhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minigrad import Tensor, manual_seed, ops
from minigrad.errors import ArgumentError, DtypeError, ShapeError
from minigrad.nn import Linear, Parameter, init
from minigrad.recording import no_grad
from minigrad.testing import assert_close

DRAWS = [
    init.uniform_,
    init.normal_,
    init.trunc_normal_,
    init.xavier_uniform_,
    init.xavier_normal_,
    init.kaiming_uniform_,
    init.kaiming_normal_,
    init.orthogonal_,
]


def zeros(*shape, dtype=np.float32):
    return Tensor(np.zeros(shape, dtype))


def drawn(function, *args, shape=(400, 100), **kwargs):
    x = zeros(*shape)
    assert function(x, *args, rng=np.random.default_rng(1), **kwargs) is x
    return x.data


def assert_uniform(values, low, high):
    """Bounds, mean and variance of a sample of some ten thousand."""
    assert low <= values.min() < low + 0.01 * (high - low) and high >= values.max() > high - 0.01 * (high - low)
    assert abs(values.mean() - (low + high) / 2) < 0.02 * (high - low)
    assert abs(values.var() / ((high - low) ** 2 / 12) - 1) < 0.03


def assert_normal(values, mean, std):
    assert abs(values.mean() - mean) < 0.03 * std
    assert abs(values.std() / std - 1) < 0.03
    assert abs((np.abs(values - mean) < std).mean() - math.erf(math.sqrt(0.5))) < 0.01


def test_uniform():
    assert_uniform(drawn(init.uniform_), 0.0, 1.0)
    assert_uniform(drawn(init.uniform_, -2.0, 3.0), -2.0, 3.0)
    assert (drawn(init.uniform_, 2.0, 2.0) == 2.0).all()


def test_normal():
    assert_normal(drawn(init.normal_), 0.0, 1.0)
    assert_normal(drawn(init.normal_, 3.0, 0.5), 3.0, 0.5)


def test_constants():
    x = zeros(2, 3)
    assert (init.constant_(x, 2.5).data == 2.5).all() and (init.ones_(x).data == 1).all()
    assert not init.zeros_(x).data.any()


def test_xavier():
    bound = 2.0 * math.sqrt(6.0 / (400 + 100))
    assert_uniform(drawn(init.xavier_uniform_, 2.0), -bound, bound)
    assert_normal(drawn(init.xavier_normal_, 2.0), 0.0, bound / math.sqrt(3.0))


@pytest.mark.parametrize(
    "mode, a, nonlinearity, fan, gain",
    [
        ("fan_in", 0.0, "leaky_relu", 90, math.sqrt(2.0)),
        ("fan_out", 0.0, "relu", 360, math.sqrt(2.0)),
        ("fan_in", 1.0, "leaky_relu", 90, 1.0),
        ("fan_in", 1.0, "linear", 90, 1.0),
        ("fan_in", 0.0, "tanh", 90, 5 / 3),
    ],
)
def test_kaiming(mode, a, nonlinearity, fan, gain):
    std = gain / math.sqrt(fan)
    assert_normal(drawn(init.kaiming_normal_, a, mode, nonlinearity, shape=(40, 10, 3, 3)), 0.0, std)
    uniform = drawn(init.kaiming_uniform_, a, mode, nonlinearity, shape=(40, 10, 3, 3))
    assert_uniform(uniform, -std * math.sqrt(3.0), std * math.sqrt(3.0))


def test_trunc_normal():
    assert_close(drawn(init.trunc_normal_, std=0.02), drawn(init.normal_, std=0.02), tolerance=0)  # nothing is cut
    off = drawn(init.trunc_normal_, 1.0, 2.0, 0.0, 2.0)
    assert 0.0 <= off.min() < 0.01 and 2.0 >= off.max() > 1.99 and abs(off.mean() - 1.0) < 0.01
    values = drawn(init.trunc_normal_)
    assert -2.0 <= values.min() < -1.9 and 2.0 >= values.max() > 1.9
    assert abs(values.std() - 0.8796) < 0.01, "the standard deviation of a normal cut at two of it"
    cut = drawn(init.trunc_normal_, 0.0, 1.0, 1.0, 1.5)
    assert cut.min() >= 1.0 and cut.max() <= 1.5


@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6), (4, 2, 3)])
def test_orthogonal(shape):
    x = drawn(init.orthogonal_, 2.0, shape=shape).reshape(shape[0], -1).astype(np.float64)
    short = x if x.shape[0] <= x.shape[1] else x.T
    assert_close(short @ short.T, 4.0 * np.eye(len(short)), tolerance=1e-6)


def test_orthogonal_favours_no_direction():
    rng = np.random.default_rng(0)
    first = np.array([init.orthogonal_(zeros(2, 2), rng=rng).data[0, 0] for _ in range(500)])
    assert abs(first.mean()) < 0.1


def test_eye_and_dirac():
    assert init.eye_(zeros(2, 3)).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    x = Tensor(np.random.default_rng(0).standard_normal((2, 4, 5, 5)))
    for groups in (1, 2):
        weight = init.dirac_(zeros(4, 4 // groups, 3, 3, dtype=np.float64), groups)
        assert_close(ops.conv2d(x, weight, padding=1, groups=groups), x.data, tolerance=0)
    assert init.dirac_(zeros(4, 3, 2), 2).data.sum() == 4.0


def test_sparse():
    values = drawn(init.sparse_, 0.25, 0.5, shape=(402, 100))
    assert ((values == 0).sum(axis=0) == 101).all() and (values[0] == 0).any() and (values[0] != 0).any()
    assert_normal(values[values != 0], 0.0, 0.5)
    assert not drawn(init.sparse_, 1.0).any() and drawn(init.sparse_, 0.0).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_gpu_gets_the_same_numbers(strict_cupy, cuda, dtype):
    for function in [*DRAWS, lambda x, rng=None: init.sparse_(x, 0.5, rng=rng), lambda x, rng=None: init.eye_(x)]:
        host, device = zeros(5, 4).to(dtype), zeros(5, 4).to(dtype).to("cuda:1")
        for x in (host, device):
            function(x, rng=np.random.default_rng(3))
        assert_close(device.cpu(), host.data, tolerance=0)


def test_gains():
    assert init.calculate_gain("relu") == math.sqrt(2.0)
    assert init.calculate_gain("leaky_relu") == math.sqrt(2.0 / (1 + 0.01**2))
    assert init.calculate_gain("leaky_relu", 1.0) == init.calculate_gain("sigmoid") == 1.0
    assert init.calculate_gain("conv2d") == init.calculate_gain("linear") == 1.0
    assert init.calculate_gain("selu") == 0.75


def test_fans():
    assert init.calculate_fan_in_and_fan_out(zeros(4, 3)) == (3, 4)
    assert init.calculate_fan_in_and_fan_out(zeros(4, 3, 2, 5)) == (30, 40)


@given(st.sampled_from(DRAWS), st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_one_seed_gives_the_same_weights_in_every_dtype(function, seed, shape):
    wide = function(zeros(*shape, dtype=np.float64), rng=np.random.default_rng(seed))
    narrow = function(zeros(*shape), rng=np.random.default_rng(seed))
    assert_close(narrow, wide.data.astype(np.float32), tolerance=0)


@pytest.mark.parametrize("function", DRAWS)
def test_the_init_stream_is_the_default(function):
    manual_seed(3)
    first, second = function(zeros(3, 3)).data.copy(), function(zeros(3, 3)).data.copy()
    manual_seed(3)
    assert_close(function(zeros(3, 3)), first, tolerance=0)
    assert (first != second).any()


def test_a_layer_takes_a_source():
    layers = [Linear(3, 2, rng=np.random.default_rng(5)) for _ in range(2)]
    assert_close(layers[0].weight, layers[1].weight.data, tolerance=0)
    assert_close(layers[0].bias, layers[1].bias.data, tolerance=0)


@pytest.mark.parametrize("function", DRAWS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_dtypes(function, dtype):
    x = function(zeros(4, 4).to(dtype), rng=np.random.default_rng(0))
    assert x.dtype.name == dtype and x.data.astype(np.float32).any()


@pytest.mark.parametrize("function", DRAWS)
@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_to_fill(function, shape):
    assert function(zeros(*shape), rng=np.random.default_rng(0)).shape == shape


def test_a_graph_notices():
    weight = Parameter(np.ones((2, 2)))
    y = Tensor(np.ones((1, 2)), requires_grad=True) @ weight
    with no_grad():
        init.normal_(weight)
    with pytest.raises(Exception, match="changed in place"):
        y.backward(Tensor(np.ones((1, 2))))


def test_wrong_arguments():
    x, nan = zeros(2, 2), float("nan")
    for call, message in [
        (lambda: init.uniform_(x, 1.0, 0.0), "uniform_: expected finite a <= b, got a=1.0, b=0.0"),
        (lambda: init.uniform_(x, nan, 1.0), "uniform_: expected a to be a finite number, got nan"),
        (lambda: init.normal_(x, 0.0, -1.0), "normal_: expected std to be a finite number >= 0, got -1.0"),
        (lambda: init.trunc_normal_(x, std=0.0), "trunc_normal_: expected std > 0"),
        (lambda: init.trunc_normal_(x, a=9.0, b=10.0), "at least 1 % of the normal between them"),
        (lambda: init.kaiming_uniform_(x, mode="fan"), "to be one of 'fan_in', 'fan_out', got 'fan'"),
        (lambda: init.kaiming_normal_(x, nonlinearity="swish"), "nonlinearity to be one of 'linear'.*got 'swish'"),
        (lambda: init.xavier_normal_(x, gain=nan), "xavier_normal_: expected gain to be a finite number >= 0, got nan"),
        (lambda: init.sparse_(x, 1.5), r"sparse_: expected sparsity to be .* \[0, 1\], got 1.5"),
        (lambda: init.sparse_(x, 0.5, -1.0), "sparse_: expected std to be a finite number >= 0, got -1.0"),
        (lambda: init.dirac_(zeros(4, 2, 3), 3), "dirac_: expected groups to divide the 4 outputs, got 3"),
        (lambda: init.uniform_(x, rng=3), "uniform_: expected rng to be a numpy.random.Generator, got int"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
    assert not x.data.any()


@pytest.mark.parametrize("function", [*DRAWS, init.zeros_, init.ones_])
def test_only_float_tensors(function):
    for wrong, got in [(Tensor(np.zeros((2, 2), np.int64)), "int64"), (np.zeros((2, 2)), "ndarray")]:
        with pytest.raises(DtypeError, match=f"_: expected a float tensor, got {got}"):
            function(wrong)


@pytest.mark.parametrize("function", DRAWS[3:])
def test_a_fan_needs_two_axes(function):
    with pytest.raises(ShapeError, match=rf"{function.__name__}: expected .* two axes, got shape \(3,\)"):
        function(zeros(3))


@pytest.mark.parametrize("function, wanted", [(init.eye_, "two"), (init.dirac_, "three to five")])
def test_axes_of_those_that_are_not_drawn(function, wanted):
    with pytest.raises(ShapeError, match=rf"{function.__name__}: expected .* {wanted} axes, got shape \(3,\)"):
        function(zeros(3))


def test_calls_as_layers_for_pytorch_write_them():
    layer = Linear(4, 3)
    init.kaiming_uniform_(layer.weight, a=5**0.5, generator=np.random.default_rng(0))
    other = init.kaiming_uniform_(zeros(3, 4), a=5**0.5, rng=np.random.default_rng(0))
    assert np.array_equal(layer.weight.data, other.data)
    assert init._calculate_fan_in_and_fan_out(layer.weight) == (4, 3)
    with pytest.raises(AttributeError, match="minigrad.nn.init: expected a name that it has, got 'xavier_unifor'"):
        init.xavier_unifor
