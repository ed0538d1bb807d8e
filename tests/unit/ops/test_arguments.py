"""Plain values of another kind than an operation, a layer or a loader expects are refused by name."""

from types import SimpleNamespace

import numpy as np
import pytest

import minigrad
from minigrad import Tensor, data, nn, ops, optim
from minigrad.arguments import as_integer, as_real, check_choice, check_real, check_switch
from minigrad.errors import ArgumentError, DeviceError, DtypeError, IndexRangeError, MinigradError, ShapeError
from minigrad.nn import init

X = Tensor(np.ones((2, 3), np.float32))
IMAGES = Tensor(np.ones((2, 4, 3, 3), np.float32))

# Every value stands for the mistakes of its kind: a text, nothing, a list, an array where a number or a word is meant.
NOT_NUMBERS = ["0.5", None, [0.5], np.ones((2, 2)), Tensor(np.ones(())), True, float("nan")]
TAKES_A_NUMBER = {
    "negative_slope": lambda value: ops.leaky_relu(X, value),
    "alpha": lambda value: ops.elu(X, value),
    "beta": lambda value: ops.softplus(X, beta=value),
    "threshold": lambda value: ops.softplus(X, threshold=value),
    "delta": lambda value: ops.huber_loss(X, X, delta=value),
    "beta of smooth_l1_loss": lambda value: ops.smooth_l1_loss(X, X, beta=value),
    "p": lambda value: ops.dropout(X, value),
    "eps": lambda value: ops.layer_norm(X, 3, eps=value),
    "momentum": lambda value: ops.batch_norm(X, None, None, training=True, momentum=value),
    "label_smoothing": lambda value: ops.cross_entropy(X, minigrad.tensor([0, 1]), label_smoothing=value),
    "p of norm": lambda value: X.norm(value),
    "factor of add_": lambda value: X.add_(X, alpha=value),
    "a": lambda value: init.uniform_(X, value, 2.0),
    "val": lambda value: init.constant_(X, value),
    "std": lambda value: init.normal_(X, 0.0, value),
    "gain": lambda value: init.orthogonal_(X, value),
    "lr": lambda value: optim.SGD([nn.Parameter(np.ones(2))], lr=value),
    "max_norm": lambda value: optim.clip_grad_norm_([nn.Parameter(np.ones(2))], value),
}


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: f"{type(value).__name__}-{value!r:.12}")
@pytest.mark.parametrize("call", TAKES_A_NUMBER.values(), ids=TAKES_A_NUMBER)
def test_what_is_no_number_is_refused(call, value):
    with pytest.raises(ArgumentError, match="got"):
        call(value)


def torch_like():
    """What has a dtype that is not NumPy's."""
    return SimpleNamespace(dtype=SimpleNamespace())


