"""SingleDeviceTrainer: what training on one device takes, which `DistributedTrainer` lets several ranks do alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minigrad.errors import ArgumentError, ShapeError
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scheduler import LRScheduler
from minigrad.tensor import Tensor, tensors_in


def rows_of(batch: Any) -> int:
    """The length of the first axis of the first tensor in a batch.

    Raises:
        ArgumentError: there is no tensor. ShapeError: it has no axes.
    """
    first = next(tensors_in(batch), None)
    if first is None:
        raise ArgumentError(f"train_batch: expected a tensor in the batch, got none in a {type(batch).__name__}")
    if not first.ndim:
        raise ShapeError("train_batch: expected one sample a row, got a tensor of no axes first: give samples_of")
    return first.shape[0]


@dataclass
class SingleDeviceTrainer:
    """What training on one device takes.

    Attributes:
        model: On its device.
        optimizer: Of the model's parameters.
        loss_fn: loss_fn(model, batch), the mean loss over a batch. It calls the model that it is given.
        scheduler: Moves the learning rate after each step.
        samples_of: samples_of(batch), what the loss is a mean over: rows by default, or tokens, say.

    Example:
        >>> from minigrad import nn, optim, ones
        >>> model = nn.Linear(3, 1)
        >>> optimizer = optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = SingleDeviceTrainer(model, optimizer, lambda model, batch: model(batch).square().mean())
        >>> trainer.train_batch(ones(4, 3)) >= trainer.train_batch(ones(4, 3))
        True
    """

    model: Module
    optimizer: Optimizer
    loss_fn: Callable[[Any, Any], Tensor]
    scheduler: LRScheduler | None = None
    samples_of: Callable[[Any], float] = rows_of

    def train_batch(self, batch: Any) -> float:
        """One step; the mean loss, for which it waits."""
        loss = self.loss_fn(self.model, batch)
        loss.backward()
        self.apply_gradients()
        return float(loss.item())

    def apply_gradients(self) -> None:
        """Step the optimizer and the schedule, and forget the gradients."""
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()
