"""Lesson 9, solved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

from minigrad.distributed import Communicator
from minigrad.nn import Module
from minigrad.optim import Optimizer, clip_grad_norm_
from minigrad.tensor import Tensor


class AccumulatingDdp:
    """A module whose gradients are combined after the last of several backwards."""

    def __init__(self, module: Module, comm: Communicator) -> None:
        self.module, self._comm = module, comm
        self._samples, self._is_syncing = 0, True
        for tensor in [*module.parameters(), *module.buffers()]:
            comm.broadcast(tensor.data, 0).wait()

    def __call__(self, *inputs: Tensor) -> Any:
        """The module's forward; its samples count until gradients are combined."""
        self._samples += len(inputs[0])
        return self.module(*inputs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it gradients stay on this rank."""
        before, self._is_syncing = self._is_syncing, False
        try:
            yield
        finally:
            self._is_syncing = before

    def finish(self) -> None:
        """Combine what has added up since the last time: Σ n_r·g_r / Σ n_r."""
        if not self._is_syncing:
            return
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        weight = self._samples / max(1.0, float(total[0]))
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                continue
            if self._samples == 0:
                parameter.grad = Tensor(np.zeros_like(parameter.data))
            assert parameter.grad is not None, f"{name} has no gradient: the loss does not depend on it"
            parameter.grad.data *= weight
            self._comm.all_reduce(parameter.grad.data).wait()
        self._samples = 0


def get_ddp_accumulating(module: Module, comm: Communicator) -> Any:
    """See AccumulatingDdp."""
    return AccumulatingDdp(module, comm)


def accumulated_step(
    ddp: Any,
    optimizer: Optimizer,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    max_norm: float,
) -> float:
    """A mean of means again, this time in time: each loss is weighted by its part of this rank's samples."""
    optimizer.zero_grad()
    samples = sum(len(inputs) for inputs, _ in micro_batches)
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        with nullcontext() if number == len(micro_batches) else ddp.no_sync():
            loss = loss_fn(ddp(inputs), targets) * (len(inputs) / max(1, samples))
            loss.backward()
            ddp.finish()
    if not micro_batches:
        ddp.finish()  # the other ranks wait for this one
    norm = clip_grad_norm_(ddp.module.parameters(), max_norm)  # now that all ranks have the same gradient
    optimizer.step()
    return float(norm)
