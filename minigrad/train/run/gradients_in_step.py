"""The engine of ranks in step that combine gradients: by DDP, one step of all a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from minigrad.data.order import Indices
from minigrad.distributed.average.policies import Cadence, PostLocalSGD
from minigrad.distributed.balance.rounds import Rounds
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.distributed.ddp.samples import keep_ledger
from minigrad.errors import ArgumentError
from minigrad.train.agreement import StepAgreement
from minigrad.train.run.config import WHO
from minigrad.train.run.failures import Failures
from minigrad.train.run.handle import Run
from minigrad.train.run.in_step import InStep
from minigrad.train.run.rank import Worker

_ROUNDS_ON_GPU = 16


class GradientsInStep(InStep):
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
        self.ddp = DistributedDataParallel(worker.model, through, timeline=worker.timeline, **options)
        keep_ledger(self.ddp, worker.ledger)
        worker.updates.show()
        self._agreement = StepAgreement(through, flags=3)
        self._failures = Failures(worker, self.ddp, self.saving)
        self._every = 1  # rounds between two agreements
        self._since: tuple[Any, float] = (0.0, 0.0)  # Σ n·loss and Σ n of this rank since the last

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
            batches = [worker.read(indices) for indices in mine]
            told = worker.gradients(batches, self.ddp)
        except Exception as caught:
            error = self._failures.take_part(caught)
        self._since = self._since[0] + told[0], self._since[1] + told[1]
        if self._agree_on_step(error) or self._every > 1:
            worker.apply()
            worker.rounds += 1
            worker.meter.count_step(began_s)
        else:
            worker.drop_gradients()
        self.is_stopped = self.is_stopped or self.made_all_steps

    def _agree_on_step(self, error: Exception | None) -> float:
        """Where it is time, let ranks learn of each other's wishes and errors; the samples of all since the last time.

        On a GPU that makes the host wait, so it is done in every 16th round, and in the last of an epoch. There has to
        be a sample in each round then; of a loss that says its n nobody knows, and ranks agree in each. They do so too
        where one that raises is to end all of them behind a checkpoint.
        """
        worker = self.worker
        if (worker.rounds + 1) % self._every and self.dispatcher.remaining:
            return 0.0
        says = worker.says_samples
        flags = (self.wants_stop, says, error is not None)
        loss, everyones, (wishes, saying, failed) = self._agreement.meet(*self._since, *flags)
        if failed:
            self._failures.end(error)
        if saying and self._every > 1:
            raise ArgumentError(f"{WHO}: expected train_fn to return (loss, n) from its first batch on, got it later")
        self._since, self.is_stopped = (0.0, 0.0), wishes > 0
        if self.comm.device.type != "cpu" and not saying and not self.saving.by_step:
            self._every = _ROUNDS_ON_GPU
        if worker.rank == self.run.leader:
            self.run.advance(everyones, loss)
        return everyones

    def everything(self) -> dict[str, Any]:
        """See `InStep.everything`."""
        found = {**super().everything(), "model": self.ddp}
        return found if self.rounds is None else {**found, "rounds": self.rounds}


def _rounds_of(worker: Worker) -> Rounds | None:
    """What measures ranks by rounds of whole batches; None where the policy needs none."""
    policy = worker.config.when
    if not isinstance(policy, Cadence):
        return None
    el_che = policy.start(worker.world_size).el_che
    rounds = Rounds(worker.comm, el_che.config)
    rounds.cadence = replace(rounds.cadence, el_che=el_che)
    return rounds