REFUSED = [
    (lambda: X.sum(0, 1), ArgumentError, "sum: expected keepdim to be True or False, got 1"),
    (lambda: X.amax(0, 1), ArgumentError, "amax: expected keepdim"),
    (lambda: X.max(0, 1), ArgumentError, "max: expected keepdim"),
    (lambda: X.argmax(0, None), ArgumentError, "argmax: expected keepdim"),
    (lambda: X.all(0, None), ArgumentError, "all: expected keepdim"),
    (lambda: X.var(0, 1), ArgumentError, "var: expected unbiased to be True or False, got 1"),
    (lambda: X.std(correction="1"), ArgumentError, "std: expected correction to be a number, got '1'"),
    (lambda: X.size(0.5), ShapeError, r"size: expected an axis of shape \(2, 3\), got 0.5"),
    (lambda: X.broadcast_to(3), ArgumentError, "broadcast_to: expected shape to be a list or a tuple, got 3"),
    (lambda: X.unflatten(1, 3), ArgumentError, "unflatten: expected sizes to be a list or a tuple, got 3"),
    (lambda: minigrad.tensor(1.0).unflatten(0, (1,)), ShapeError, r"at least one axis, got shape \(\)"),
    (lambda: X.narrow(1, 0, "2"), DtypeError, "narrow: expected integers, got '2'"),
    (lambda: ops.pad(X, 1), ArgumentError, "pad: expected pad to be a list or a tuple, got 1"),
    (lambda: ops.one_hot(minigrad.tensor([1]), "3"), ArgumentError, "one_hot: expected num_classes to be an integer"),
    (lambda: ops.embedding(X, minigrad.tensor([0]), (1,)), ArgumentError, "expected padding_idx to be an integer"),
    (lambda: ops.embedding(X, minigrad.tensor([0]), 2), IndexRangeError, r"padding_idx in \[0, 2\), got 2"),
    (lambda: ops.cross_entropy(X, minigrad.tensor([0, 1]), ignore_index=None), ArgumentError, "expected ignore_index"),
    (lambda: ops.nll_loss(X, minigrad.tensor([0, 1]), ignore_index=[1, 2, 3]), ArgumentError, "expected ignore_index"),
    (lambda: ops.pad(X, [1, 1], value=minigrad.ones(3)), DtypeError, "pad: expected a number as value, got Tensor"),
    (lambda: ops.tril(X, 2**70), DtypeError, r"tril: expected an integer diagonal of less than 2\*\*48, got 118"),
    (lambda: ops.dropout(X, 0.5, np.ones(2)), ArgumentError, "dropout: expected training to be True or False"),
    (lambda: ops.batch_norm(X, X, X, training=np.ones(2)), ArgumentError, "batch_norm: expected training to be True"),
    (lambda: ops.max_pool2d(IMAGES, 2, ceil_mode=X), ArgumentError, "max_pool2d: expected ceil_mode to be True or"),
    (lambda: ops.avg_pool2d(IMAGES, 2, count_include_pad=1), ArgumentError, "avg_pool2d: expected count_include_pad"),
    (lambda: ops.avg_pool2d(IMAGES, 2, 2**70), ArgumentError, r"stride to be an integer >= 1 and < 2\*\*31"),
    (lambda: ops.adaptive_avg_pool2d(IMAGES, 2**70), ArgumentError, "expected output_size to be an integer"),
    (lambda: ops.getitem(X, torch_like()), DtypeError, "getitem: expected integers, slices, .* got SimpleNamespace"),
    (lambda: X.sum(dtype=torch_like()), DtypeError, "dtype: expected one of bool, .*got namespace"),
    (lambda: ops.mse_loss(X, X, np.ones(2)), ArgumentError, "mse_loss: expected reduction to be one of 'mean'"),
    (lambda: ops.layer_norm(X, "3"), DtypeError, "layer_norm: expected integers, got '3'"),
    (lambda: ops.layer_norm(None, 3), DtypeError, "layer_norm: expected tensors, got NoneType"),
    (lambda: ops.group_norm(IMAGES, 2.0), ArgumentError, "group_norm: expected num_groups to be an integer >= 1"),
    (lambda: ops.getitem("abc", 0), DtypeError, "getitem: expected a tensor, an array or a number, got str"),
    (lambda: ops.dropout(X, rng=7), ArgumentError, "dropout: expected rng to be a numpy.random.Generator, got int"),
    (lambda: minigrad.randn(2, rng=0), ArgumentError, "randn: expected rng to be a numpy.random.Generator, got int"),
    (lambda: minigrad.rand(2, rng="a"), ArgumentError, "rand: expected rng"),
    (lambda: minigrad.randint(2, size=2, rng=1), ArgumentError, "randint: expected rng"),
    (lambda: minigrad.randperm(2, rng=1), ArgumentError, "randperm: expected rng"),
    (lambda: minigrad.randperm(2**70), ArgumentError, r"randperm: expected n to be an integer in \[0, 2\*\*48\)"),
    (lambda: minigrad.randint(2**70, size=2), ArgumentError, "randint: expected a range that fits into int64"),
    (lambda: minigrad.randint(257, size=2, dtype="uint8"), ArgumentError, r"fits into uint8, got \[0, 257\)"),
    (lambda: minigrad.arange(2**70), ShapeError, r"arange: expected integers of less than 2\*\*48"),
    (lambda: minigrad.linspace(0, 1, 2**70), ArgumentError, r"linspace: expected steps .* \[0, 2\*\*48\)"),
    (lambda: minigrad.randn_like([1.0]), DtypeError, "randn_like: expected a Tensor, got list"),
    (lambda: minigrad.empty_like(3), DtypeError, "empty_like: expected a Tensor, got int"),
    (lambda: minigrad.zeros(2, device=np.ones(2)), DeviceError, "expected 'cpu' or 'cuda:<index>'"),
    (lambda: minigrad.zeros(2, requires_grad=1), ArgumentError, "expected requires_grad to be True or False, got 1"),
    (lambda: minigrad.zeros(10**30), ShapeError, r"zeros: expected integers of less than 2\*\*48"),
    (lambda: minigrad.zeros(2**30, 2**30), ShapeError, r"zeros: expected fewer than 2\*\*48 elements"),
    (lambda: minigrad.full((2,), float("inf"), dtype="int64"), DtypeError, "a value that fits into int64, got inf"),
    (lambda: minigrad.from_dlpack(np.array(["a"])), DtypeError, "from_dlpack: expected data that a tensor can hold"),
    (lambda: minigrad.set_rng_state(np.ones(2)), ArgumentError, "set_rng_state: expected what get_rng_state returned"),
    (lambda: init.calculate_gain(np.ones(2)), ArgumentError, "calculate_gain: expected nonlinearity to be one of"),
    (lambda: init.kaiming_normal_(X, mode=np.ones(2)), ArgumentError, "expected mode to be one of 'fan_in'"),
    (lambda: nn.Linear((2, 3), 1), ArgumentError, r"Linear: expected in_features to be an integer >= 1, got \(2, 3\)"),
    (lambda: nn.Unflatten("1", (2, 3)), ArgumentError, "Unflatten: expected dim to be an integer, got '1'"),
    (lambda: nn.Unflatten(1, 6), ArgumentError, "expected unflattened_size to be a list or a tuple, got 6"),
    (lambda: nn.ModuleList(nn.Linear(2, 2)), DtypeError, "ModuleList: expected several Modules, got Linear"),
    (lambda: nn.ModuleDict([1]), DtypeError, "ModuleDict: expected a mapping of names to Modules, got list"),
    (lambda: optim.Piecewise(5, [1]), ArgumentError, "Piecewise: expected a list of schedules, got 5"),
    (lambda: data.Subset(5, [0]), ArgumentError, "Subset: expected a dataset with __len__ and __getitem__, got 5"),
    (lambda: data.Subset([1, 2], [[0], [0, 1]]), DtypeError, "Subset: expected a sequence of integers"),
    (lambda: data.random_split(5, [5]), ArgumentError, "random_split: expected a dataset"),
    (lambda: data.random_split([1, 2], 2), ArgumentError, "expected lengths to be a list or a tuple, got 2"),
    (lambda: data.default_collate(5), ArgumentError, "collate: expected a list of samples, got int"),
    (lambda: data.DataLoader([1, 2], shuffle=1), ArgumentError, "expected shuffle to be True or False, got 1"),
    (lambda: data.DataLoader([1, 2], drop_last=X), ArgumentError, "expected drop_last to be True or False"),
]


