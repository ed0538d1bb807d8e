"""Put a data-parallel wrapper to the conformance checks: what minigrad's own does, and what a naive one does.

    python examples/07_conformance.py [--json FILE]

A check is a fault that users of data-parallel training meet, on a linear model whose gradients one can compute by hand.
The naive wrapper below is what many would write first: after each backward, every gradient is added up over the ranks
and divided by their number. It trains well as long as all ranks have equal batches, use all parameters and stay to
the end. An adapter is what stands here, and no more; `conformance/torch_ddp.py` is one for PyTorch, in processes.
It exits with 1 where minigrad does not pass all checks, or the naive wrapper passes one of those that it should not.
"""

from __future__ import annotations

import argparse
import functools
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from minigrad.backend.dtypes import Array
from minigrad.distributed import Communicator, run
from minigrad.testing.conformance import MinigradAdapter, Setup, report
from minigrad.testing.conformance.adapter import Arrays

TIMEOUT_S = 20.0
LOSES = {"unequal_batches", "empty_batch", "unused_parameter_is_an_error", "other_names_are_refused"}


class NaiveReplica:
    """A linear model in NumPy, and the mean of all ranks' gradients."""

    def __init__(self, comm: Communicator, setup: Setup) -> None:
        self.comm, self.setup = comm, setup
        self.params = {name: value.copy() for name, value in setup.params.items()}
        self.extra = {name: value.copy() for name, value in setup.buffers.items()}
        self.grads: dict[str, Array] = {}
        for value in self.params.values():
            comm.broadcast(value).wait()

    def backward(
        self, batch: Arrays, *, samples: float | None = None, scale: float = 1.0, sync: bool = True
    ) -> None:
        """Each parameter's gradient is the mean of its array; `samples` is of no interest here."""
        if not sync:
            raise NotImplementedError("there is no accumulation")
        for name in self.params:
            columns = [batch[n] for n in (name, *self._second_names(name)) if n in batch]
            means = (column.sum(axis=0) / len(column) * scale for column in columns)
            local = sum(means, np.zeros_like(self.params[name]))
            gradient = np.ascontiguousarray(local, self.params[name].dtype)
            self.comm.all_reduce(gradient).wait()
            self.grads[name] = self.grads.get(name, 0) + gradient / self.comm.world_size

    def _second_names(self, name: str) -> list[str]:
        return [second for second, first in self.setup.tied.items() if first == name]

    def set_gradients(self, values: Arrays) -> None:
        """See `Extras`."""
        self.grads.update({name: value.copy() for name, value in values.items()})

    def gradients(self) -> dict[str, Array | None]:
        """See `Replica`."""
        return {name: self.grads[name].copy() if name in self.grads else None for name in self.params}

    def zero_grad(self) -> None:
        """See `Replica`."""
        self.grads = {}

    def clip(self, max_norm: float) -> float:
        """See `Replica`."""
        norm = float(np.sqrt(sum(float((g * g).sum()) for g in self.grads.values())))
        for gradient in self.grads.values():
            gradient *= min(1.0, max_norm / (norm + 1e-12))
        return norm

    def step(self) -> None:
        """See `Replica`."""
        for name, gradient in self.grads.items():
            self.params[name] -= self.setup.lr * (gradient + self.setup.weight_decay * self.params[name])

    def values(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: value.copy() for name, value in self.params.items()}

    def buffers(self) -> dict[str, Array]:
        """See `Replica`."""
        return {name: value.copy() for name, value in self.extra.items()}

    def set_buffers(self, values: Arrays) -> None:
        """See `Replica`."""
        self.extra = {name: value.copy() for name, value in values.items()}

    def state(self) -> dict[str, Array]:
        """See `Replica`."""
        return {**self.values(), **self.buffers()}

    def evaluate(self, batch: Arrays) -> Array:
        """See `Replica`."""
        rows = [column.reshape(len(column), -1) @ self.params[name].reshape(-1) for name, column in batch.items()]
        return np.asarray(sum(rows))

    def join(self) -> AbstractContextManager[Any]:
        """See `Replica`."""
        raise NotImplementedError("all ranks need as many batches")


class NaiveAdapter:
    """The naive wrapper on threads."""

    def __init__(self) -> None:
        self.run = functools.partial(run, timeout_s=TIMEOUT_S)

    def wrap(self, place: Communicator, setup: Setup) -> NaiveReplica:
        """One rank's replica."""
        return NaiveReplica(place, setup)


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the naive wrapper's table to this file as well")
    parser.add_argument("--smoke", action="store_true", help="for the tests; it takes seconds anyway")
    options = parser.parse_args()
    with np.errstate(all="ignore"):  # the mean of no samples, and what is too large for float16
        own, naive = report(MinigradAdapter()), report(NaiveAdapter())
    print(f"minigrad: {own}\n\n\nnaive: {naive}")
    if options.json:
        options.json.write_text(naive.to_json())
    missed = LOSES - set(naive.names("fails"))
    print(f"\nminigrad passes {len(own.names('passes'))} of {len(own.rows)}, naive {len(naive.names('passes'))}")
    return 1 if missed or len(own.names("passes")) < len(own.rows) else 0


if __name__ == "__main__":
    sys.exit(main())
