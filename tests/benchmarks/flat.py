"""What training does on flat arrays: gradients packed and scaled on their way into a bucket, and steps of Adam."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from minigrad import Device, Tensor, nn, optim
from minigrad.backend.device import to_device, to_host
from minigrad.backend.dtypes import as_dtype
from minigrad.backend.fused.grad_scale import Placement, pack, scale_
from minigrad.backend.memory import aligned_offsets

Run = Callable[[], Any]  # one step; what it returns is the loss or the result, or None where none is compared


@dataclass(frozen=True)
class AdamSteps:
    """Adam on parameters of one size each, with gradients that are there."""

    sizes: tuple[int, ...]

    def arrays(self) -> tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]:
        """Parameters and gradients from one seed."""
        rng = np.random.default_rng(0)
        params = [rng.standard_normal(size, np.float32) for size in self.sizes]
        return params, [rng.standard_normal(size, np.float32) for size in self.sizes]

    def ours(self, device: Device) -> Run:
        """A step of minigrad."""
        params, gradients = self.arrays()
        made = [nn.Parameter(to_device(param, device)) for param in params]
        optimizer = optim.Adam(made, lr=1e-3)
        for param, gradient in zip(made, gradients):
            param.grad = Tensor(to_device(gradient, device))
        first = made[0].data.reshape(-1)[:1]
        return lambda: (optimizer.step(), first)[1]

    def theirs(self, device: str) -> Run:
        """A step of torch's fused Adam."""
        params, gradients = self.arrays()
        made = [torch.nn.Parameter(torch.from_numpy(param).to(device)) for param in params]
        for param, gradient in zip(made, gradients):
            param.grad = torch.from_numpy(gradient).to(device)
        optimizer = torch.optim.Adam(made, lr=1e-3, fused=True)
        first = made[0].detach().reshape(-1)[:1]
        return lambda: (optimizer.step(), first)[1]


@dataclass(frozen=True)
class Movement:
    """Gradients on their way into a bucket, beside a copy of as many bytes.

    pack reads float32 and writes wire_dtype; without a wire dtype a bucket of float32 is scaled in place.
    """

    sizes: tuple[int, ...]
    wire_dtype: str | None = None

    def ours(self, device: Device) -> Run:
        """One pass; its first result is checked."""
        rng = np.random.default_rng(0)
        offsets, count = aligned_offsets(self.sizes, 4)
        weight, nonfinite = to_device(np.full(1, 0.25), device), to_device(np.zeros(1, np.uint32), device)
        given = rng.standard_normal(self.sizes[0], np.float32)
        if self.wire_dtype is None:
            bucket = to_device(np.resize(given, count), device)
            scale_(bucket, weight, nonfinite)
            assert np.array_equal(to_host(bucket)[: given.size], given * np.float32(0.25))
            weight[...] = 1.0  # so that it neither vanishes nor grows
            return lambda: scale_(bucket, weight, nonfinite)
        arrays = [to_device(np.resize(given, size), device) for size in self.sizes]
        placement = Placement(arrays, offsets)
        wire = to_device(np.zeros(count, as_dtype(self.wire_dtype)), device)
        pack(placement, wire, weight, nonfinite)
        found = to_host(wire)[: given.size].astype(np.float32)
        assert np.array_equal(found, (given * np.float32(0.25)).astype(wire.dtype).astype(np.float32))
        return lambda: pack(placement, wire, weight, nonfinite)

    def theirs(self, device: str) -> Run:
        """A copy that reads and writes as many bytes together."""
        per_element = 8 if self.wire_dtype is None else 6
        source = torch.ones(sum(self.sizes) * per_element // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)

        def copy() -> None:
            target.copy_(source)

        return copy


# 14 million elements in 40 gradients, as a network of middle size has them
_GRADIENTS = (2048 * 2048, *[1024 * 512] * 18, *[1024] * 20, 200_000)
_SMALL_GRADIENTS = (512 * 784, 512, 512 * 512, 512, 10 * 512, 10, 330_000)
FLAT = {
    "pack 14 M to bfloat16 / copy": Movement(_GRADIENTS, "bfloat16"),
    "pack 1 M to bfloat16 / copy": Movement(_SMALL_GRADIENTS, "bfloat16"),
    "scale 14 M float32 / copy": Movement(_GRADIENTS),
    "scale 1 M float32 / copy": Movement(_SMALL_GRADIENTS),
    "Adam 14 M / fused Adam": AdamSteps(_GRADIENTS),
    "Adam 1 M / fused Adam": AdamSteps(_SMALL_GRADIENTS),
}
