"""RunConfig: all that a run is told, each option checked where it is given, and all of them together by one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Union

from minigrad.arguments import as_integer, as_real, check_choice, check_shares, check_switch, keep_as
from minigrad.backend.device import Device
from minigrad.backend.random import initial_seed, is_seed_chosen
from minigrad.data.dataset import Dataset, check_dataset
from minigrad.distributed.average import Mean, OuterOptimizer, Policy, Sync
from minigrad.distributed.average.options import check_outer
from minigrad.distributed.record.listening import check_timeline
from minigrad.errors import ArgumentError
from minigrad.optim.scaler import GradScaler
from minigrad.tensor import Tensor
from minigrad.train.config import OF_A_RUN, check_ddp_options
from minigrad.train.options import Combination, PlaceKind, refused
from minigrad.train.run.callbacks import check_callbacks
from minigrad.train.run.schedules import RunSchedule, check_run_schedule
from minigrad.train.run.averaging import as_policy, check_average_options, check_averaging, kind_of_policy

WHO = "Trainer.start"
Loss = Union[Tensor, tuple[Tensor, Any]]
_WORD = 2**64
_PLACES: tuple[PlaceKind, ...] = ("ranks", "devices", "comm", "cluster")


@dataclass(frozen=True)
class RunConfig:
    """What a run trains, on which ranks, and how: all that `Trainer.start` takes.

    Attributes:
        make_model: make_model(device) gives a rank's replica, there; it runs in each rank after `manual_seed(seed)`.
        make_optimizer: make_optimizer(params) gives the optimizer of a replica.
        train_fn: train_fn(model, batch) gives the mean loss over the batch's samples, or (loss, n) where it is a mean
            over n others, tokens say. It calls the model that it is given.
        dataset: The samples, the same on all ranks; `minigrad.data.Dataset`.
        batch_size: Samples of one rank in one step, >= 1: W ranks take W times as many together.
        epochs: How many, >= 1.
        ranks: So many threads of this process, on CPUs.
        devices: A thread of this process for each of these devices.
        comm: This process's communicator; every process makes the same call.
        cluster: A virtual cluster, which is simulated.
            At most one of the four. By default the ranks are those of `distributed.init()`: a launcher's, or one alone.
        policy: When ranks combine; "sync", "cadence" and "async" too.
        average: What they combine: "gradients" before a step, or "parameters" after steps of their own.
        outer: What is done with combined parameters.
        guard: Asked before a `Cadence` combines more rarely.
        seed: Of weights, noise and the order of samples, in [0, 2**64); by default that of `manual_seed`, else a drawn
            one that all ranks have.
        shuffle: Whether samples are dealt in another order in each epoch.
        shares: Fraction of the samples for each rank, >= 0, of sum 1; by default equal ones. Where gradients are
            combined, a step has batches of each rank in this proportion.
        dispatch: "static": each rank has its part of an epoch. "proportional": by the speeds that Cadence measured, or
            shares. "progressive": each takes its next batches out of what is left of all; by its speed with Cadence,
            with other policies as many as the others.
        max_overshoot: The most batches of the next epoch that a rank runs while others are in this one.
        max_batch_diff: The most batches that a rank is ahead of the slowest; None for no limit.
        schedule: A function from the step of the optimizer to a factor of its rates.
        lr_scale: Factor of all rates, > 0, or a function from the number of ranks to it.
        max_grad_norm: Clip the gradient that a step is made by to this L2 norm, > 0.
        autocast: Compute train_fn in "bfloat16" or "float16".
        scaler: A `GradScaler` with whose options and scale each rank's own begins.
        accumulate: Micro-batches into which each batch is cut, one after the other, >= 1.
        ddp_options: More of `DistributedDataParallel`'s, by name.
        average_options: More of `ParameterAverager`'s, by name: optimizer_state, buffers, integer_buffers, init_sync.
        callbacks: Called on every rank: functions callback(metrics, worker) after each epoch, objects with
            `before_epoch(worker)` or `after_epoch(metrics, worker)`, and a `Checkpoint`, by which all that has a state
            is kept: also that of callbacks which have state_dict() and load_state_dict().
        resume: Go on from the newest that the `Checkpoint` finds, with the same bits; with another number of ranks so
            that each sample counts once an epoch. From the beginning where it finds none. Under Async ranks go back to
            the last commit, and what they were ahead of it is made again. Options that the states say are refused
            where they are others; rates that make_optimizer and lr_scale make otherwise go on by that factor.
        timeline: An object with event(kind, **fields), which hears what the ranks of this process do. A `Timeline` has
            the spans of their steps, too: data, forward, backward, what is combined, optimizer, checkpoints.
        check_replicas_every: Compare the bits of all replicas in every so many steps.
        on_failure: "stop": all ranks end where one fails; where one raises in a step, behind a checkpoint of the one
            before, or of the last commit, if a `Checkpoint` counts steps. "shrink": the others go on; of threads a
            RuntimeWarning says which one is left behind (of processes the launcher does). Where ranks are
            not in step, by this, by "progressive" or by `Async`, buffers are not rank 0's but merged, as
            `ParameterAverager` does it.
        max_steps: End after so many steps, >= 1, where parameters are combined rounds: of a batch a rank, with Cadence
            of as many as it says. None: no end but that of the epochs.
        timeout_s: How long ranks wait for each other, where they live in this process.
        keep_memory: Let the whole process keep freed memory for its next step: see `minigrad.keep_freed_memory`.
        progress: Whether there is a progress bar; None: on a terminal.
        has_drawn_seed: Whether nobody has said a seed; then a run that is resumed has that which it had.

    Raises:
        ArgumentError: an option out of its range, or options that do not go together; the message says what to write.
    """

    make_model: Callable[[Device], Any]
    make_optimizer: Callable[[list[Any]], Any]
    train_fn: Callable[[Any, Any], Loss]
    dataset: Dataset
    batch_size: int = field(kw_only=True)
    epochs: int = field(kw_only=True)
    ranks: int | None = field(default=None, kw_only=True)
    devices: Sequence[Device | str] | None = field(default=None, kw_only=True)
    comm: Any = field(default=None, kw_only=True)
    cluster: Any = field(default=None, kw_only=True)
    policy: Policy | str = field(default=Sync(), kw_only=True)
    average: Literal["gradients", "parameters"] = field(default="gradients", kw_only=True)
    outer: OuterOptimizer = field(default=Mean(), kw_only=True)
    guard: Any = field(default=None, kw_only=True)
    seed: int | None = field(default=None, kw_only=True)
    shuffle: bool = field(default=True, kw_only=True)
    shares: Sequence[float] | None = field(default=None, kw_only=True)
    dispatch: Literal["static", "proportional", "progressive"] = field(default="static", kw_only=True)
    max_overshoot: int = field(default=0, kw_only=True)
    max_batch_diff: int | None = field(default=None, kw_only=True)
    schedule: RunSchedule | None = field(default=None, kw_only=True)
    lr_scale: float | Callable[[int], float] | None = field(default=None, kw_only=True)
    max_grad_norm: float | None = field(default=None, kw_only=True)
    autocast: str | None = field(default=None, kw_only=True)
    scaler: GradScaler | None = field(default=None, kw_only=True)
    accumulate: int = field(default=1, kw_only=True)
    ddp_options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    average_options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    callbacks: Sequence[Any] = field(default=(), kw_only=True)
    resume: bool = field(default=False, kw_only=True)
    timeline: Any = field(default=None, kw_only=True)
    check_replicas_every: int | None = field(default=None, kw_only=True)
    on_failure: Literal["stop", "shrink"] = field(default="stop", kw_only=True)
    max_steps: int | None = field(default=None, kw_only=True)
    timeout_s: float | None = field(default=None, kw_only=True)
    keep_memory: bool = field(default=False, kw_only=True)
    progress: bool | None = field(default=None, kw_only=True)
    has_drawn_seed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("make_model", "make_optimizer", "train_fn"):
            if not callable(getattr(self, name)):
                raise ArgumentError(f"{WHO}: expected {name} as a function, got {getattr(self, name)!r:.100}")
        check_dataset(WHO, self.dataset)
        if not len(self.dataset):
            raise ArgumentError(f"{WHO}: expected a dataset of samples, got an empty one")
        self._keep("has_drawn_seed", self.seed is None and not is_seed_chosen())
        self._keep("seed", initial_seed() if self.seed is None else self.seed)
        self._check_numbers()
        self._check_places()
        self._check_step()
        self._keep("policy", as_policy(WHO, self.policy))
        check_outer(self.outer)
        check_choice(WHO, ("gradients", "parameters"), average=self.average)
        check_choice(WHO, ("static", "proportional", "progressive"), dispatch=self.dispatch)
        check_choice(WHO, ("stop", "shrink"), on_failure=self.on_failure)
        self._keep("ddp_options", check_ddp_options(WHO, self.ddp_options, OF_A_RUN))
        self._keep("average_options", check_average_options(WHO, self.average_options))
        if self.timeline is not None:
            check_timeline(WHO, self.timeline)
        reason = refused(self.combination)
        if reason:
            raise ArgumentError(f"{WHO}: {reason}")
        check_averaging(self.when, self.outer, self.average, self.guard, self.average_options)

    def _keep(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _check_numbers(self) -> None:
        keep_as(self, as_integer, "batch_size", "epochs", "accumulate", least=1)
        keep_as(self, as_integer, "seed", least=0, end=_WORD)
        keep_as(self, as_integer, "max_overshoot", least=0)
        keep_as(self, as_integer, "max_batch_diff", least=0, optional=True)
        keep_as(self, as_integer, "ranks", "max_steps", "check_replicas_every", least=1, optional=True)
        keep_as(self, as_real, "max_grad_norm", "timeout_s", above=0.0, finite=True, optional=True)
        check_switch(WHO, shuffle=self.shuffle, keep_memory=self.keep_memory)
        if self.progress is not None:
            check_switch(WHO, progress=self.progress)
        if self.shares is not None:
            check_shares(WHO, self.shares)
            self._keep("shares", tuple(float(share) for share in self.shares))
        if self.accumulate > self.batch_size:
            raise ArgumentError(
                f"{WHO}: expected accumulate of at most batch_size={self.batch_size}, into which a batch can be cut, "
                f"got {self.accumulate}"
            )

    def _check_places(self) -> None:
        given = [name for name in _PLACES if getattr(self, name) is not None]
        if len(given) > 1:
            raise ArgumentError(f"{WHO}: expected one of {', '.join(_PLACES)}, got {' and '.join(given)}")
        if self.devices is not None:
            devices = self.devices
            if isinstance(devices, str) or not isinstance(devices, Sequence) or not devices:
                raise ArgumentError(f"{WHO}: expected devices as a list of some, got {devices!r:.100}")
            self._keep("devices", tuple(Device(device) for device in devices))

    def _check_step(self) -> None:
        if self.schedule is not None:
            check_run_schedule(WHO, self.schedule)
        if self.autocast is not None:
            check_choice(WHO, ("bfloat16", "float16"), autocast=self.autocast)
        if self.scaler is not None and not isinstance(self.scaler, GradScaler):
            raise ArgumentError(f"{WHO}: expected scaler as a GradScaler, got {self.scaler!r:.100}")
        if self.lr_scale is not None and not callable(self.lr_scale):
            keep_as(self, as_real, "lr_scale", above=0.0, finite=True)
        check_switch(WHO, resume=self.resume)
        self._keep("callbacks", check_callbacks(WHO, self.callbacks, self.resume))

    def by_drawn(self, seed: int) -> RunConfig:
        """The same run by another seed, which nobody has said either."""
        other = replace(self, seed=seed)
        other._keep("has_drawn_seed", True)
        return other

    @property
    def when(self) -> Policy:
        """The policy itself, where it was given by name too."""
        return as_policy(WHO, self.policy)

    @property
    def place(self) -> PlaceKind:
        """The option that says where ranks live; "given" where none does."""
        return next((name for name in _PLACES if getattr(self, name) is not None), "given")

    @property
    def combination(self) -> Combination:
        """What the table of options is asked."""
        return Combination(
            kind_of_policy(self.when),
            self.average,
            self.dispatch,
            self.on_failure,
            self.place,
            outer=self.outer != Mean(),
            guard=self.guard is not None,
            shares=self.shares is not None,
            overshoot=self.max_overshoot > 0,
            batch_diff=self.max_batch_diff is not None,
            ddp_options=bool(self.ddp_options),
            average_options=bool(self.average_options),
            checks_replicas=self.check_replicas_every is not None,
        )

    def rate_factor(self, world_size: int) -> float:
        """The factor of all rates on so many ranks.

        Raises:
            ArgumentError: lr_scale gives none.
        """
        if self.lr_scale is None:
            return 1.0
        factor = self.lr_scale(world_size) if callable(self.lr_scale) else self.lr_scale
        return as_real(WHO, "lr_scale", factor, above=0.0, finite=True)
