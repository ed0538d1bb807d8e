"""Lesson 5, solved."""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.distributed import Communicator
from minigrad.nn import Module
from minigrad.tensor import Tensor


class NaiveDdp:
    """A module whose gradients are combined after backward, parameter by parameter."""

    def __init__(self, module: Module, comm: Communicator) -> None:
        self.module, self._comm, self._samples = module, comm, 0
        for tensor in [*module.parameters(), *module.buffers()]:
            comm.broadcast(tensor.data, 0).wait()

    def __call__(self, *inputs: Tensor) -> Any:
        """The module's forward; it notes how many samples this rank has."""
        self._samples = len(inputs[0])
        return self.module(*inputs)

    def finish(self) -> None:
        """Combine the gradients: Σ n_r·g_r / Σ n_r."""
        total = np.array([self._samples], np.float64)
        self._comm.all_reduce(total).wait()
        weight = self._samples / max(1.0, float(total[0]))
        for name, parameter in self.module.named_parameters():
            if not parameter.requires_grad:
                continue
            if self._samples == 0:
                parameter.grad = Tensor(np.zeros_like(parameter.data))  # it may have none
            assert parameter.grad is not None, f"{name} has no gradient: the loss does not depend on it"
            parameter.grad.data *= weight  # before the sum, which could overflow in float16
            self._comm.all_reduce(parameter.grad.data).wait()
        self._samples = 0


def get_ddp_naive(module: Module, comm: Communicator) -> Any:
    """See NaiveDdp."""
    return NaiveDdp(module, comm)


def latency_bill_s(
    parameters: int, nbytes: int, latency_s: float, bandwidth_bytes_s: float, world_size: int
) -> tuple[float, float]:
    """(P + 1) calls of 2 (W - 1) messages each; of all bytes 2 (W - 1) / W."""
    messages = 2 * (world_size - 1)
    return (parameters + 1) * messages * latency_s, messages * (nbytes + 8) / world_size / bandwidth_bytes_s
