"""A wrapper of the course, or minigrad's own, put to the conformance checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from minigrad.arguments import as_real
from minigrad.distributed import DistributedDataParallel, run
from minigrad.errors import ArgumentError
from minigrad.tensor import Tensor
from minigrad.testing.conformance.adapter import Arrays, Setup
from minigrad.testing.conformance.own import LinearModel, MinigradReplica

MakeWrapper = Callable[..., Any]
RANK_S = 5.0  # that a rank is waited for in a check
RUN_S = 10.0  # of one run of a check


class Positional(LinearModel):
    """The model of a `Setup`, called with arrays in the order of `reads`: a wrapper counts samples by the first."""

    reads: tuple[str, ...] = ()

    def forward(self, *arrays: Tensor) -> Tensor:  # type: ignore[override]
        """Shapes: each (n, *shape of the parameter) -> (n,)"""
        return super().forward(**dict(zip(self.reads, arrays)))


class WrapperReplica(MinigradReplica):
    """A `Replica` of what a wrapper made."""

    _syncs = True  # whether the backward under way is to be finished

    def __init__(self, wrapper: MakeWrapper, comm: Any, setup: Setup) -> None:
        self._scaler = None
        self._model = Positional(setup)
        options: dict[str, Any] = {}
        if setup.bucket_bytes is not None and takes(wrapper, "bucket_cap_bytes"):
            options["bucket_cap_bytes"] = setup.bucket_bytes
        if setup.unused:
            if not takes(wrapper, "find_unused_parameters"):
                raise NotImplementedError("the wrapper has no option find_unused_parameters")
            options["find_unused_parameters"] = True
        if setup.optimizer_first:
            self._optimizer = self._descent(self._model, setup)
        self._ddp = wrapped(wrapper, self._model, comm, **options)
        if not setup.optimizer_first:
            self._optimizer = self._descent(self._model, setup)

    def backward(
        self, batch: Arrays, *, samples: float | None = None, scale: float = 1.0, sync: bool = True
    ) -> None:
        """See `Replica`."""
        for asked, name in ((samples is not None, "samples"), (not batch, "flush"), (not sync, "no_sync")):
            if asked:
                self._offered(name)
        self._syncs = sync
        super().backward(batch, samples=samples, scale=scale, sync=sync)

    def _outputs(self, batch: Arrays) -> Tensor:
        self._model.reads = tuple(batch)
        outputs: Tensor = self._ddp(*(Tensor(array) for array in batch.values()))
        return outputs

    def _finish(self) -> None:
        if self._syncs:
            finish_step(self._ddp)

    def sharded_step(self, batch: Arrays, rule: str) -> None:
        """See `Extras`."""
        if not isinstance(self._ddp, DistributedDataParallel):
            raise NotImplementedError("the wrapper has no optimizer whose state is shared out over the ranks")
        super().sharded_step(batch, rule)

    def state(self) -> dict[str, Any]:
        """See `Replica`."""
        return {name: value.data.copy() for name, value in self._offered("state_dict")().items()}

    def join(self) -> AbstractContextManager[None]:
        """See `Replica`."""
        joined: AbstractContextManager[None] = self._offered("join")()
        return joined

    def _offered(self, name: str) -> Callable[..., Any]:
        if not hasattr(self._ddp, name):
            raise NotImplementedError(f"the wrapper has no {name}()")
        method: Callable[..., Any] = getattr(self._ddp, name)
        return method


class WrapperAdapter:
    """A wrapper, `get_ddp(module, comm, **options)`, on ranks of a chosen kind.

    What it returns is called as the module is, with n samples along the first axis of the first input. After a
    backward its `finish()` is called, where it has that; under its `no_sync()` a backward stays local, and finish is
    not called. The options that it takes are given to it: bucket_cap_bytes and find_unused_parameters. What it does
    not have, `samples`, `flush`, `join` and `state_dict` of minigrad's own among it, is not offered.

    Args:
        wrapper: It, or a class like DistributedDataParallel.
        run: run(body, world_size, *args) calls body(comm, *args) on every rank; threads by default.
        timeout_s: Of a run, > 0; a rank that has not ended by then is out of time.

    Raises:
        ArgumentError: an argument is none of these.

    Example:
        >>> from minigrad.distributed import DDP
        >>> from minigrad.testing import WrapperAdapter, conformance
        >>> conformance.means.check_unequal_batches(WrapperAdapter(DDP))
    """

    def __init__(
        self, wrapper: MakeWrapper, run: Callable[..., Any] | None = None, timeout_s: float = RUN_S
    ) -> None:
        if not callable(wrapper):
            raise ArgumentError(f"WrapperAdapter: expected a function that wraps a module, got {wrapper!r:.100}")
        if run is not None and not callable(run):
            raise ArgumentError(f"WrapperAdapter: expected run as a function, got {run!r:.100}")
        self.wrapper = wrapper
        self.timeout_s = as_real("WrapperAdapter", "timeout_s", timeout_s, above=0.0, finite=True)
        self.run = run if run is not None else self._on_threads

    def _on_threads(self, body: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
        return run(body, world_size, *args, timeout_s=min(RANK_S, self.timeout_s / 2))

    def wrap(self, place: Any, setup: Setup) -> WrapperReplica:
        """Wrap the model of a setup; `place` is a communicator."""
        return WrapperReplica(self.wrapper, place, setup)


def wrapped(wrapper: MakeWrapper, module: Any, comm: Any, **options: Any) -> Any:
    """What a wrapper makes.

    Raises:
        TypeError: nothing that can be called.
    """
    ddp = wrapper(module, comm, **options)
    if not callable(ddp):
        raise TypeError(f"the wrapper: expected an object to call as forward, got {ddp!r:.100}")
    return ddp


def finish_step(ddp: Any) -> None:
    """Do what a wrapper has left to do after a backward."""
    if hasattr(ddp, "finish"):
        ddp.finish()


def takes(wrapper: MakeWrapper, option: str) -> bool:
    """Whether a wrapper can be given an option by name."""
    try:
        known = inspect.signature(wrapper).parameters.values()
    except (TypeError, ValueError):  # no signature to be had: of a builtin
        return False
    return any(p.kind is p.VAR_KEYWORD or p.name == option for p in known)
