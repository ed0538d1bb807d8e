"""Lesson 10, ours: first agree on who has what, then send; so every rank makes the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.distributed import Communicator
from minigrad.tensor import Tensor


def used_anywhere(comm: Communicator, used: Sequence[bool]) -> list[bool]:
    """For each entry, whether it is true on any rank: how many say so is more than none."""
    if not used:
        return []
    flags = Tensor(np.array(used, np.float32)).to(comm.device)
    comm.all_reduce(flags.data).wait()
    return [count > 0 for count in flags.tolist()]


class UnusedDDP:
    """Combines after backward, once the ranks know of each other who has a gradient of what."""

    def __init__(self, module: nn.Module, comm: Communicator, find_unused_parameters: bool) -> None:
        self.module, self.comm, self.find_unused = module, comm, find_unused_parameters
        self.named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]  # a tied one once
        self.samples = 0
        for param in module.parameters():
            comm.broadcast(param.data).wait()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The forward of the module."""
        self.samples += len(inputs[0])
        return self.module(*inputs)  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Agree, then combine."""
        has = [self.samples > 0 and param.grad is not None for _, param in self.named]
        lacks = [self.samples > 0 and not here for here in has]
        answers = used_anywhere(self.comm, has + lacks)
        used, lacking = answers[: len(has)], answers[len(has) :]
        count = Tensor(np.array([self.samples], np.float64)).to(self.comm.device)
        self.comm.all_reduce(count.data).wait()
        total, samples, self.samples = count.item(), self.samples, 0
        if any(lacking) and not self.find_unused:
            names = [name for (name, _), gone in zip(self.named, lacking) if gone]
            raise RuntimeError(f"no gradient on some rank for {', '.join(names)}: set find_unused_parameters=True")
        for (_, param), anywhere in zip(self.named, used):
            if anywhere and total > 0:
                grad = param.new_zeros(param.shape) if param.grad is None or not samples else param.grad
                flat = grad.data.reshape(-1) * param.dtype.type(samples / total)
                self.comm.all_reduce(flat).wait()
                param.grad = Tensor(flat.reshape(param.shape))


def get_ddp_unused(module: nn.Module, comm: Communicator, find_unused_parameters: bool = False) -> Any:
    """The wrapper."""
    return UnusedDDP(module, comm, find_unused_parameters)
