"""Small modules and graphs for the tests of graph."""

import numpy as np

from minigrad import FlowBuilder, Tensor, manual_seed, nn


class Masked(nn.Module):
    """x times a mask, and a scale of its own, in a list."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([nn.Parameter(np.full(1, 2.0, np.float32))])

    def forward(self, x, mask):
        return x * mask * self.scales[0]


class Plus(nn.Module):
    """x plus whatever it is given by keyword."""

    def forward(self, x, /, **others):
        for other in others.values():
            x = x + other
        return x


def encoder(label="encoder", width=4):
    """(N, 3) -> (N, width), with the tag "hidden"."""
    return (
        FlowBuilder("x")
        .through(nn.Linear(3, width))
        .tag("hidden")
        .through(nn.Tanh())
        .through(nn.BatchNorm1d(width))
        .label(label)
        .build()
    )


def classifier(seed=0):
    """(N, 3), (N, 4) -> (N, 2): a sub-graph, a mask, a residual, a head, and an auxiliary head "aux"."""
    manual_seed(seed)
    return (
        FlowBuilder("image")
        .input("mask")
        .through(encoder())
        .fork(nn.Linear(4, 2))
        .tag("aux")
        .through(Masked())
        .using("mask")
        .also(nn.Linear(4, 4))
        .tag("sum")
        .through(nn.Linear(4, 2))
        .label("classifier")
        .build()
    )


def batch(samples=5, seed=0):
    """Values for the inputs of `classifier`."""
    rng = np.random.default_rng(seed)
    image, mask = rng.standard_normal((samples, 3)), rng.integers(0, 2, (samples, 4))
    return {"image": Tensor(image.astype(np.float32)), "mask": Tensor(mask.astype(np.float32))}
