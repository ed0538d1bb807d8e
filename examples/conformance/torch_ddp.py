"""PyTorch's DistributedDataParallel put to the conformance checks: gloo, each rank a process.

    pip install torch --index-url https://download.pytorch.org/whl/cpu
    python examples/conformance/torch_ddp.py [--json FILE] [NAME ...]

Prints the table. It is also the example of an adapter for a wrapper that is not ours. What the wrapper does not have
raises NotImplementedError; where it has options, they are those that its users would set for what a check wants.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from minigrad.backend.dtypes import Array
from minigrad.testing.conformance import CHECKS, Processes, Setup, report
from minigrad.testing.conformance.adapter import Arrays

TIMEOUT_S = 8.0  # of a collective, after which gloo raises
RUN_S = 60.0  # of a run; the first one has the imports of PyTorch in it


@contextmanager
def world() -> Iterator[Any]:
    """A rank of gloo, from the environment."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    try:
        yield SimpleNamespace(rank=dist.get_rank())
    finally:
        dist.destroy_process_group()


class LinearModel(torch.nn.Module):
    """The model of a `Setup`: the output of sample i is Σ over the batch of <parameter, array[i]>."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        for name, value in setup.params.items():
            parameter = torch.nn.Parameter(torch.tensor(value), requires_grad=name not in setup.frozen)
            self.register_parameter(name, parameter)
        for second, first in setup.tied.items():
            self.register_parameter(second, getattr(self, first))
        for name, value in setup.buffers.items():
            self.register_buffer(name, torch.tensor(value))

    def forward(self, batch: dict[str, Any]) -> Any:
        """Shapes: each (n, *shape of the parameter) -> (n,)"""
        total = torch.zeros((), dtype=torch.float64)
        for name, array in batch.items():
            outputs = (array * getattr(self, name)).flatten(1).sum(dim=1)
            total = total + outputs.to(torch.float64)
        return total


class TorchReplica:
    """A `Replica` of PyTorch."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._model = setup, LinearModel(setup)
        self._scaler: Any = None
        optimizer = self._descent() if setup.optimizer_first else None
        cap = {} if setup.bucket_bytes is None else {"bucket_cap_mb": setup.bucket_bytes / 2**20}
        self._ddp = DistributedDataParallel(self._model, find_unused_parameters=setup.unused, **cap)
        self._optimizer = optimizer if optimizer is not None else self._descent()

    def _descent(self) -> Any:
        return torch.optim.SGD(self._model.parameters(), lr=self._setup.lr, weight_decay=self._setup.weight_decay)

    def backward(
        self, batch: Arrays, *, samples: float | None = None, scale: float = 1.0, sync: bool = True
    ) -> None:
        """See `Replica`."""
        if samples is not None:
            raise NotImplementedError("DistributedDataParallel does not weigh ranks")
        with nullcontext() if sync else self._ddp.no_sync():
            outputs = self._ddp({name: torch.tensor(array) for name, array in batch.items()})
            if outputs.requires_grad:  # a loss that reaches no parameter has no backward
                (scale * outputs.mean()).backward()

    def backward_within(self, outer: Arrays, inner: Arrays) -> None:
        """See `Extras`."""
        first, second = (
            self._ddp({name: torch.tensor(array) for name, array in part.items()}).mean() for part in (outer, inner)
        )
        started: list[Any] = []

        def hook(leaf: Any) -> None:
            if not started:
                started.append(leaf)
                second.backward()

        handles = [p.register_post_accumulate_grad_hook(hook) for p in self._model.parameters()]
        first.backward()
        for handle in handles:
            handle.remove()

    def scaled_step(self, batch: Arrays, init_scale: float) -> None:
        """See `Extras`."""
        self._scaler = self._scaler or torch.amp.GradScaler("cpu", init_scale=init_scale)
        self.zero_grad()
        outputs = self._ddp({name: torch.tensor(array) for name, array in batch.items()})
        self._scaler.scale(outputs.mean()).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def set_gradients(self, values: Arrays) -> None:
        """See `Extras`."""
        for name, value in values.items():
            getattr(self._model, name).grad = torch.tensor(value)

    def gradients(self) -> dict[str, Array | None]:
        """See `Replica`."""
        named = self._model.named_parameters()
        return {name: None if p.grad is None else p.grad.numpy().copy() for name, p in named}

    def zero_grad(self) -> None:
        """See `Replica`."""
        self._optimizer.zero_grad()

    def clip(self, max_norm: float) -> float:
        """See `Replica`."""
        return float(torch.nn.utils.clip_grad_norm_(self._ddp.parameters(), max_norm))

    def step(self) -> None:
        """See `Replica`."""
        self._optimizer.step()

    def values(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: p.detach().numpy().copy() for name, p in self._model.named_parameters()}

    def buffers(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: b.numpy().copy() for name, b in self._model.named_buffers()}

    def set_buffers(self, values: Arrays) -> None:
        """See `Replica`."""
        for name, buffer in self._model.named_buffers():
            buffer.copy_(torch.tensor(values[name]))

    def state(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: value.numpy().copy() for name, value in self._ddp.state_dict().items()}

    def evaluate(self, batch: Arrays) -> Array:
        """See `Replica`."""
        with torch.no_grad():
            outputs: Array = self._ddp({name: torch.tensor(array) for name, array in batch.items()}).numpy()
        return outputs

    def join(self) -> AbstractContextManager[Any]:
        """See `Replica`."""
        joined: AbstractContextManager[Any] = self._ddp.join(divide_by_initial_world_size=False)
        return joined


class TorchAdapter:
    """DistributedDataParallel on processes."""

    timeout_s = 2 * RUN_S

    def __init__(self) -> None:
        # the second is what the constructor of the wrapper imports; all else would be imported by each rank anew
        preload = ["torch", "torch._dynamo", "minigrad.testing.conformance"]
        self.run: Callable[..., Any] = Processes(world, RUN_S, preload=preload)

    def wrap(self, place: Any, setup: Setup) -> TorchReplica:
        """Wrap the model of a setup."""
        return TorchReplica(setup)


def main() -> int:
    """Print the table, and write it as JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="checks, without check_; all by default")
    parser.add_argument("--json", type=Path, help="write the table to this file as well")
    options = parser.parse_args()
    wanted = [c for c in CHECKS if not options.names or c.__name__.removeprefix("check_") in options.names]
    found = report(TorchAdapter(), wanted)
    print(f"PyTorch {torch.__version__}, gloo, processes\n{found}")
    if options.json:
        options.json.write_text(found.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
