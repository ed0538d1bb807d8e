"""What CS336 asks its students for: data-parallel training as one would write it first, and overlapped.

Source: Stanford CS336, spring 2026, assignment 2 (systems), handout 26.1.1 of 2026-04-20, sections 5.2 and 5.3.2, with
tests/adapters.py and tests/test_ddp.py of github.com/stanford-cs336/assignment2-systems at 9d95f3b. No solution of it
was read.

It says: parameters are broadcast from rank 0; each of d ranks gets n / d samples; after backward an all-reduce of each
gradient averages it. Overlapped: a hook launches the all-reduce of a gradient as soon as that is complete, and
`finish_gradient_synchronization` waits before the optimizer's step. Parameters that require no gradient are left alone.

It leaves open, and here is done: the average is the sum divided by the number of ranks; a parameter without gradient is
given to the all-reduce all the same, which raises, or overlapped is never sent; buffers are each rank's own; the
container keeps the model as `module`; there is no accumulation, and nothing for unused parameters or unequal data.
"""

from __future__ import annotations

from typing import Any

from minigrad import Tensor, nn
from minigrad.distributed import Communicator, Work
from peers.replicas import gradient_of


class Naive(nn.Module):
    """Section 5.2: one all-reduce for each parameter, after backward."""

    def __init__(self, module: nn.Module, comm: Communicator) -> None:
        super().__init__()
        self.module, self.comm = module, comm
        for parameter in module.parameters():
            comm.broadcast(parameter.data).wait()

    def forward(self, *inputs: Tensor) -> Any:
        """As the module's."""
        return self.module(*inputs)

    def finish(self) -> None:
        """After backward, before the optimizer's step."""
        for parameter in self.module.parameters():
            if parameter.requires_grad:
                gradient = gradient_of(parameter)
                self.comm.all_reduce(gradient).wait()
                gradient /= self.comm.world_size


class Overlapped(Naive):
    """Section 5.3.2: the all-reduce of a gradient is under way while backward computes the next one."""

    def __init__(self, module: nn.Module, comm: Communicator) -> None:
        super().__init__(module, comm)
        self.under_way: list[tuple[Work, Any]] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._launch)

    def _launch(self, parameter: Tensor) -> None:
        gradient = gradient_of(parameter)
        self.under_way.append((self.comm.all_reduce(gradient), gradient))

    def finish(self) -> None:
        """The handout's `finish_gradient_synchronization`."""
        for work, gradient in self.under_way:
            work.wait()
            gradient /= self.comm.world_size
        self.under_way = []
