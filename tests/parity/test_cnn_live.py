"""Networks and layers against the PyTorch that is installed: python -m pytest -m torch tests/parity."""

import inspect
import math

import numpy as np
import pytest

from minigrad import nn
from minigrad.testing import assert_close
from tests.parity.cnn import build
from tests.parity.cnn_ours import assert_same

pytestmark = pytest.mark.torch

LAYERS = sorted(
    name for name in nn.__all__ if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
)
LAYERS.remove("Module")
BIG = {
    "Linear": lambda nn: nn.Linear(300, 200),
    "Conv2d": lambda nn: nn.Conv2d(40, 60, 5, groups=2),
    "Embedding": lambda nn: nn.Embedding(300, 200, padding_idx=3),
    "BatchNorm1d": lambda nn: nn.BatchNorm1d(5),
    "BatchNorm2d": lambda nn: nn.BatchNorm2d(5),
    "LayerNorm": lambda nn: nn.LayerNorm((3, 4)),
    "GroupNorm": lambda nn: nn.GroupNorm(2, 6),
}


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-10), ("float32", 2e-4)])
@pytest.mark.parametrize("seed", range(3))
def test_a_state_dict_of_torch(tmp_path, seed, dtype, tolerance):
    import safetensors.torch
    import torch

    from tests.parity import cnn_theirs

    theirs = cnn_theirs.make_model(seed).to(getattr(torch, dtype))
    safetensors.torch.save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    values = {name: value.numpy() for name, value in cnn_theirs.run(theirs, seed + 100).items()}
    ours = build(nn).to(dtype)
    ours.load_state_dict(nn.load_file(tmp_path / "theirs.safetensors"))
    assert_same(ours, values, tolerance)


def test_torch_reads_what_we_write(tmp_path):
    import safetensors.torch
    import torch

    ours, theirs = build(nn), build(torch.nn)
    nn.save_file(ours.state_dict(), tmp_path / "ours.safetensors")
    theirs.load_state_dict(safetensors.torch.load_file(tmp_path / "ours.safetensors"))
    for name, value in theirs.state_dict().items():
        assert_close(ours.state_dict()[name], value.numpy(), tolerance=0, what=name)


def tied(package):
    net = package.Sequential(package.Linear(3, 3), package.Linear(3, 3))
    net[1].weight = net[0].weight
    return net


def test_tied_parameters_go_both_ways(tmp_path):
    import safetensors.torch
    import torch

    ours, theirs = tied(nn), tied(torch.nn)
    safetensors.torch.save_model(theirs, str(tmp_path / "theirs.safetensors"))
    ours.load_state_dict(nn.load_file(tmp_path / "theirs.safetensors"))
    assert_close(ours[1].weight, theirs[1].weight.detach().numpy(), tolerance=0)
    other = tied(torch.nn)
    nn.save_file(ours.state_dict(), tmp_path / "ours.safetensors")
    safetensors.torch.load_model(other, str(tmp_path / "ours.safetensors"))
    assert_close(ours[1].weight, other[0].weight.detach().numpy(), tolerance=0)


@pytest.mark.parametrize("name", LAYERS)
def test_same_arguments_and_defaults(name):
    """Each argument of ours that PyTorch has too has its default."""
    import torch

    ours = inspect.signature(getattr(nn, name)).parameters
    kind = getattr(torch.nn, name)
    recurrent = issubclass(kind, torch.nn.RNNBase)  # whose own signature is (*args, **kwargs)
    theirs = inspect.signature(torch.nn.RNNBase if recurrent else kind).parameters
    shared = [argument for argument in ours if argument in theirs]
    assert set(ours) - set(theirs) <= {"rng", "modules", *(["nonlinearity"] if name == "RNN" else [])}
    for argument in shared:
        expected = theirs[argument].default
        if argument == "dim" and name in ("Softmax", "Softmin", "LogSoftmax"):
            expected = inspect.Parameter.empty  # PyTorch guesses an axis, and warns
        if argument == "activation" and callable(expected):
            expected = expected.__name__  # PyTorch's default is the function, which the name means too
        assert ours[argument].default == expected or name == "ModuleList", argument


@pytest.mark.parametrize("name", BIG)
def test_same_initial_distribution(name):
    import torch

    torch.manual_seed(0)
    ours, theirs = BIG[name](nn).state_dict(), BIG[name](torch.nn).state_dict()
    assert list(ours) == list(theirs)
    for key, tensor in theirs.items():
        x, y = ours[key].data, tensor.numpy()
        assert x.shape == y.shape and x.dtype == y.dtype
        if x.size < 1000 and np.unique(y).size == 1:
            assert_close(x, y, tolerance=0, what=key)
            continue
        error = 5 / math.sqrt(x.size)
        assert abs(x.mean() - y.mean()) <= error * y.std()
        assert abs(x.std() / y.std() - 1) <= error
        assert abs(np.abs(x).max() / np.abs(y).max() - 1) <= (0.3 if name == "Embedding" else 20 / x.size + 1e-3)
        assert (x == 0).sum() == (y == 0).sum()


@pytest.mark.parametrize("make", BIG.values(), ids=BIG)
def test_same_repr(make):
    import torch

    theirs = repr(make(torch.nn)).replace(", bias=True", "")  # which norms have shows by version
    assert repr(make(nn)).replace(", bias=True", "") == theirs


def test_a_network_has_the_same_repr():
    import torch

    assert repr(build(nn)).splitlines()[0] == repr(build(torch.nn)).splitlines()[0]
    assert [line.split(": ")[0] for line in repr(build(nn)).splitlines()] == [
        line.split(": ")[0] for line in repr(build(torch.nn)).splitlines()
    ]
