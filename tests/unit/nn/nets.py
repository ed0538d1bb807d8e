"""Small networks for the tests of nn."""

import numpy as np

from minigrad import nn


class Scale(nn.Module):
    """x times a vector of ones, with a running count that is saved and a scratch one that is not."""

    def __init__(self, size=3):
        super().__init__()
        self.weight = nn.Parameter(np.ones(size, np.float32))
        self.count = nn.Buffer(np.zeros((), np.int64))
        self.register_buffer("scratch", nn.Buffer(np.zeros(2, np.float32)), persistent=False)

    def forward(self, x, offset=0.0):
        return x * self.weight + offset


class Tied(nn.Module):
    """An encoder, and a decoder on the same weights."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 3)
        self.decoder = nn.Linear(3, 3, bias=False)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.decoder(self.encoder(x))
