"""Ranks on uneven shards train like one device: 20 steps of an MLP, a CNN and a model with attention, in float64."""

import functools

import numpy as np
import pytest

import minigrad
from minigrad import nn, optim
from minigrad.distributed import DDP, SoloCommunicator
from minigrad.nn import functional as F
from minigrad.nn.module import Module
from tests.distributed.models import assert_gradients_close, values
from tests.distributed.worlds import run_ranks

STEPS = 20
TIMEOUT_S = 20.0
SHARDS = {1: [9], 2: [7, 2], 3: [1, 5, 3], 4: [2, 0, 6, 1]}


class TwoLayers(Module):
    """The encoder of a transformer, of two layers, and a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True, dtype="float64")
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(6, 3, dtype="float64")

    def forward(self, x):
        return self.head(self.layers(x).mean(dim=1))


class Mlp(Module):
    """5 -> 8 -> 8 -> 3 with tanh; its weights in a list, its biases by name."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [5, 8, 8, 3]
        layers = [nn.Linear(a, b, dtype="float64") for a, b in zip(sizes, sizes[1:])]
        self.weights = nn.ParameterList(layer.weight for layer in layers)
        self.biases = nn.ParameterDict({f"b{i}": layer.bias for i, layer in enumerate(layers)})

    def forward(self, x):
        for i, weight in enumerate(self.weights):
            x = F.linear(x, weight, self.biases[f"b{i}"])
            x = x if i == 2 else x.tanh()
        return x


def cnn():
    """Two convolutions with group norm, and an average over the image."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, dtype="float64"),
        nn.GroupNorm(2, 4, dtype="float64"),
        nn.GELU(),
        nn.Conv2d(4, 4, 3, stride=2, dtype="float64"),
        nn.GroupNorm(2, 4, dtype="float64"),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3, dtype="float64"),
    )


MODELS = {"mlp": (Mlp, (5,)), "cnn": (cnn, (1, 7, 7)), "attention": (TwoLayers, (4, 6))}
OPTIMIZERS = {  # with the tolerance: Adam divides by the root of a sum of squares, which magnifies rounding
    "sgd": (lambda params: optim.SGD(params, lr=0.05, momentum=0.9), 1e-10),
    "adam": (lambda params: optim.Adam(params, lr=0.01), 1e-8),
}


def _train(comm, model, optimizer, shards, start):
    """The values after so many steps on fresh data, whose part of this rank its shard is."""
    make, shape = MODELS[model]
    minigrad.manual_seed(3)
    ddp = DDP(make(), comm, bucket_cap_bytes=400)
    step = OPTIMIZERS[optimizer][0](ddp.module.parameters())
    for batch in range(STEPS):
        rng = np.random.default_rng([start, batch])
        inputs, targets = rng.standard_normal((sum(shards), *shape)), rng.standard_normal((sum(shards), 3))
        mine = slice(sum(shards[: comm.rank]), sum(shards[: comm.rank + 1]))
        step.zero_grad()
        error = ddp(minigrad.Tensor(inputs[mine])) - minigrad.Tensor(targets[mine])
        (error.square().sum() / max(1, shards[comm.rank])).backward()
        step.step()
    return values(ddp.module)


@functools.cache
def _alone(model, optimizer):
    return _train(SoloCommunicator(), model, optimizer, [9], 0)


@pytest.mark.parametrize("world_size", SHARDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_ranks_train_like_one_device(model, optimizer, world_size):
    expected, shards = _alone(model, optimizer), SHARDS[world_size]
    ranks = run_ranks("threads", lambda comm: _train(comm, model, optimizer, shards, 0), world_size, TIMEOUT_S)
    for actual in ranks:
        assert_gradients_close(actual, expected, OPTIMIZERS[optimizer][1])
        assert all(actual[name].tobytes() == ranks[0][name].tobytes() for name in actual)


@pytest.mark.parametrize("model", MODELS)
def test_processes_have_the_bits_of_threads(model):
    def body(comm):
        return _train(comm, model, "sgd", [4, 2, 3], 0)

    threads, processes = (run_ranks(kind, body, 3, TIMEOUT_S) for kind in ("threads", "shm"))
    for one, other in zip(threads, processes):
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_other_data_train_to_other_values(model, optimizer):
    """The twin of the first test: what it compares moves by far more than it allows."""
    alone, other = _alone(model, optimizer), _train(SoloCommunicator(), model, optimizer, [9], 1)
    assert all(np.abs(alone[name] - other[name]).max() > 1e-4 for name in alone)
