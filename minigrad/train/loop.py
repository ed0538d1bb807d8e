"""DistributedTrainer: one rank's training loop around a trainer that knows of one device only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from minigrad.arguments import as_integer, as_samples
from minigrad.distributed.balance.dispatcher import Dispatcher
from minigrad.distributed.balance.rounds import Rounds
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.distributed.record.listening import Timeline, spans_of
from minigrad.errors import ArgumentError, StateDictError
from minigrad.ops.creation import full_like
from minigrad.nn.clip import clip_grad_norm_
from minigrad.tensor import Tensor
from minigrad.train.agreement import StepAgreement
from minigrad.train.batches import check_loss, micro_batches
from minigrad.train.epoch import EpochMeter, EpochMetrics
from minigrad.train.metrics import MetricCollection
from minigrad.train.config import DistributedTrainConfig, wrapped
from minigrad.train.single import SingleDeviceTrainer

_AHEAD = "steps and epochs that a DistributedTrainer was loaded with"


class DistributedTrainer:
    """One rank of data-parallel training: every rank gives `train_batch` its own batch, and all step alike.

    The gradient is that of the mean over the samples of all ranks, whatever each rank's batch and however it is cut.
    The model's values are those of rank 0 from the start.

    Args:
        trainer: This rank's own; alike on all ranks.
        comm: The ranks, any communicator.
        config: By default that of the communicator.
        rounds: Made of comm: lets each rank run several whole batches between two steps, see `train_round`.
        metrics: That loss_fn updates; `train_epoch` resets them and puts their results among `EpochMetrics.scalars`.
        timeline: Has the spans of each step: data where `train_epoch` reads it, forward, backward, buckets, optimizer.

    Attributes:
        trainer: What was given.
        dist_config: The options.
        ddp: The wrapper of the model: its `stats()`, `nonfinite_gradients()` and `plan`.
        steps: Steps so far, the same on all ranks.
        epochs: Epochs that were ended so far, the same on all ranks.
        epoch_metrics: Of the last epoch, the same on all ranks; None before.
        last_samples: Samples of all ranks in the last step; the end of an epoch is none.

    Raises:
        ArgumentError: the configuration or the rounds are not the communicator's, or no trainer, communicator,
            configuration, rounds or metrics.
        ReplicaMismatchError: ranks have other max_steps, max_grad_norm or hooks, or only some have rounds; and see
            `DistributedDataParallel`.
        DeviceError: see `DistributedDataParallel`.

    Example:
        >>> from minigrad import distributed, nn, optim, ones
        >>> def body(comm):
        ...     model = nn.Linear(3, 1)
        ...     optimizer = optim.SGD(model.parameters(), lr=0.1)
        ...     single = SingleDeviceTrainer(model, optimizer, lambda model, batch: model(batch).square().mean())
        ...     config = DistributedTrainConfig(comm.world_size, comm.rank, max_steps=2)
        ...     trainer = DistributedTrainer(single, comm, config)
        ...     return [trainer.train_batch(ones(2 + comm.rank, 3)) for _ in range(2)], trainer.reached_max_steps
        >>> first, second = distributed.run(body, 2)
        >>> first == second, first[1]
        (True, True)
    """

    def __init__(
        self,
        trainer: SingleDeviceTrainer,
        comm: Communicator,
        config: DistributedTrainConfig | None = None,
        *,
        rounds: Rounds | None = None,
        metrics: MetricCollection | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        check_is_communicator("DistributedTrainer", comm)
        if config is not None and not isinstance(config, DistributedTrainConfig):
            raise ArgumentError(f"DistributedTrainer: expected a DistributedTrainConfig, got {type(config).__name__}")
        self.trainer = trainer
        self.dist_config = config if config is not None else DistributedTrainConfig(comm.world_size, comm.rank)
        if (self.dist_config.world_size, self.dist_config.rank) != (comm.world_size, comm.rank):
            raise ArgumentError(
                f"DistributedTrainer: expected the communicator's rank {comm.rank} of {comm.world_size}, got "
                f"rank {self.dist_config.rank} of {self.dist_config.world_size}"
            )
        for name in ("loss_fn", "samples_of", "apply_gradients"):
            if not callable(getattr(trainer, name, None)):
                raise ArgumentError(f"DistributedTrainer: expected a trainer with the function {name}, got none")
        self._rounds = rounds
        self._comm = comm if rounds is None else _comm_of(rounds, comm)
        self._meter = EpochMeter(self._comm, metrics)
        self.ddp = wrapped(trainer.model, self._comm, self.dist_config, rounds is not None, timeline)
        self._span = spans_of(timeline, self._comm)
        self.steps, self.epochs, self.last_samples = 0, 0, 0.0
        self.epoch_metrics: EpochMetrics | None = None
        self._agreement = StepAgreement(self._comm, flags=2)
        self._own: tuple[Any, float] = (0.0, 0.0)  # Σ n·loss and Σ n of this rank in the last step
        self._ahead = (0, 0)  # of what it has made itself, by what it has loaded
        self.ddp.reducer.alike.set_option(_AHEAD, self._ahead)
        self._wants_stop = self._stopped = self._ended = False

    @property
    def is_coordinator(self) -> bool:
        """Whether this is rank 0: the one that prints and saves."""
        return self.dist_config.role == "coordinator"

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.dist_config.world_size

    @property
    def reached_max_steps(self) -> bool:
        """Whether max_steps were made; the same on all ranks."""
        return self.dist_config.max_steps is not None and self.steps >= self.dist_config.max_steps

    @property
    def should_stop(self) -> bool:
        """Whether to stop: max_steps were made, or a rank asked for it before the last step. The same on all ranks."""
        return self._stopped or self.reached_max_steps

    def request_stop(self) -> None:
        """Let all ranks stop after their next `train_batch`; any rank may ask, at any time."""
        self._wants_stop = True

    def train_batch(self, batch: Any) -> float:
        """One step of all ranks.

        Args:
            batch: This rank's samples: tensors, or tuples, lists and mappings of them; None, or one without rows,
                where it has none. It takes part nevertheless.

        Returns:
            The mean loss over the samples of all ranks, the same on all of them; NaN where no rank has any, and then
            nothing is stepped. It waits for the device.

        Raises:
            ArgumentError: `should_stop` is true.
            ShapeError: loss_fn returned more than one number, or a batch to be cut has tensors of different lengths.
        """
        self._check_goes_on("train_batch")
        if self._rounds is not None:
            raise ArgumentError("train_batch: expected no rounds, got some: write train_round([batch]), or train_epoch")
        return self._train([batch])

    def train_round(self, batches: Sequence[Any]) -> float:
        """One step of all ranks, each with as many whole batches as it likes: the gradient of the mean over all.

        As in `for mine in rounds.deal(batches): trainer.train_round(mine)`, where the trainer was made with
        `rounds.comm`; `train_epoch` does that with rounds=. Of its batches only the last combines.

        Args:
            batches: This rank's, each as `train_batch` takes it; none is legal.

        Returns, Raises: As `train_batch`.
        """
        self._check_goes_on("train_round")
        if isinstance(batches, (Tensor, tuple, str, Mapping)) or not isinstance(batches, Iterable):
            got = type(batches).__name__
            raise ArgumentError(f"train_round: expected a list of whole batches, got {got}: write [batch] for one")
        return self._train([*batches])

    def _check_goes_on(self, who: str) -> None:
        if self.should_stop:
            raise ArgumentError(f"{who}: expected it while should_stop is false, got it after step {self.steps}")

    def _train(self, batches: Sequence[Any], is_last: bool = False) -> float:
        """`train_round`, for all ranks at once; is_last tells the others that this one has no batch any more."""
        began_s = self._comm.clock.now_s()
        self._own = self._accumulate([part for batch in batches for part in self._micro_batches(batch)])
        loss, everyones = self._agree(*self._own, is_last)
        if not self._ended:
            self.last_samples = everyones
        if not everyones:
            self.trainer.optimizer.zero_grad()
            return math.nan
        with self._span("optimizer"):
            if self.dist_config.max_grad_norm is not None:
                clip_grad_norm_(self.trainer.model.parameters(), self.dist_config.max_grad_norm)
            self.trainer.apply_gradients()
        self.steps += 1
        self._meter.count_step(began_s)
        return loss

    @property
    def last_loss_local(self) -> float | None:
        """The mean loss over this rank's own samples in the last step; None where it had none."""
        loss_sum, samples = self._own
        return float(loss_sum) / samples if samples else None

    def train_epoch(self, batches: Iterable[Any]) -> float:
        """Train on this rank's batches, until no rank has any left or all stop; ranks may have different numbers.

        With rounds= they are those of all ranks, a list that is the same on each, which are dealt by `Rounds.deal`.
        What the epoch came to is `epoch_metrics` then.

        After a stop a loader is in the epoch that was interrupted. To resume, `minigrad.load` into what was saved, give
        the loader's state on rank 0, `minigrad.load(path)["loader"]`, to the loaders of all ranks, which may be used up
        already, and call this again: it trains on the rest.

        Returns:
            The mean loss over the samples of all ranks; NaN where there were none.

        Raises:
            ReplicaMismatchError: see `EpochMeter.finish`.
        """
        if not isinstance(batches, Iterable):
            raise ArgumentError(f"train_epoch: expected batches to iterate over, got {type(batches).__name__}")
        self._meter.start(self.epochs)
        if self.should_stop:  # a loader that is not asked stays where it is
            ended = False
        else:
            ended = self._train_batches(batches) if self._rounds is None else self._train_rounds(self._rounds, batches)
        self.epoch_metrics = self._meter.finish()
        self.epochs += ended
        return math.nan if self.epoch_metrics.loss is None else self.epoch_metrics.loss

    def _train_batches(self, batches: Iterable[Any]) -> bool:
        """Train until no rank has a batch left, which is true, or all stop."""
        own, nothing = iter(batches), object()
        while not self.should_stop:
            with self._span("data"):
                batch = next(own, nothing)
            self._train([] if batch is nothing else [batch], batch is nothing)
            if self._ended:
                return True
        return False

    def _train_rounds(self, rounds: Rounds, batches: Any) -> bool:
        """The same with the batches of all ranks."""
        for mine in rounds.deal(batches):
            if self.should_stop:
                return False
            self._train(mine)
            if self.should_stop and isinstance(batches, Dispatcher) and batches.remaining:
                return False  # before the next round, which would be dealt and not trained on
        return True

    def finish_epoch(self) -> EpochMetrics:
        """End an epoch that was trained by `train_batch` or `train_round`: its figures; all ranks call it together.

        Raises:
            ReplicaMismatchError: see `EpochMeter.finish`.
        """
        self.epoch_metrics = self._meter.finish()
        self.epochs += 1
        return self.epoch_metrics

    def state_dict(self) -> dict[str, int]:
        """How far it has come, as plain data; model, optimizer, schedule, loader and rounds have their own states."""
        return {"steps": self.steps, "epochs": self.epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` told; all ranks do, with the same, or the next step raises.

        Raises:
            StateDictError: it is no such state.
        """
        if not isinstance(state, Mapping) or set(state) != {"steps", "epochs"}:
            raise StateDictError(f"DistributedTrainer: expected a state of steps and epochs, got {state!r:.100}")
        steps, epochs = (as_integer("DistributedTrainer", name, state[name], 0) for name in ("steps", "epochs"))
        self._ahead = (self._ahead[0] + steps - self.steps, self._ahead[1] + epochs - self.epochs)
        self.ddp.reducer.alike.set_option(_AHEAD, self._ahead)
        self.steps, self.epochs = steps, epochs
        self._meter.start(epochs)

    def _micro_batches(self, batch: Any) -> list[tuple[Any, float]]:
        """The parts of a batch with the samples of each; those without are left out."""
        steps, samples_of = self.dist_config.accumulation_steps, self.trainer.samples_of
        parts = [] if batch is None else [batch]
        if parts and steps > 1:
            parts = micro_batches("train_batch", batch, steps, self._comm.device)
        counted = [(part, as_samples("train_batch", samples_of(part))) for part in parts]
        return [(part, n) for part, n in counted if n]

    def _accumulate(self, parts: list[tuple[Any, float]]) -> tuple[Any, float]:
        """Forward and backward of every part, the last of which combines; Σ n·loss and Σ n of this rank."""
        samples = math.fsum(n for _, n in parts)
        loss_sum: Any = 0.0
        for number, (part, n) in enumerate(parts, 1):
            local = self.ddp.no_sync() if number < len(parts) else contextlib.nullcontext()
            with self.ddp.samples(n), local, self._meter.batch(n):
                loss = check_loss("train_batch", self.trainer.loss_fn(self.ddp, part))
                loss.backward(full_like(loss.detach(), n / samples))
            loss_sum = loss_sum + loss.data.astype(np.float64).reshape(()) * n
        if not parts:
            self.ddp.flush()
        self._meter.add_loss_sum(loss_sum, samples)
        return loss_sum, samples

    def _agree(self, loss_sum: Any, samples: float, is_last: bool) -> tuple[float, float]:
        """The mean loss and the samples of all ranks; on the way they learn of each other's wishes and ends."""
        loss, everyones, (wishes, ends) = self._agreement.meet(loss_sum, samples, self._wants_stop, is_last)
        self._stopped, self._ended = wishes > 0, ends == self.world_size
        return loss, everyones


def _comm_of(rounds: Rounds, comm: Communicator) -> Communicator:
    """What a trainer with rounds talks through: their communicator, around the one that was given or itself."""
    if not isinstance(rounds, Rounds):
        raise ArgumentError(f"DistributedTrainer: expected rounds as distributed.Rounds, got {type(rounds).__name__}")
    if comm is not rounds.comm and comm is not rounds.comm.inner:
        raise ArgumentError("DistributedTrainer: expected rounds made of its comm, got another's: write Rounds(comm)")
    if rounds.cadence.is_guarded:
        raise ArgumentError(
            f"DistributedTrainer: expected rounds without a guard, got {rounds.cadence.guard}: write the loop by hand, "
            "which keeps a rank's own gradients for rounds.report(divergence)"
        )
    return rounds.comm