@pytest.mark.parametrize("call, error, message", REFUSED, ids=[message[:50] for _, _, message in REFUSED])
def test_refuses(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_scalar_takes_axis_0_where_a_vector_does():
    x = minigrad.tensor(3.0, requires_grad=True)
    zero = minigrad.tensor(0)
    y = x.flip(0) + x.roll(1, 0) + x.gather(0, zero) + x.take_along_dim(zero, 0)
    y.backward()
    assert (y.item(), x.grad.item()) == (12.0, 4.0)
    with pytest.raises(IndexRangeError, match=r"gather: expected indexes in \[0, 1\)"):
        x.gather(0, minigrad.tensor(1))


def test_numbers_of_numpy_count_as_numbers():
    assert as_real("who", "x", np.float32(0.5)) == 0.5 and type(as_real("who", "x", np.float64(2))) is float
    assert as_real("who", "x", 3) == 3.0 and as_real("who", "x", float("inf")) == float("inf")
    assert type(as_integer("who", "n", np.int32(4), 4)) is int


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: as_real("who", "x", 2, 0, 1), r"who: expected x to be a number in \[0, 1\], got 2"),
        (lambda: as_real("who", "x", -1, 0), "who: expected x to be a number >= 0, got -1"),
        (lambda: as_integer("who", "n", 1.0), "who: expected n to be an integer, got 1.0"),
        (lambda: check_real("who", x=float("inf")), "who: expected x to be a finite number, got inf"),
        (lambda: check_choice("who", ("a", "b"), x=["a"]), r"who: expected x to be one of 'a', 'b', got \['a'\]"),
        (lambda: check_switch("who", x=0), "who: expected x to be True or False, got 0"),
    ],
)
def test_messages(call, message):
    with pytest.raises(MinigradError, match=f"^{message}$"):
        call()
