"""picotron's DataParallelNaive and DataParallelBucket.

Source: github.com/huggingface/picotron at 59714b1 of 2025-08-26, picotron/data_parallel/, and the loop of train.py.

It says, naive: a hook on each parameter all-reduces its gradient during backward, unless `no_sync`. Since d0efdcc of
2025-02-11 the hook is the one that PyTorch calls with the parameter, and not with the gradient as before (and as in
picotron_tutorial at 8c14c92), so that parameters are averaged, and gradients stay each rank's own.

Bucketed: gradients are added up in `main_grad`, views of flat buckets of float32 that are cut in the order of
registration; when all of a bucket are there they are divided by the number of ranks and all-reduced; at the end of
backward all are waited for, and `main_grad` becomes the gradient. After the optimizer's step `reset` empties the
buckets. Both leave the same initial values to the seed, and say nothing of buffers and unused parameters.

Here: a backward of minigrad has no callback at its end, so `finish` is that callback; float64 models get buckets of
float64, by the option that the original has for the dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from minigrad import Tensor, nn
from minigrad.distributed import Communicator, Work
from minigrad.testing.conformance import Setup
from peers.replicas import PeerReplica, gradient_of


class DataParallelNaive(nn.Module):
    """An all-reduce in the hook of each parameter, of the parameter."""

    def __init__(self, module: nn.Module, comm: Communicator) -> None:
        super().__init__()
        self.module, self.comm = module, comm
        self.require_backward_grad_sync = True
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._on_ready)

    def forward(self, *inputs: Tensor) -> Any:
        """As the module's."""
        return self.module(*inputs)

    def _on_ready(self, grad: Tensor) -> None:
        """Written for a gradient, called with a parameter."""
        if self.require_backward_grad_sync:
            self.comm.all_reduce(grad.data).wait()
            grad.data /= self.comm.world_size

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Nothing is sent."""
        self.require_backward_grad_sync = False
        yield
        self.require_backward_grad_sync = True


class Bucket:
    """Some parameters, and the flat array in which their gradients are added up."""

    def __init__(self, parameters: list[nn.Parameter], comm: Communicator, grad_type: str) -> None:
        self.parameters, self.comm = parameters, comm
        self.flat = np.zeros(sum(parameter.numel() for parameter in parameters), grad_type)
        self.ready: set[int] = set()
        self.work: Work | None = None

    def views(self) -> Iterator[tuple[nn.Parameter, Any]]:
        """Each parameter with its `main_grad`."""
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.numel()
            yield parameter, self.flat[start:stop].reshape(parameter.shape)
            start = stop

    def mark_ready(self, parameter: Tensor) -> None:
        """Note that a gradient is complete; the last one sends all."""
        assert id(parameter) not in self.ready
        self.ready.add(id(parameter))
        if len(self.ready) == len(self.parameters):
            self.flat /= self.comm.world_size
            self.work = self.comm.all_reduce(self.flat)

    def wait(self) -> None:
        """Wait for the sum."""
        assert self.work is not None, "expected an all-reduce under way before the wait for it"
        self.work.wait()

    def reset(self) -> None:
        """Forget all gradients."""
        self.work = None
        self.ready.clear()
        self.flat[:] = 0


class DataParallelBucket(DataParallelNaive):
    """Buckets that are sent during backward."""

    def __init__(
        self, module: nn.Module, comm: Communicator, bucket_cap_bytes: int = 25 * 2**20, grad_type: str = "float32"
    ) -> None:
        super().__init__(module, comm)
        self.buckets: list[Bucket] = []
        chosen: list[list[nn.Parameter]] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                held = sum(other.numel() for other in chosen[-1]) if chosen else 0
                if not chosen or (held and held + parameter.numel() > bucket_cap_bytes // 4):
                    chosen.append([])
                chosen[-1].append(parameter)
        self.buckets = [Bucket(parameters, comm, grad_type) for parameters in chosen]
        self.main_grad = {id(p): (bucket, view) for bucket in self.buckets for p, view in bucket.views()}
        self.waits = False

    def _on_ready(self, parameter: Tensor) -> None:
        """Here it is meant to get the parameter."""
        bucket, main_grad = self.main_grad[id(parameter)]
        main_grad += gradient_of(parameter)
        parameter.grad = None
        if self.require_backward_grad_sync:
            self.waits = True
            bucket.mark_ready(parameter)

    def finish(self) -> None:
        """The callback at the end of a backward that sends."""
        if not self.waits:
            return
        for bucket in self.buckets:
            bucket.wait()
        self.waits = False
        for bucket in self.buckets:
            for parameter, main_grad in bucket.views():
                parameter.grad = Tensor(main_grad.astype(parameter.data.dtype))

    def reset(self) -> None:
        """After the optimizer's step."""
        for bucket in self.buckets:
            bucket.reset()


class BucketReplica(PeerReplica):
    """A `Replica` of DataParallelBucket: float32 buckets, of float64 where a parameter is that."""

    def __init__(self, wrapper: Any, comm: Any, setup: Setup) -> None:
        wide = any(value.dtype == np.float64 for value in setup.params.values())
        super().__init__(partial(wrapper, grad_type="float64" if wide else "float32"), comm, setup)

    def gradients(self) -> dict[str, Any]:
        """See `Replica`; those of backwards that sent nothing are in `main_grad`."""
        if self._syncs:
            return super().gradients()
        held = self.peer.main_grad
        return {name: held[id(p)][1].copy() for name, p in self._model.named_parameters() if id(p) in held}

    def zero_grad(self) -> None:
        """See `Replica`."""
        super().zero_grad()
        self.peer.reset()
