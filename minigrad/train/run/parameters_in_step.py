"""The engine of ranks in step that combine parameters: by a `ParameterAverager`, and steps of each rank's own."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any

from minigrad.data.order import Indices
from minigrad.distributed.average.policies import Cadence
from minigrad.distributed.average.report import AverageReport
from minigrad.errors import StateDictError
from minigrad.train.run.averaging import averager_of
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.in_step import InStep
from minigrad.train.run.rank import Worker


class ParametersInStep(InStep):
    """Ranks that make steps of their own, and combine their parameters.

    Attributes:
        averager: What combines.
    """

    def __init__(self, worker: Worker, run: Run) -> None:
        super().__init__(worker, run)
        config = self.config
        given = (config.when, config.outer, config.guard, config.average_options)
        self.averager = averager_of(worker.model, worker.comm, worker.optimizer, *given, timeline=worker.timeline)
        self.averager.keep(worker.ledger)
        self._combinations = 0

    @property
    def common_steps(self) -> int:
        """See `InStep.common_steps`."""
        return self._combinations

    def _counts(self) -> tuple[int, ...]:
        """The batches of each rank until the dispatcher is asked again; by the first ones parts may be divided."""
        if isinstance(self.config.when, Cadence):
            counts: tuple[int, ...] = self.averager.policy_state.el_che.batch_counts
            return counts
        return (1,) * self.worker.world_size

    def _train_epoch(self) -> None:
        worker = self.worker
        for mine in self.dispatcher.rounds(self._counts):
            worker.rounds += 1
            for indices in mine:
                self._step(indices)
            self.is_stopped = self.made_all_steps or not self._may_go_on()
            if self.is_stopped and self.dispatcher.remaining:
                break
        self._combinations = self.averager.finish(self._landed).number
        if self.dispatcher.epoch == self.worker.epoch:
            self.saving.stopped(self.common_steps)

    def _may_go_on(self) -> bool:
        """Whether there is another round for all; of other processes nothing is known before the epoch ends."""
        return not self.run.has_all_ranks or self.run.may_begin(self.worker.rounds + 1)

    @property
    def made_all_steps(self) -> bool:
        """Whether max_steps rounds were made."""
        return self.config.max_steps is not None and self.worker.rounds >= self.config.max_steps

    def _step(self, indices: Indices) -> None:
        worker = self.worker
        began_s = self.comm.clock.now_s()
        loss_sum, samples = worker.gradients([worker.read(indices)])
        if samples:
            worker.apply()
        else:
            worker.drop_gradients()
        report = self.averager.step(samples)
        worker.meter.count_step(began_s)
        if report is not None:
            self._landed(report, loss_sum / samples if samples else None, in_step=True)

    def _landed(self, report: AverageReport, loss: Any = None, in_step: bool = False) -> None:
        """A combination is there; some ranks may hear of it at the end of their data."""
        self._combinations = report.number
        if self.worker.rank == self.run.leader and self.run.shows_progress:  # else nobody needs to wait for these
            self.run.advance(report.samples, None if loss is None else float(loss))
        if self.saving.is_due(report.number) and not self.averager.ended and self._is_one_place(in_step):
            self.saving.between_steps(report.number)

    def _is_one_place(self, in_step: bool) -> bool:
        """Whether all ranks are behind the same batches; where they are not, a checkpoint waits until they are."""
        place = None
        with suppress(StateDictError):
            place = self.dispatcher.state_dict() if in_step else None
        first, *others = self.comm.all_gather_object(place)
        return first is not None and all(each == first for each in others)

    def _trained(self) -> TrainedState:
        with nullcontext() if self.config.outer.makes_alike else self.averager.shared():
            return super()._trained()

    def everything(self) -> dict[str, Any]:
        """See `InStep.everything`."""
        return {**super().everything(), "averager": self.averager}
