"""Lesson 10, the picture: one backward in which rank 1 leaves west out, under three wrappers, sum by sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.course.counting import Counting
from minigrad.course.drawing import Cell, grid
from minigrad.course.lesson10_unused.solution import get_ddp_unused
from minigrad.distributed import Communicator, run
from minigrad.tensor import Tensor

_SUMS = ["who has what", "samples", "east", "west"]  # of our solution, in its order


class TwoBranches(nn.Module):
    """Two branches; a forward uses one or both."""

    def __init__(self) -> None:
        super().__init__()
        self.east, self.west = nn.Parameter(np.ones(1)), nn.Parameter(np.ones(1))

    def forward(self, x: Tensor, both: bool) -> Tensor:
        """Shapes: (n, 1) -> (n, 1)"""
        return x * self.east + 100.0 * x * self.west if both else x * self.east


class FromHooks:
    """Sends a gradient as soon as it is complete, and knows nothing of those that never will be.

    Attributes:
        sent: The names of what was sent, in order.
    """

    def __init__(self, module: nn.Module, comm: Communicator) -> None:
        self.module, self.comm, self.works, self.sent = module, comm, list[Any](), list[str]()
        for name, param in module.named_parameters():
            param.register_post_accumulate_grad_hook(partial(self._send, name))

    def _send(self, name: str, param: nn.Parameter) -> None:
        self.sent.append(name)
        assert param.grad is not None
        param.grad.data[...] /= self.comm.world_size
        self.works.append(self.comm.all_reduce(param.grad.data))

    def __call__(self, *inputs: Any) -> Tensor:
        """The forward of the module."""
        return self.module(*inputs)  # type: ignore[no-any-return]

    def finish(self) -> None:
        """Wait for what was sent."""
        while self.works:
            self.works.pop(0).wait()


def one_backward(make: Callable[..., Any]) -> list[tuple[list[str], str]]:
    """A backward on two ranks, of which rank 1 uses east alone; the gradients should be 5.5 and 50.

    Args:
        make: A wrapper, of a module and a communicator.

    Returns:
        For each rank the names of what it sent, and its gradients, or the name of the error that it ended with.
    """

    def body(comm: Communicator) -> tuple[list[str], str]:
        counting, module = Counting(comm), TwoBranches()
        ddp = make(module, counting)
        try:
            ddp(Tensor(np.full((2, 1), 10.0**comm.rank)), comm.rank == 0).mean().backward()
            ddp.finish()
            gradients = [f"{name} {p.grad.item():g}" for name, p in module.named_parameters() if p.grad is not None]
            end = ", ".join(gradients)
        except Exception as error:
            end = type(error).__name__
        return getattr(ddp, "sent", _SUMS)[: counting.kinds.count("all_reduce")], end

    return run(body, 2, timeout_s=5.0)


def picture() -> str:
    """Two ranks, three wrappers."""
    wrappers: dict[str, Callable[..., Any]] = {
        "from hooks": FromHooks,
        "agrees": get_ddp_unused,
        "find_unused": lambda module, comm: get_ddp_unused(module, comm, True),
    }
    rows, cells = list[str](), list[list[Cell]]()
    for name, make in wrappers.items():
        seen = one_backward(make)
        least = min(len(sent) for sent, _ in seen)
        for rank, (sent, end) in enumerate(seen):
            rows.append(f"{name}, rank {rank}")
            sums: list[Cell] = [(what, "all_reduce") for what in sent[:least]]
            sums += [(f"{what}: waits", "waiting") for what in sent[least:]]
            sums += [("", "")] * (len(_SUMS) - len(sums))
            kind = {"east 5.5, west 50": "right", "RuntimeError": "refused"}.get(end, "wrong")
            cells.append([*sums, (end, kind)])
    columns = [*(f"sum {i + 1}" for i in range(len(_SUMS))), "ends with"]
    return grid("Rank 1 leaves west out of its backward", rows, columns, cells)
