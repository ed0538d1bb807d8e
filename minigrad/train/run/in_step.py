"""The engine of ranks that run in step: each knows from the samples that are left what all others do next.

Gradients are combined by DDP: a round is as many batches of each rank as the policy says, and one step of all.
Parameters are combined by a `ParameterAverager`: a rank makes a step with each of its batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from minigrad.data.order import Indices
from minigrad.distributed.average.policies import Cadence, PostLocalSGD
from minigrad.distributed.balance.dispatcher import Dispatcher
from minigrad.distributed.balance.rounds import Rounds
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.ddp.samples import keep_ledger
from minigrad.errors import StateDictError
from minigrad.train.agreement import StepAgreement
from minigrad.train.epoch import EpochMetrics
from minigrad.train.run.averaging import averager_of
from minigrad.train.run.callbacks import Callbacks
from minigrad.train.run.failures import Failures
from minigrad.train.run.handle import Run, TrainedState
from minigrad.train.run.rank import Worker
from minigrad.train.run.saving import Saving


class Engine(Protocol):
    """What a rank of a run does."""

    def train(self) -> TrainedState:
        """Train all epochs, or until all stop; the same on all ranks."""


class _InStep:
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
        if worker.rank == self.run.leader:
            self.run.epoch(metrics)
        self._agree()
        if self.dispatcher.epoch == worker.epoch:  # else the run has ended before the epoch
            self.saving.after_epoch(self.common_steps)

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


class GradientsInStep(_InStep):
    """Ranks that combine gradients, and make the same step.

    Attributes:
        ddp: What combines.
        rounds: What measures ranks, where the policy is `Cadence`.
    """

    def __init__(self, worker: Worker, run: Run) -> None:
        super().__init__(worker, run)
        self.rounds = _rounds_of(worker)
        through = worker.comm if self.rounds is None else self.rounds.comm
        options = {"check_replicas_every": self.config.check_replicas_every, **self.config.ddp_options}
        self.ddp = DistributedDataParallel(worker.model, through, **options)
        keep_ledger(self.ddp, worker.ledger)
        self._agreement = StepAgreement(through, flags=2)
        self._failures = Failures(worker, self.ddp, self.saving)

    def _dealt(self) -> Iterator[Sequence[Indices]]:
        """This rank's batches of each round."""
        if self.rounds is not None:
            return self.rounds.deal(self.dispatcher)
        return self.dispatcher.rounds(self._counts)

    def _counts(self) -> tuple[int, ...]:
        """The batches of each rank in the coming round."""
        policy = self.config.when
        if isinstance(policy, PostLocalSGD):
            times = 1 if self.worker.step < policy.switch else policy.k
        else:
            times = policy.period or 1
        return tuple(times * count for count in self.dispatcher.dispatch.counts)

    def _train_epoch(self) -> None:
        for mine in self._dealt():
            self.saving.between_steps(self.worker.step)  # what was dealt now is dealt again after a resume
            self._round(mine)
            if self.is_stopped and self.dispatcher.remaining:
                self.saving.stopped(self.worker.step)
                return  # before the next round, which would be dealt and not trained on

    def _round(self, mine: Sequence[Indices]) -> None:
        worker = self.worker
        began_s = self.comm.clock.now_s()
        self._failures.begin()
        error, told = None, (0.0, 0.0)
        try:
            told = worker.gradients([worker.reader.read(indices) for indices in mine], self.ddp)
        except Exception as caught:
            error = self._failures.take_part(caught)
        loss, everyones, (wishes, failed) = self._agreement.meet(*told, self.wants_stop, error is not None)
        if failed:
            self._failures.end(error)
        if everyones:
            worker.apply()
            worker.rounds += 1
            worker.meter.count_step(began_s)
        else:
            worker.drop_gradients()
        self.is_stopped = wishes > 0 or self.made_all_steps
        if worker.rank == self.run.leader:
            self.run.advance(everyones, loss)

    def everything(self) -> dict[str, Any]:
        """See `_InStep.everything`."""
        found = {**super().everything(), "model": self.ddp}
        return found if self.rounds is None else {**found, "rounds": self.rounds}


class ParametersInStep(_InStep):
    """Ranks that make steps of their own, and combine their parameters.

    Attributes:
        averager: What combines.
    """

    def __init__(self, worker: Worker, run: Run) -> None:
        super().__init__(worker, run)
        config = self.config
        given = (config.when, config.outer, config.guard, config.average_options)
        self.averager = averager_of(worker.model, worker.comm, worker.optimizer, *given)
        self.averager.keep(worker.ledger)
        self._combinations = 0

    @property
    def common_steps(self) -> int:
        """See `_InStep.common_steps`."""
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
        self._combinations = self.averager.finish().number
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
        loss_sum, samples = worker.gradients([worker.reader.read(indices)])
        if samples:
            worker.apply()
        else:
            worker.drop_gradients()
        report = self.averager.step(samples)
        worker.meter.count_step(began_s)
        if report is not None and worker.rank == self.run.leader:
            self.run.advance(report.samples, float(loss_sum) / samples if samples else None)
        if report is not None:
            self._combinations = report.number
            if self.saving.is_due(report.number) and not self.averager.ended and self._is_one_place():
                self.saving.between_steps(report.number)

    def _is_one_place(self) -> bool:
        """Whether all ranks are behind the same batches; where they are not, a checkpoint waits until they are."""
        place = None
        with suppress(StateDictError):
            place = self.dispatcher.state_dict()
        first, *others = self.comm.all_gather_object(place)
        return first is not None and all(each == first for each in others)

    def _trained(self) -> TrainedState:
        with nullcontext() if self.config.outer.makes_alike else self.averager.shared():
            return super()._trained()

    def everything(self) -> dict[str, Any]:
        """See `_InStep.everything`."""
        return {**super().everything(), "averager": self.averager}


def _rounds_of(worker: Worker) -> Rounds | None:
    """What measures ranks by rounds of whole batches; None where the policy needs none."""
    policy = worker.config.when
    if not isinstance(policy, Cadence):
        return None
    el_che = policy.start(worker.world_size).el_che
    rounds = Rounds(worker.comm, el_che.config)
    rounds.cadence = replace(rounds.cadence, el_che=el_che)
    return rounds
