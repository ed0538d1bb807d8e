"""minigrad's own wrapper put to the checks; also the example of an adapter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed import DistributedDataParallel, ShardedOptimizer, run
from minigrad.nn.module import Module
from minigrad.nn.parameter import Buffer, Parameter
from minigrad.ops import linear
from minigrad.optim import SGD, GradScaler, Muon, Optimizer, clip_grad_norm_
from minigrad.recording import no_grad
from minigrad.tensor import Tensor
from minigrad.testing.conformance.adapter import Arrays, Setup


class LinearModel(Module):
    """The model of a `Setup`: the output of sample i is Σ over the batch of <parameter, array[i]>."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        for name, value in setup.params.items():
            setattr(self, name, Parameter(value.copy(), name not in setup.frozen))
        for second, first in setup.tied.items():
            setattr(self, second, getattr(self, first))
        for name, value in setup.buffers.items():
            setattr(self, name, Buffer(value.copy()))

    def forward(self, **batch: Tensor) -> Tensor:
        """Shapes: each (n, *shape of the parameter) -> (n,)"""
        total = Tensor(np.zeros(()))
        for name, array in batch.items():
            samples, parameter = array.shape[0], getattr(self, name)
            size = parameter.numel()
            outputs = linear(array.reshape(samples, size), parameter.reshape(1, size))
            total = total + outputs.to("float64").reshape(samples)
        return total


class MinigradReplica:
    """A `Replica` of minigrad."""

    _sharded: ShardedOptimizer | None = None

    def __init__(self, comm: Any, setup: Setup) -> None:
        model = LinearModel(setup)
        self._scaler: GradScaler | None = None
        options: dict[str, Any] = {"find_unused_parameters": setup.unused, "bucket_cap_bytes": setup.bucket_bytes}
        if setup.optimizer_first:
            self._optimizer = self._descent(model, setup)
        self._model = model
        self._ddp = DistributedDataParallel(model, comm, **options)
        if not setup.optimizer_first:
            self._optimizer = self._descent(model, setup)

    def _outputs(self, batch: Arrays) -> Tensor:
        """A forward through the wrapper."""
        outputs: Tensor = self._ddp(**{name: Tensor(array) for name, array in batch.items()})
        return outputs

    def _finish(self) -> None:
        """What is left to do after a backward: nothing."""

    def _descent(self, model: Module, setup: Setup) -> SGD:
        return SGD(model.parameters(), lr=setup.lr, weight_decay=setup.weight_decay)

    def backward(
        self, batch: Arrays, *, samples: float | None = None, scale: float = 1.0, sync: bool = True
    ) -> None:
        """See `Replica`."""
        with ExitStack() as stack:
            if samples is not None:
                stack.enter_context(self._ddp.samples(samples))
            if not sync:
                stack.enter_context(self._ddp.no_sync())
            if not batch:
                self._ddp.flush()
                return
            outputs = self._outputs(batch)
            (outputs.sum() * (scale / max(1, len(outputs)))).backward()
            self._finish()

    def backward_within(self, outer: Arrays, inner: Arrays) -> None:
        """See `Extras`."""
        first, second = (self._outputs(part).mean() for part in (outer, inner))
        started: list[Tensor] = []

        def hook(leaf: Tensor) -> None:
            if not started:
                started.append(leaf)
                second.backward()

        removes = [p.register_post_accumulate_grad_hook(hook) for p in self._model.parameters()]
        first.backward()
        self._finish()
        for remove in removes:
            remove()

    def scaled_step(self, batch: Arrays, init_scale: float) -> None:
        """See `Extras`."""
        self._scaler = self._scaler or GradScaler(init_scale)
        self.zero_grad()
        self._scaler.scale(self._outputs(batch).mean()).backward()
        self._finish()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def sharded_step(self, batch: Arrays, rule: str) -> None:
        """See `Extras`."""
        if self._sharded is None:
            plain = optimizer_of(rule, self._model, self._optimizer.param_groups[0]["lr"])
            self._sharded = ShardedOptimizer(plain, self._ddp)
        self._sharded.zero_grad()
        self.backward(batch)
        self._sharded.step()

    def state_bytes(self) -> int:
        """See `Extras`."""
        assert self._sharded is not None
        return self._sharded.state_bytes()

    def set_gradients(self, values: Arrays) -> None:
        """See `Extras`."""
        for name, value in values.items():
            getattr(self._model, name).grad = Tensor(value.copy())

    def gradients(self) -> dict[str, Array | None]:
        """See `Replica`."""
        named = self._model.named_parameters()
        return {name: None if p.grad is None else p.grad.data.copy() for name, p in named}

    def zero_grad(self) -> None:
        """See `Replica`."""
        self._optimizer.zero_grad()

    def clip(self, max_norm: float) -> float:
        """See `Replica`."""
        return float(clip_grad_norm_(self._model.parameters(), max_norm))

    def step(self) -> None:
        """See `Replica`."""
        self._optimizer.step()

    def values(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: p.data.copy() for name, p in self._model.named_parameters()}

    def buffers(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: b.data.copy() for name, b in self._model.named_buffers()}

    def set_buffers(self, values: Arrays) -> None:
        """See `Replica`."""
        for name, buffer in self._model.named_buffers():
            buffer.copy_(Tensor(values[name]))

    def state(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: value.data.copy() for name, value in self._ddp.state_dict().items()}

    def evaluate(self, batch: Arrays) -> Array:
        """See `Replica`."""
        with no_grad():
            return self._outputs(batch).data

    def join(self) -> AbstractContextManager[None]:
        """See `Replica`."""
        return self._ddp.join()


def optimizer_of(rule: str, model: Module, lr: float) -> Optimizer:
    """What `Extras.sharded_step` shares out."""
    params = list(model.parameters())
    return Muon(params, lr=lr, weight_decay=0.0) if rule == "muon" else SGD(params, lr=lr, momentum=0.9)


class MinigradAdapter:
    """DistributedDataParallel on ranks of a chosen kind.

    Args:
        run: run(body, world_size, *args) calls body(comm, *args) on every rank; threads by default.

    Example:
        >>> from minigrad.testing import conformance
        >>> conformance.means.check_unequal_batches(MinigradAdapter())
    """

    def __init__(self, run: Callable[..., list[Any]] = run) -> None:
        self.run = run

    def wrap(self, place: Any, setup: Setup) -> MinigradReplica:
        """Wrap the model of a setup; `place` is a communicator."""
        return MinigradReplica(place, setup)
