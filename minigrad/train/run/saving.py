"""Saving: what a rank does with the `Checkpoint` of its run: when it writes, what is kept, and how a run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from minigrad.backend.random import get_rng_state, set_rng_state
from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.bundle import facts_in
from minigrad.nn.bundle_ranks import together
from minigrad.train.checkpoint import Checkpoint
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.elsewhere import adopt
from minigrad.train.run.rank import Worker
from minigrad.train.run.same_run import PLAIN, check_engine, go_on, options_of, states_of_callbacks, told_in


class Saving:
    """What a rank does with the checkpoint of its run; nothing where there is none.

    As a context it waits at the end until the last one is on the disk, if all went well.

    Args:
        worker: This rank.
        everything: All that has a state, by name; the same names on all ranks.

    Attributes:
        history: The figures of the epochs that are over, those before a resume too.
    """

    def __init__(self, worker: Worker, everything: Mapping[str, Any]) -> None:
        self._worker, self.history = worker, list[EpochMetrics]()
        self._own = checkpoint_of(worker.config)
        self._objects = {**everything, **states_of_callbacks(worker.config)}
        self._options = options_of(worker)

    def __enter__(self) -> Saving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.__exit__(kind, error, trace)

    @property
    def by_step(self) -> bool:
        """Whether steps count, and not only epochs."""
        return self._own is not None and self._own.on == "step"

    # --------------------------------------------------------------------------------------------------- resuming

    def resume(self) -> bool:
        """Go on from the newest checkpoint, where the run is to; all ranks call it, before anything else.

        Returns:
            Whether there was one, and it is of the middle of an epoch.

        Raises:
            ArgumentError: there are checkpoints, and the run is not to go on from them.
            Exception: see `Checkpoint.load_latest`.
        """
        worker, own = self._worker, self._own
        if own is None:
            return False
        saved_by = self._ranks_of_latest(own)
        if saved_by is None:
            return False
        check_folder(worker.config, own.dir)
        if saved_by == worker.world_size:
            told = told_in(self._filled(own))
        else:
            saved = own.load_latest(every_rank=True)
            told = told_in(saved[0])
            check_engine(worker.config, told)
            adopt(self._objects, saved, worker.rank)
            set_rng_state(told["streams"])  # this rank's own, as far as that one's
        go_on(worker, told)
        self._options["seed"] = told["options"]["seed"]
        worker.epoch, worker.step, worker.rounds = told["epoch"], told["step"], told["rounds"]
        self.history = [EpochMetrics.from_json(text) for text in told["history"]]
        inside: bool = told["inside"]
        return inside

    def _filled(self, own: Checkpoint) -> Any:
        try:
            return own.load_latest(into=self._objects)
        except StateDictError as error:
            raise StateDictError(f"{error}: resume with the options that the run had") from error

    def _ranks_of_latest(self, own: Checkpoint) -> int | None:
        """How many ranks have saved the newest; None where there is none."""
        comm = self._worker.comm

        def look() -> int | None:
            path = own.latest() if comm.rank == 0 else None
            return None if path is None else int(facts_in(path)["world_size"])

        found = together(comm, WHO, look)
        told: int | None = comm.all_gather_object(found)[0]
        return told

    # ---------------------------------------------------------------------------------------------------- writing

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be written now that all ranks have made so many steps; the same on all of them."""
        return self.by_step and self._own is not None and self._own.is_due(step)

    def between_steps(self, step: int) -> None:
        """Write one where it is due; all ranks call it, between the same two steps."""
        if self.is_due(step):
            self._write(step, inside=True)

    def after_epoch(self, step: int) -> None:
        """The same behind an epoch."""
        own = self._own
        if own is None:
            return
        number = step if own.on == "step" else self._worker.epoch
        if own.is_due(number):
            self._write(number)

    def stopped(self, step: int, inside: bool = True) -> None:
        """The run ends before its end, between two steps: write the state, where steps count.

        Args:
            inside: Whether that is inside an epoch.
        """
        if self.by_step and self._own is not None and step > (self._own.number or 0):
            self._write(step, inside=inside)

    def _write(self, number: int, inside: bool = False) -> None:
        assert self._own is not None
        worker = self._worker
        told = {
            "epoch": worker.epoch,
            "step": worker.step,
            "rounds": worker.rounds,
            "inside": inside,
            "history": [metrics.to_json() for metrics in self.history],
            "streams": get_rng_state(),
            "options": self._options,
        }
        with worker.span("checkpoint"):
            path = self._own.save({**self._objects, PLAIN: told}, number)
        worker.comm.event("checkpoint", number=number, path=str(path))


def checkpoint_of(config: RunConfig) -> Checkpoint | None:
    """One more with the options of that among the callbacks, for a rank of its own; None where there is none."""
    given = next((each for each in config.callbacks if isinstance(each, Checkpoint)), None)
    if given is None:
        return None
    return Checkpoint(given.dir, given.every, given.keep, on=given.on, background=given.background)


def check_folder(config: RunConfig, found: Path) -> None:
    """Refuse a run that is not to go on from the checkpoints that there are; ArgumentError."""
    if not config.resume:
        raise ArgumentError(
            f"{WHO}: expected a folder without checkpoints, got {found}, which has some: write resume=True to go on "
            "from there, or name another folder"
        )
