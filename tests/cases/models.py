"""Small models and one training step of them, for tests that train on more than one device."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad import Tensor, nn, ops
from minigrad.backend.device import CPU, Device, to_device

IN, CLASSES, BATCH, SIDE = 12, 5, 8, 8


def mlp(device: Any = None, dtype: Any = None) -> nn.Module:
    """Three affine layers, a normalisation, an activation that is smooth, and one with a kink."""
    place = {"device": device, "dtype": dtype}
    return nn.Sequential(
        nn.Linear(IN, 16, **place),
        nn.LayerNorm(16, **place),
        nn.GELU(),
        nn.Linear(16, 16, **place),
        nn.ReLU(),
        nn.Linear(16, CLASSES, **place),
    )


def cnn(device: Any = None, dtype: Any = None) -> nn.Module:
    """Two convolutions with either normalisation and pooling, then an affine layer."""
    place = {"device": device, "dtype": dtype}
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, **place),
        nn.BatchNorm2d(8, **place),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, groups=2, **place),
        nn.GroupNorm(2, 8, **place),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES, **place),
    )


MODELS = {"mlp": (mlp, (BATCH, IN)), "cnn": (cnn, (BATCH, 3, SIDE, SIDE))}


def batch(name: str, device: Any = None, dtype: str = "float64", seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and labels for a model of MODELS, the same for each device."""
    rng = np.random.default_rng(seed)
    device = CPU if device is None else Device(device)
    x = rng.standard_normal(MODELS[name][1]).astype(dtype)
    return Tensor(to_device(x, device)), Tensor(to_device(rng.integers(0, CLASSES, BATCH), device))


def training_step(model: nn.Module, optimizer: Any, x: Tensor, labels: Tensor) -> Tensor:
    """One step on one batch; returns the loss."""
    optimizer.zero_grad()
    loss = ops.cross_entropy(model(x), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()
