"""From batches to the gradient of the mean over their samples, on one rank of a run."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from minigrad.arguments import as_samples
from minigrad.backend.device import Device
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.kept import gradient_changed
from minigrad.nn.module import Module
from minigrad.ops.creation import full_like
from minigrad.ops.precision import autocast
from minigrad.tensor import Tensor
from minigrad.train.batches import check_loss, micro_batches
from minigrad.train.epoch import EpochMeter
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.updates import Updates
from minigrad.train.single import rows_of


class Gradients:
    """Calls the training function, and goes backward.

    Args:
        config: Has the function, the precision, and in how many parts a batch is cut.
        model: This rank's replica, on the device.
        updates: Has the scale of losses.
        meter: Counts losses and samples.

    Attributes:
        says_samples: Whether the function has said what a loss is a mean over.
    """

    def __init__(self, config: RunConfig, model: Module, updates: Updates, meter: EpochMeter, device: Device) -> None:
        self._config, self._model, self._updates, self._meter = config, model, updates, meter
        self._device, self.says_samples = device, False

    def of(self, batches: Iterable[Any], ddp: DistributedDataParallel | None = None) -> tuple[Any, float]:
        """Forward and backward of batches: the gradient of the mean over the samples of all of them.

        Args:
            batches: Of this rank; there may be none. Each is asked for before the backward of the one before.
            ddp: The wrapper, which combines at the last one; by default nobody does.

        Returns:
            Σ n·loss, which may still be on the device, and Σ n.
        """
        parts = (part for batch in batches for part in self._cut(batch))
        loss_sum: Any = 0.0
        samples = first = 0.0
        is_last = False
        for part, is_last in _with_last(parts):
            loss, n = self._loss(self._model if ddp is None else ddp, part)
            samples, first = samples + n, first or n
            if is_last and samples not in (n, 0.0):
                self._rescale(first / samples)
            weight = n / (samples if is_last else first) if n else 0.0
            self._backward(loss, n, weight, ddp, is_last)
            if n:
                loss_sum = loss_sum + loss.data.astype(np.float64).reshape(()) * n
        if not is_last and ddp is not None:
            ddp.flush()
        self._meter.add_loss_sum(loss_sum, samples)
        return loss_sum, samples

    def _cut(self, batch: Any) -> list[Any]:
        number = self._config.accumulate
        return [batch] if number == 1 else micro_batches(WHO, batch, number, self._device)

    def _loss(self, model: Any, part: Any) -> tuple[Tensor, float]:
        """What train_fn makes of a part of a batch, and the samples that its loss is a mean over."""
        precision = contextlib.nullcontext() if self._config.autocast is None else autocast(self._config.autocast)
        with self._meter.open_batch(), precision:
            told = self._config.train_fn(model, part)
        says = isinstance(told, tuple) and len(told) == 2
        self.says_samples = self.says_samples or says
        loss, n = told if says else (told, rows_of(part))
        samples = as_samples(f"{WHO}: train_fn", n)
        self._meter.settle_batch(samples)
        return check_loss(f"{WHO}: train_fn", loss), samples

    def _backward(
        self, loss: Tensor, n: float, weight: float, ddp: DistributedDataParallel | None, is_last: bool
    ) -> None:
        """Backward of a loss that counts by a weight; without samples it would only bring NaN, and is left out."""
        start = self._updates.scaled(loss)
        seed = None if weight == 1.0 else full_like(start.detach(), weight)
        if ddp is None:
            if n:
                start.backward(seed)
            return
        with ddp.samples(n), contextlib.nullcontext() if is_last else ddp.no_sync():
            if n:
                start.backward(seed)
            elif is_last:
                ddp.flush()

    def _rescale(self, factor: float) -> None:
        """Multiply the gradients that there are."""
        if factor == 1.0 or not math.isfinite(factor):
            return
        for param in self._model.parameters():
            if param.grad_array is not None:
                param.grad_array *= factor
                gradient_changed(param)


def _with_last(values: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """Each value, and whether it is the last."""
    rest = iter(values)
    for value in rest:
        for following in rest:
            yield value, False
            value = following
        yield value, True
