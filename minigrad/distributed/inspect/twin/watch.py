"""What a twin keeps of one rank's part in a step: its batches, and the random streams and buffers that these met."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad.arguments import as_samples
from minigrad.backend.random import get_rng_state
from minigrad.distributed.inspect.twin.alone import Micro, buffers_of
from minigrad.distributed.inspect.twin.parcels import first_tensor, pack
from minigrad.distributed.record.fingerprint import module_fingerprints
from minigrad.errors import ArgumentError
from minigrad.nn.module import Module
from minigrad.recording import is_grad_enabled, is_recomputing


class RankWatch:
    """Listens to the forwards of one rank's module, and keeps what it is told.

    Args:
        rank: For messages.
        module: What is trained.
        axis: By which samples are counted.
        begin: Called before the first forward of a step, and at the end of the step before; None calls nothing.

    Attributes:
        is_on: Whether the step is to be compared.
        is_alone: Whether the step is made alone just now, for which nobody may call the module itself.
        arrays: Those of the batches of this step.
    """

    def __init__(self, rank: int, module: Module, axis: int, begin: Callable[[], None] | None) -> None:
        self._rank, self._module, self._axis, self._begin = rank, module, axis, begin
        self._samples, self._earlier, self._last = 0.0, 0.0, 0.0  # of this step, of all before, and of the last of them
        self.is_on = self.is_alone = False
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._micros: list[Micro] = []
        self._streams: dict[str, Any] | None = None
        self._has_begun = False
        self._removal = module.register_forward_pre_hook(self._hook())

    def _hook(self) -> Callable[..., None]:
        def begin(called: Module, args: Any) -> None:  # a copy of the module has this hook too
            if called is self._module and self.is_alone:
                raise ArgumentError(
                    "Twin: expected loss_fn and before_step to use the module that they are given, got a call of the "
                    "one that is trained"
                )
            if called is self._module and self.is_on and is_grad_enabled() and not is_recomputing():
                if not self._has_begun:
                    self._take_state()
                    self._has_begun = True
                if self._streams is None:
                    self._streams = get_rng_state()

        return begin

    def begin_step(self, is_on: bool) -> None:
        """The next step begins; what the last one was told is forgotten."""
        self._earlier, self._last, self._samples = self._earlier + self._samples, self._samples, 0.0
        self._micros, self.arrays, self._streams, self._has_begun = [], [], None, False
        self.is_on = is_on
        if is_on:
            self._take_state()  # of a rank that makes no forward in the step

    def _take_state(self) -> None:
        self._buffers = buffers_of(self._module)
        if self._begin is not None:
            self._begin()

    def take(self, batch: Any, samples: float | None) -> None:
        """A batch has been through backward; see `Twin.step`.

        Raises:
            ArgumentError: no forward since the last one, or samples that can't be counted. DtypeError: something that
                can't be sent.
        """
        n = self._count(batch, samples)
        self._samples += n
        if self.is_on:
            if batch is not None and self._streams is None:
                raise ArgumentError(
                    f"rank {self._rank}: Twin: expected a forward of the wrapped module for each batch, got none since "
                    "the last one: call accumulate or step once for each batch, and let the wrapper call module(...)"
                )
            packed = None if batch is None else pack(batch, self.arrays)
            self._micros.append(Micro(n, packed, self._streams))
            self._streams = None

    def _count(self, batch: Any, samples: float | None) -> float:
        if samples is not None:
            n = as_samples("Twin", samples)
            if batch is None and n:
                raise ArgumentError(f"Twin: expected 0 samples without a batch, got {n:g}")
            return n
        if batch is None:
            return 0.0
        first = first_tensor(batch)
        if first is None or not -first.ndim <= self._axis < first.ndim:
            got = "none" if first is None else f"shape {first.shape}"
            raise ArgumentError(
                f"Twin: expected a batch whose first tensor has axis {self._axis}, to count samples, got {got}: give "
                "samples=n"
            )
        return float(first.shape[self._axis])

    def told(self) -> dict[str, Any]:
        """All of it as JSON data, but for `arrays`, to which the buffers are added."""
        buffers = pack([self._buffers, buffers_of(self._module)], self.arrays)
        return {
            "batches": [[micro.samples, micro.batch, micro.streams] for micro in self._micros],
            "buffers": buffers,
            "arrays": [[list(array.shape), array.dtype.name] for array in self.arrays],
            "earlier": [self._earlier, self._last],
            "prints": [int(each) for each in module_fingerprints(self._module, buffers=False)[1].tolist()],
        }

    def close(self) -> None:
        """Listen no more."""
        self._removal.remove()
