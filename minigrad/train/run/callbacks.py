"""What a run calls between epochs, on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.errors import ArgumentError
from minigrad.train.checkpoint import Checkpoint
from minigrad.train.epoch import EpochMetrics

_TIMES = ("before_epoch", "after_epoch")


def check_callbacks(who: str, callbacks: Any, resume: bool) -> tuple[Any, ...]:
    """Callbacks, each of which a run knows when to call.

    Raises:
        ArgumentError: one that is no function and has none of the names that are called; several `Checkpoint`s, or none
            to resume from.
    """
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        raise ArgumentError(f"{who}: expected callbacks as a list, got {callbacks!r:.100}")
    checkpoints = sum(isinstance(each, Checkpoint) for each in callbacks)
    if checkpoints > 1:
        raise ArgumentError(f"{who}: expected at most one Checkpoint among callbacks, got {checkpoints}")
    if resume and not checkpoints:
        raise ArgumentError(f"{who}: expected a Checkpoint among callbacks with resume=True, got none")
    for callback in callbacks:
        known = isinstance(callback, Checkpoint) or any(callable(getattr(callback, name, None)) for name in _TIMES)
        if isinstance(callback, type) or not (known or callable(callback)):
            raise ArgumentError(
                f"{who}: expected callbacks as functions of (metrics, worker), or objects with before_epoch(worker) or "
                f"after_epoch(metrics, worker), got {callback!r:.100}"
            )
    return tuple(callbacks)


class Callbacks:
    """Calls those of a rank, in their order.

    Args:
        worker: They are given it.
    """

    def __init__(self, callbacks: Sequence[Any], worker: Any) -> None:
        self._worker = worker
        self._before = [each.before_epoch for each in callbacks if hasattr(each, "before_epoch")]
        self._after: list[Callable[[EpochMetrics, Any], object]] = []
        for each in callbacks:
            if isinstance(each, Checkpoint):  # all ranks meet there: see `Saving`
                continue
            if hasattr(each, "after_epoch"):
                self._after.append(each.after_epoch)
            elif not hasattr(each, "before_epoch"):
                self._after.append(each)

    def before_epoch(self) -> None:
        """An epoch begins: `worker.epoch` is its number."""
        for call in self._before:
            call(self._worker)

    def after_epoch(self, metrics: EpochMetrics) -> None:
        """An epoch is over; `worker.epoch` is the number of the next one."""
        for call in self._after:
            call(metrics, self._worker)
