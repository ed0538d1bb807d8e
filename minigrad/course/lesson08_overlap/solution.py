"""Lesson 8, our own."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.distributed import Communicator, Work
from minigrad.recording import is_grad_enabled
from minigrad.tensor import Tensor


class Overlapped:
    """A module whose gradients travel, bucket by bucket, while backward computes the next ones."""

    def __init__(self, module: nn.Module, comm: Communicator, bucket_cap_bytes: int) -> None:
        self.module, self.comm = module, comm
        self.total = comm.empty(1, "float64")  # an array of the device that the communicator is on
        for tensor in [*module.parameters(), *module.buffers()]:
            comm.broadcast(tensor.data).wait()
        self.buckets: list[list[nn.Parameter]] = []
        for param in reversed([param for param in module.parameters() if param.requires_grad]):
            if self.buckets and sum(other.data.nbytes for other in [*self.buckets[-1], param]) <= bucket_cap_bytes:
                self.buckets[-1].append(param)
            else:
                self.buckets.append([param])
        for index, bucket in enumerate(self.buckets):
            for param in bucket:
                param.register_post_accumulate_grad_hook(partial(self._complete, index))

    def __call__(self, *inputs: Tensor) -> Any:
        """Forward; the number of samples of all ranks is summed meanwhile."""
        if is_grad_enabled():
            self.samples = len(inputs[0])
            self.total[:] = self.samples
            self.counting = self.comm.all_reduce(self.total)
            self.missing = [len(bucket) for bucket in self.buckets]
            self.under_way: list[tuple[Any, Work]] = []
        return self.module(*inputs)

    def _complete(self, index: int, param: Tensor) -> None:
        """One more gradient of a bucket is complete: launch what can go now, in order of index."""
        self.missing[index] -= 1
        while len(self.under_way) < len(self.buckets) and self.missing[len(self.under_way)] == 0:
            self._launch(self.buckets[len(self.under_way)])

    def _launch(self, bucket: list[nn.Parameter]) -> None:
        flat = np.concatenate([gradient(param).reshape(-1) for param in bucket])
        if self.samples:
            flat *= self.samples
        else:
            flat[:] = 0.0  # they may be NaN, and so would 0 * NaN be
        self.under_way.append((flat, self.comm.all_reduce(flat)))

    def finish(self) -> None:
        """Wait for all buckets, and put the gradients of the mean over all samples in their places."""
        self.counting.wait()
        for bucket, (flat, work) in zip(self.buckets, self.under_way):
            work.wait()
            flat /= self.total.item()
            start = 0
            for param in bucket:
                gradient(param)[...] = flat[start : start + param.numel()].reshape(param.shape)
                start += param.numel()


def gradient(param: nn.Parameter) -> Any:
    """The array of a gradient, which backward has left there."""
    assert param.grad is not None
    return param.grad.data


def get_ddp_overlapped(module: nn.Module, comm: Communicator, *, bucket_cap_bytes: int = 25 * 1024 * 1024) -> Any:
    """Make a wrapper whose buckets travel while backward still runs."""
    return Overlapped(module, comm, bucket_cap_bytes)
