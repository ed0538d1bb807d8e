"""Ranks that run in step: each knows from the samples that are left what all others do next. Here are their epochs.

`GradientsInStep` combines gradients by DDP: a round is as many batches of each rank as the policy says, and one step of
all. `ParametersInStep` combines parameters by a `ParameterAverager`: a rank makes a step with each of its batches.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

from minigrad.distributed.balance.dispatcher import Dispatcher
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.callbacks import Callbacks
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.rank import Worker
from minigrad.train.run.saving import Saving


class Engine(Protocol):
    """What a rank of a run does."""

    def train(self) -> TrainedState:
        """Train all epochs, or until all stop; the same on all ranks."""


class InStep:
    """What both engines of ranks in step share: the epochs.

    Args:
        worker: This rank.
        run: Hears of epochs from the rank that leads in this process.
    """

    def __init__(self, worker: Worker, run: Run) -> None:
        config = worker.config
        self.worker, self.config, self.run, self.comm = worker, config, run, worker.comm
        options: dict[str, Any] = {"shares": config.shares, "epochs": config.epochs, "ledger": worker.ledger}
        self.dispatcher = Dispatcher(worker.comm, worker.pool(), config.dispatch, **options)
        self.callbacks = Callbacks(config.callbacks, worker)
        self.is_stopped = False

    def train(self) -> TrainedState:
        """See `Engine`."""
        worker = self.worker
        with self.saving:
            goes_on = self._resume()
            while worker.epoch < self.config.epochs and not self.is_stopped:
                if not goes_on:
                    self.callbacks.before_epoch()
                    worker.meter.start(worker.epoch)
                goes_on = False
                self._train_epoch()
                self._end_epoch(worker.meter.finish())
        return self._trained()

    def _resume(self) -> bool:
        """Go on from a checkpoint, where the run is to; whether that is in the middle of an epoch."""
        worker = self.worker
        inside = self.saving.resume()
        self.is_stopped = self.made_all_steps
        if worker.rank == self.run.leader and self.saving.history:
            length = len(self.config.dataset)
            self.run.resumed(self.saving.history, (worker.epoch + 1) * length - self.dispatcher.remaining)
        return inside

    def _end_epoch(self, metrics: EpochMetrics) -> None:
        worker = self.worker
        worker.epoch += 1
        self.saving.history.append(metrics)
        self.comm.event("epoch", number=metrics.epoch, loss=metrics.loss)
        self.callbacks.after_epoch(metrics)
        is_whole = self.dispatcher.epoch == worker.epoch  # else the run has ended before the epoch
        if worker.rank == self.run.leader:
            self.run.epoch(metrics, worker.epoch * len(self.config.dataset) if is_whole else 0)
        self._agree()
        if is_whole:
            self.saving.after_epoch(self.common_steps)
            if self.is_stopped:
                self.saving.stopped(self.common_steps, inside=False)

    def _train_epoch(self) -> None:
        raise NotImplementedError

    def _trained(self) -> TrainedState:
        return TrainedState.of(self.worker.model)

    def _agree(self) -> None:
        """Between two epochs: stop where a rank wants it, and go on with schedules at one step."""
        schedule = self.worker.updates.schedule
        own = [self.wants_stop, 0 if schedule is None else schedule.last_epoch]
        wishes, steps = zip(*self.comm.all_gather_object(own))
        self.is_stopped = self.is_stopped or any(wishes)
        if schedule is not None and schedule.last_epoch != max(steps):
            schedule.step(max(steps))

    @property
    def wants_stop(self) -> bool:
        """Whether somebody in this process wants the end."""
        return self.worker.wants_stop or self.run.wants_stop

    @property
    def common_steps(self) -> int:
        """The steps, or combinations, that all ranks have made."""
        return self.worker.step

    @cached_property
    def saving(self) -> Saving:
        """What keeps all of it."""
        return Saving(self.worker, self.everything())

    @property
    def made_all_steps(self) -> bool:
        """Whether max_steps were made."""
        return self.config.max_steps is not None and self.worker.step >= self.config.max_steps

    def everything(self) -> dict[str, Any]:
        """All that has a state, by name."""
        return {**self.worker.everything(), "dispatcher": self.dispatcher}
