"""What ranks in step do where one of them raises: all go back to the step before, write it down, and end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.errors import DistributedError, RankFailedError
from minigrad.train.run.config import WHO
from minigrad.train.run.rank import Worker
from minigrad.train.run.remembered import BuffersOf, Remembered
from minigrad.train.run.saving import Saving


class Failures:
    """Ends a run of ranks that combine gradients where a rank raises in a step, behind a checkpoint that all write.

    A rank that raises before its backward has begun, in train_fn say or in reading samples, takes part in the step
    with nothing, and tells the others where all agree on it: then nobody makes the step. Whoever raises later, or dies,
    breaks the communicator, and the last checkpoint is that which was due.

    Args:
        worker: This rank.
        ddp: What combines.
        saving: Where steps count, it writes.
    """

    def __init__(self, worker: Worker, ddp: DistributedDataParallel, saving: Saving) -> None:
        self._worker, self._ddp, self._saving = worker, ddp, saving
        self._objects = {
            "buffers": BuffersOf(worker.model),
            "meter": worker.meter,
            "ledger": worker.ledger,
            "ddp": _Beside(ddp),
        }
        self._kept: Remembered | None = None

    def begin(self) -> None:
        """A step begins: keep what its forward changes."""
        self._kept = Remembered(self._objects) if self._saving.by_step else None

    def take_part(self, error: Exception) -> Exception:
        """What this rank raised, for which it now takes part in the step with nothing.

        Raises:
            Exception: it, where the others can't be told in this way, or have heard of it.
        """
        if self._kept is None or isinstance(error, DistributedError):
            raise error
        try:
            self._ddp.flush()
        except Exception:
            raise error from None
        return error

    def end(self, error: Exception | None) -> NoReturn:
        """All ranks end; this one by its error, if it has one.

        Raises:
            Exception: it; what went wrong in telling the others or in writing is its context. RankFailedError: another
                rank's, in words.
        """
        worker = self._worker
        worker.drop_gradients()
        try:
            told = worker.comm.all_gather_object(None if error is None else f"{type(error).__name__}: {error}")
            if self._kept is not None:
                self._kept.put_back()
            self._saving.stopped(worker.step)
        except Exception:
            if error is None:
                raise
            raise error  # noqa: B904  # its own comes first, and has the other as its context
        if error is not None:
            raise error
        rank, words = next((rank, words) for rank, words in enumerate(told) if words is not None)
        raise RankFailedError(
            f"rank {worker.rank}: {WHO}: expected rank {rank} to make step {worker.step + 1}, got {words}"
        )


class _Beside:
    """What a wrapper keeps beside its state_dict, as an object with a state."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = ddp

    def state_dict(self) -> dict[str, Any]:
        """By name."""
        return {name: getattr(self._ddp, name) for name in self._ddp.kept_beside}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put it back."""
        for name, value in state.items():
            setattr(self._ddp, name, value)
