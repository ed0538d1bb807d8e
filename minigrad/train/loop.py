"""DistributedTrainer: one rank's training loop around a trainer that knows of one device only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from minigrad.arguments import as_integer, as_real, as_samples, check_switch, keep_as
from minigrad.backend.device import to_host
from minigrad.backend.flags import raise_found
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator, check_is_communicator
from minigrad.distributed.ddp.parallel import DistributedDataParallel
from minigrad.errors import ArgumentError, ShapeError
from minigrad.nn.module import Module
from minigrad.ops.creation import full_like
from minigrad.nn.clip import clip_grad_norm_
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scheduler import LRScheduler
from minigrad.tensor import Tensor, tensors_in
from minigrad.train.batches import check_loss, micro_batches

Role = Literal["coordinator", "worker"]


def rows_of(batch: Any) -> int:
    """The length of the first axis of the first tensor in a batch.

    Raises:
        ArgumentError: there is no tensor. ShapeError: it has no axes.
    """
    first = next(tensors_in(batch), None)
    if first is None:
        raise ArgumentError(f"train_batch: expected a tensor in the batch, got none in a {type(batch).__name__}")
    if not first.ndim:
        raise ShapeError("train_batch: expected one sample a row, got a tensor of no axes first: give samples_of")
    return first.shape[0]


@dataclass
class SingleDeviceTrainer:
    """What training on one device takes.

    Attributes:
        model: On its device.
        optimizer: Of the model's parameters.
        loss_fn: loss_fn(model, batch), the mean loss over a batch. It calls the model that it is given.
        scheduler: Moves the learning rate after each step.
        samples_of: samples_of(batch), what the loss is a mean over: rows by default, or tokens, say.

    Example:
        >>> from minigrad import nn, optim, ones
        >>> model = nn.Linear(3, 1)
        >>> optimizer = optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = SingleDeviceTrainer(model, optimizer, lambda model, batch: model(batch).square().mean())
        >>> trainer.train_batch(ones(4, 3)) >= trainer.train_batch(ones(4, 3))
        True
    """

    model: Module
    optimizer: Optimizer
    loss_fn: Callable[[Any, Any], Tensor]
    scheduler: LRScheduler | None = None
    samples_of: Callable[[Any], float] = rows_of

    def train_batch(self, batch: Any) -> float:
        """One step; the mean loss, for which it waits."""
        loss = self.loss_fn(self.model, batch)
        loss.backward()
        self.apply_gradients()
        return float(loss.item())

    def apply_gradients(self) -> None:
        """Step the optimizer and the schedule, and forget the gradients."""
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad()


@dataclass(frozen=True)
class DistributedTrainConfig:
    """One rank's options.

    Attributes:
        world_size: Number of ranks, >= 1.
        rank: This one, 0 <= rank < world_size.
        role: "coordinator" on rank 0, "worker" on the others; None takes the one that fits.
        accumulation_steps: Micro-batches into which each batch is cut, >= 1, so that less has to be kept at one time.
        max_steps: Steps after which `reached_max_steps` is true, >= 1; None for no end.
        max_grad_norm: Clip the combined gradient to this L2 norm, > 0.
        find_unused_parameters: Let a loss leave parameters out.

    Raises:
        ArgumentError: a value out of its range, or a role that is not the rank's.
    """

    world_size: int
    rank: int = 0
    role: Role | None = None
    accumulation_steps: int = 1
    max_steps: int | None = None
    max_grad_norm: float | None = None
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        who = "DistributedTrainConfig"
        keep_as(self, as_integer, "world_size", "accumulation_steps", least=1)
        keep_as(self, as_integer, "rank", least=0, end=self.world_size)
        keep_as(self, as_integer, "max_steps", least=1, optional=True)
        keep_as(self, as_real, "max_grad_norm", above=0.0, finite=True, optional=True)
        check_switch(who, find_unused_parameters=self.find_unused_parameters)
        fitting: Role = "worker" if self.rank else "coordinator"
        if self.role not in (None, fitting):
            raise ArgumentError(f"{who}: expected role {fitting!r} on rank {self.rank}, got {self.role!r}")
        object.__setattr__(self, "role", fitting)


class DistributedTrainer:
    """One rank of data-parallel training: every rank gives `train_batch` its own batch, and all step alike.

    The gradient is that of the mean over the samples of all ranks, whatever each rank's batch and however it is cut.
    The model's values are those of rank 0 from the start.

    Args:
        trainer: This rank's own; alike on all ranks.
        comm: The ranks, any communicator.
        config: By default that of the communicator.

    Attributes:
        trainer: What was given.
        dist_config: The options.
        steps: Steps so far, the same on all ranks.
        last_samples: Samples of all ranks in the last batch; the end of an epoch is none.

    Raises:
        ArgumentError: the configuration is not the communicator's, or no trainer, communicator or configuration.
        ReplicaMismatchError: ranks have other max_steps or max_grad_norm; and see `DistributedDataParallel`.
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
        self, trainer: SingleDeviceTrainer, comm: Communicator, config: DistributedTrainConfig | None = None
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
        alike = {name: getattr(self.dist_config, name) for name in ("max_steps", "max_grad_norm")}
        gather_alike("DistributedTrainer", "options", comm, alike)  # by which ranks stop and step
        self._comm = comm
        unused = self.dist_config.find_unused_parameters
        self._ddp = DistributedDataParallel(trainer.model, comm, find_unused_parameters=unused)
        self.steps, self.last_samples = 0, 0.0
        self._totals: Any = None
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
        if self.should_stop:
            raise ArgumentError(f"train_batch: expected it while should_stop is false, got it after step {self.steps}")
        return self._train(batch)

    def _train(self, batch: Any, is_last: bool = False) -> float:
        """`train_batch`, for all ranks at once; is_last tells the others that this one has no batch any more."""
        loss_sum, samples = self._accumulate(self._micro_batches(batch))
        loss, everyones = self._agree(loss_sum, samples, is_last)
        if not self._ended:
            self.last_samples = everyones
        if not everyones:
            self.trainer.optimizer.zero_grad()
            return math.nan
        if self.dist_config.max_grad_norm is not None:
            clip_grad_norm_(self.trainer.model.parameters(), self.dist_config.max_grad_norm)
        self.trainer.apply_gradients()
        self.steps += 1
        return loss

    def train_epoch(self, batches: Iterable[Any]) -> float:
        """Train on this rank's batches, until no rank has any left or all stop; ranks may have different numbers.

        After a stop a loader is in the epoch that was interrupted. To resume, `minigrad.load` into what was saved, give
        the loader's state on rank 0, `minigrad.load(path)["loader"]`, to the loaders of all ranks, which may be used up
        already, and call this again: it trains on the rest.

        Returns:
            The mean loss over the samples of all ranks; NaN where there were none.
        """
        if not isinstance(batches, Iterable):
            raise ArgumentError(f"train_epoch: expected batches to iterate over, got {type(batches).__name__}")
        own = iter(() if self.should_stop else batches)  # a loader that is not asked stays where it is
        ended, loss_sum, samples = object(), 0.0, 0.0
        while not self.should_stop:
            batch = next(own, ended)
            loss = self._train(None if batch is ended else batch, batch is ended)
            if self._ended:
                break
            if self.last_samples:  # batches may be empty
                loss_sum, samples = loss_sum + loss * self.last_samples, samples + self.last_samples
        return loss_sum / samples if samples else math.nan

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
            local = self._ddp.no_sync() if number < len(parts) else contextlib.nullcontext()
            with self._ddp.samples(n), local:
                loss = check_loss("train_batch", self.trainer.loss_fn(self._ddp, part))
                loss.backward(full_like(loss.detach(), n / samples))
            loss_sum = loss_sum + loss.data.astype(np.float64).reshape(()) * n
        if not parts:
            self._ddp.flush()
        return loss_sum, samples

    def _agree(self, loss_sum: Any, samples: float, is_last: bool) -> tuple[float, float]:
        """The mean loss and the samples of all ranks; on the way they learn of each other's wishes and ends."""
        with self._comm.device.current():
            if self._totals is None:
                self._totals = self._comm.empty(4, np.dtype(np.float64))
            totals = self._totals
            for place, value in enumerate((loss_sum, samples, float(self._wants_stop), float(is_last))):
                totals[place] = value
            self._comm.all_reduce(totals).wait()
        raise_found(totals)
        total_loss, everyones, wishes, ends = map(float, to_host(totals))
        self._stopped, self._ended = wishes > 0.0, ends == self.world_size
        return total_loss / everyones if everyones else math.nan, everyones
