"""Schedules and what applies them in one, under the names, arguments and defaults of `torch.optim.lr_scheduler`.

Each is an `LRScheduler`, so it says the whole rate of a step: a rate that was set by hand lasts until the next one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from minigrad.absent import absent
from minigrad.arguments import as_amount, as_integer, as_list, as_real, check_choice, check_switch
from minigrad.errors import ArgumentError
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.plateau import ReduceLROnPlateau
from minigrad.optim.schedule import (
    CosineAnnealing,
    CosineRestarts,
    ExponentialDecay,
    LinearRamp,
    MultiStepDecay,
    OneCycle,
    PolynomialDecay,
    ScheduleLike,
    StepDecay,
    Triangle,
    check_milestones,
    check_schedule,
)
from minigrad.optim.scheduler import LRScheduler, check_optimizer

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialLR",
    "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR", "PolynomialLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
]

_LRScheduler = LRScheduler  # its name in older programs
Rates = float | Sequence[float]  # one for all groups, or one for each


class StepLR(LRScheduler):
    """Times gamma every step_size steps; see `StepDecay`, and `LRScheduler` for optimizer and last_epoch."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        super().__init__(optimizer, StepDecay(step_size, gamma), last_epoch)


class MultiStepLR(LRScheduler):
    """Times gamma at each milestone; see `MultiStepDecay`, and `LRScheduler` for optimizer and last_epoch."""

    def __init__(
        self, optimizer: Optimizer, milestones: Sequence[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        super().__init__(optimizer, MultiStepDecay(milestones, gamma), last_epoch)


class ExponentialLR(LRScheduler):
    """Times gamma at every step; see `ExponentialDecay`, and `LRScheduler` for optimizer and last_epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        super().__init__(optimizer, ExponentialDecay(gamma), last_epoch)


class ConstantLR(LRScheduler):
    """Times factor until step total_iters, then the base rate; see `LRScheduler` for optimizer and last_epoch.

    Args:
        factor: In [0, 1].
        total_iters: Steps, >= 0.
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        low = as_real("ConstantLR", "factor", factor, 0.0, 1.0)
        end = as_integer("ConstantLR", "total_iters", total_iters, 0)
        super().__init__(optimizer, lambda step: low if step < end else 1.0, last_epoch)


class LinearLR(LRScheduler):
    """From start_factor to end_factor in a straight line; see `LinearRamp`, and `LRScheduler` for the others.

    Args:
        start_factor: In (0, 1].
        end_factor: In [0, 1].
        total_iters: Steps, >= 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        start = as_real("LinearLR", "start_factor", start_factor, most=1.0, above=0.0)
        end = as_real("LinearLR", "end_factor", end_factor, 0.0, 1.0)
        steps = as_integer("LinearLR", "total_iters", total_iters, 1)
        super().__init__(optimizer, LinearRamp(steps, start, end), last_epoch)


class PolynomialLR(LRScheduler):
    """Down to 0 over total_iters steps, >= 1; see `PolynomialDecay`, and `LRScheduler` for the others."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        steps = as_integer("PolynomialLR", "total_iters", total_iters, 1)
        super().__init__(optimizer, PolynomialDecay(steps, power), last_epoch)


class LambdaLR(LRScheduler):
    """The base rate times what a function says of the step; see `LRScheduler` for optimizer and last_epoch.

    Args:
        lr_lambda: From a step to a factor; one function, or one for each group.
    """

    def __init__(
        self, optimizer: Optimizer, lr_lambda: ScheduleLike | Sequence[ScheduleLike], last_epoch: int = -1
    ) -> None:
        self.lr_lambdas = _for_each_group(type(self).__name__, "lr_lambda", optimizer, lr_lambda, check_schedule)
        self._start(optimizer, last_epoch)

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """Each group's rate by its own function."""
        return [{"lr": base * factor} for base, factor in zip(base_lrs, self._factors(step))]

    def _factors(self, step: int) -> list[float]:
        return [as_amount(self.who, f"lr_lambda({step})", factor_of(step)) for factor_of in self.lr_lambdas]


class MultiplicativeLR(LambdaLR):
    """The rate of the step before times what a function says of this one, from step 1; see `LambdaLR`."""

    _known: tuple[int, list[float]] = 0, []  # a step, and the product up to it for each group

    def _factors(self, step: int) -> list[float]:
        first, products = self._known if 0 < self._known[0] <= step else (0, [1.0] * len(self.lr_lambdas))
        for passed in range(first + 1, step + 1):
            products = [product * factor for product, factor in zip(products, super()._factors(passed))]
        self._known = step, products
        return products


class _Between(LRScheduler):
    """From a low rate, where the schedule is 0, to a high one, where it is 1: one of each for each group."""

    low: list[float]
    high: list[float] | None = None  # the base rates

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """low + (high - low) · schedule(step)"""
        part = self._part(step)
        return [{"lr": low + (high - low) * part} for low, high in zip(self.low, self.high or base_lrs)]

    def _part(self, step: Any) -> float:
        return self.schedule(step)


class CosineAnnealingLR(_Between):
    """Half a cosine from the base rate to eta_min, and up again; see `CosineAnnealing`, and `LRScheduler`.

    Args:
        T_max: Steps of the way down, >= 1.
        eta_min: The lowest rate, >= 0.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:
        self.low = rates_of_groups("CosineAnnealingLR", "eta_min", optimizer, eta_min)
        super().__init__(optimizer, CosineAnnealing(as_integer("CosineAnnealingLR", "T_max", T_max, 1)), last_epoch)


class CosineAnnealingWarmRestarts(_Between):
    """Half a cosine from the base rate to eta_min, again and again; see `CosineRestarts`, and `LRScheduler`.

    Args:
        T_0: Steps until the first restart, >= 1.
        T_mult: Each way down has this many times the steps of the one before, an integer >= 1.
        eta_min: The lowest rate, >= 0.
    """

    def __init__(
        self, optimizer: Optimizer, T_0: int, T_mult: int = 1, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        who = "CosineAnnealingWarmRestarts"
        self.low = rates_of_groups(who, "eta_min", optimizer, eta_min)
        self.restarts = CosineRestarts(as_integer(who, "T_0", T_0, 1), as_integer(who, "T_mult", T_mult, 1))
        super().__init__(optimizer, self.restarts, last_epoch)

    def step(self, epoch: float | None = None) -> None:
        """Go to the next step, or to a place between two: `step(epoch + i / batches)` after each batch.

        Raises:
            ArgumentError: see `LRScheduler.step`.
        """
        super().step(epoch)  # type: ignore[arg-type]

    def _check_step(self, step: Any) -> None:
        as_amount(self.who, "last_step", step)

    def _part(self, step: float) -> float:
        return self.restarts.factor(step)


class CyclicLR(_Between):
    """Up and down between two rates, over and over; see `Triangle`, and `LRScheduler` for optimizer and last_epoch.

    Args:
        base_lr, max_lr: The lowest and the highest rate, each one for all groups or one for each.
        step_size_up: Steps of the way up, >= 1.
        step_size_down: Steps of the way down, as many as up by default.
        mode: "triangular"; "triangular2", where each time goes half as high; "exp_range", times gamma at each step.
        gamma: > 0, for "exp_range".
        scale_fn: Instead of mode, what the height above base_lr is multiplied by.
        scale_mode: What scale_fn is given: "cycle", which time up and down this is, from 1, or "iterations", the step.
        cycle_momentum: Move momentum, or the first of betas, the other way.
        base_momentum, max_momentum: Its bounds, in [0, 1), each one for all groups or one for each.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: Rates,
        max_lr: Rates,
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[int], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: Rates = 0.8,
        max_momentum: Rates = 0.9,
        last_epoch: int = -1,
    ) -> None:
        self.low = rates_of_groups("CyclicLR", "base_lr", optimizer, base_lr)
        self.high = rates_of_groups("CyclicLR", "max_lr", optimizer, max_lr)
        check_choice("CyclicLR", ("triangular", "triangular2", "exp_range"), mode=mode)
        check_choice("CyclicLR", ("cycle", "iterations"), scale_mode=scale_mode)
        up = as_integer("CyclicLR", "step_size_up", step_size_up, 1)
        down = up if step_size_down is None else as_integer("CyclicLR", "step_size_down", step_size_down, 1)
        self.mode, self.gamma = mode, as_real("CyclicLR", "gamma", gamma, above=0.0, finite=True)
        self.scale_fn = None if scale_fn is None else check_schedule("CyclicLR", scale_fn)
        self.scale_mode, self.triangle = scale_mode, Triangle(up, down)
        self.momenta = _Momentum(optimizer, cycle_momentum, [base_momentum, max_momentum], "CyclicLR")
        self.schedule: ScheduleLike = self.triangle
        self._start(optimizer, last_epoch, self.low if last_epoch < 0 else None)

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """Rates between their bounds, and momentum where it moves too."""
        part = self._part(step)
        momenta = self.momenta.options(lambda low, high: high - (high - low) * part)
        return [{**each, **more} for each, more in zip(super().options_at(step, base_lrs), momenta)]

    def _part(self, step: int) -> float:
        return self.triangle(step) * self._scale(step)

    def _scale(self, step: int) -> float:
        cycle = self.triangle.cycle(step)
        if self.scale_fn is not None:
            return self.scale_fn(cycle if self.scale_mode == "cycle" else step)
        return {"triangular": 1.0, "triangular2": 0.5 ** (cycle - 1), "exp_range": self.gamma**step}[self.mode]


class OneCycleLR(LRScheduler):
    """Up to max_lr, then down to almost nothing, momentum the other way; see `OneCycle`, and `LRScheduler`.

    Args:
        max_lr: The highest rate, one for all groups or one for each.
        total_steps: Steps of the whole; or epochs times steps_per_epoch, each >= 1.
        pct_start: Fraction of the steps that go up, in [0, 1].
        anneal_strategy: "cos" or "linear".
        cycle_momentum: Move momentum, or the first of betas, from max_momentum to base_momentum and back.
        base_momentum, max_momentum: In [0, 1), each one for all groups or one for each.
        div_factor: The first rate is max_lr / div_factor, > 0.
        final_div_factor: The last rate is the first one / final_div_factor, > 0.
        three_phase: Come down to the first rate in as many steps as up, and to the last one in the rest.

    Raises:
        ArgumentError: a value out of range; momentum of 0 that should move; a step beyond total_steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: Rates,
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: Rates = 0.85,
        max_momentum: Rates = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError("OneCycleLR: expected total_steps, or epochs and steps_per_epoch, got neither")
            counts = (("epochs", epochs), ("steps_per_epoch", steps_per_epoch))
            each, per = (as_integer("OneCycleLR", name, count, 1) for name, count in counts)
            total_steps = each * per
        self.total_steps = as_integer("OneCycleLR", "total_steps", total_steps, 1)
        check_choice("OneCycleLR", ("cos", "linear"), anneal_strategy=anneal_strategy)
        check_switch("OneCycleLR", three_phase=three_phase)
        start = 1 / as_real("OneCycleLR", "div_factor", div_factor, above=0.0, finite=True)
        end = start / as_real("OneCycleLR", "final_div_factor", final_div_factor, above=0.0, finite=True)
        rise = as_real("OneCycleLR", "pct_start", pct_start, 0.0, 1.0)
        self.max_lrs = rates_of_groups("OneCycleLR", "max_lr", optimizer, max_lr)
        self.momenta = _Momentum(optimizer, cycle_momentum, [base_momentum, max_momentum], "OneCycleLR")
        self.cycle = OneCycle(self.total_steps, rise, start, end, anneal_strategy == "linear", three_phase)
        self.schedule: ScheduleLike = self.cycle
        self._start(optimizer, last_epoch, [high * start for high in self.max_lrs] if last_epoch < 0 else None)

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """Rates, and momentum where it moves too."""
        if step > self.total_steps:
            raise ArgumentError(f"{self.who}: expected at most {self.total_steps} steps, got step {step}")
        momenta = self.momenta.options(lambda low, high: self.cycle.along(step, [high, low, high, high]))
        factor = self.cycle.factor(step)
        return [{"lr": high * factor, **more} for high, more in zip(self.max_lrs, momenta)]


class SequentialLR(LRScheduler):
    """One schedule after the other, each counting steps from its own start; see `LRScheduler` for the others.

    Args:
        schedulers: At least one, made on the same optimizer; they are not stepped themselves.
        milestones: The steps at which the second and later ones start: increasing, each >= 1, one fewer.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[LRScheduler], milestones: Sequence[int], last_epoch: int = -1
    ) -> None:
        self.schedulers = _same_optimizer("SequentialLR", optimizer, schedulers)
        self.milestones = check_milestones("SequentialLR", milestones)
        if len(self.milestones) != len(self.schedulers) - 1:
            raise ArgumentError(
                f"SequentialLR: expected one milestone fewer than schedulers, "
                f"got {len(self.schedulers)} schedulers and {len(self.milestones)} milestones"
            )
        self._start(optimizer, last_epoch)

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """What the scheduler of this step says, at the steps since its start."""
        i = bisect_right(self.milestones, step)
        return self.schedulers[i].options_at(step - (self.milestones[i - 1] if i else 0), base_lrs)


class ChainedScheduler(LRScheduler):
    """The base rate times the factors of all schedules; so it stays where CosineAnnealingLR goes up again, in which
    PyTorch adds to the rate that it finds.

    Args:
        schedulers: At least one, made on the same optimizer, each of which multiplies: those that move between rates
            of their own, and LambdaLR, do not. They are not stepped themselves.
        optimizer: Theirs.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Optimizer | None = None) -> None:
        found = as_list("ChainedScheduler", "schedulers", schedulers)
        given = getattr(found[0], "optimizer", None) if found and optimizer is None else optimizer
        self.schedulers = _same_optimizer("ChainedScheduler", given, found)
        for scheduler in self.schedulers:
            if not _multiplies(scheduler):
                raise ArgumentError(
                    f"ChainedScheduler: expected schedules that multiply, got a {type(scheduler).__name__}, which says "
                    "the rate itself: join them by SequentialLR, or write one function for LambdaLR"
                )
        self._start(self.schedulers[0].optimizer)

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """The base rates times all factors."""
        rates = list(base_lrs)
        for scheduler in self.schedulers:
            rates = [each["lr"] for each in scheduler.options_at(step, rates)]
        return [{"lr": rate} for rate in rates]


def _multiplies(scheduler: LRScheduler) -> bool:
    if isinstance(scheduler, CosineAnnealingLR):
        return not any(scheduler.low)
    if isinstance(scheduler, (_Between, OneCycleLR, SequentialLR)):
        return False
    return isinstance(scheduler, MultiplicativeLR) or not isinstance(scheduler, LambdaLR)


class _Momentum:
    """Momentum of SGD and RMSprop, or the first of Adam's betas, that moves between two values for each group."""

    def __init__(self, optimizer: Optimizer, moves: bool, bounds: Sequence[Rates], who: str) -> None:
        check_switch(who, cycle_momentum=moves)
        self.optimizer, self.moves = optimizer, moves
        if not moves:
            return
        names = ("base_momentum", "max_momentum")
        self.bounds = list(zip(*(rates_of_groups(who, n, optimizer, r, below=1.0) for n, r in zip(names, bounds))))
        for group in optimizer.param_groups:
            if not (group["momentum"] if "momentum" in group else "betas" in group):
                raise ArgumentError(
                    f"{who}: expected an optimizer with momentum or betas to move, got {optimizer.name} with "
                    f"{'momentum 0' if 'momentum' in group else 'neither'}: make it with momentum, "
                    "or write cycle_momentum=False"
                )

    def options(self, between: Callable[[float, float], float]) -> list[dict[str, Any]]:
        """What each group gets, from its bounds."""
        groups = self.optimizer.param_groups
        if not self.moves:
            return [{} for _ in groups]
        values = [between(low, high) for low, high in self.bounds]
        return [
            {"momentum": value} if "momentum" in group else {"betas": (value, *group["betas"][1:])}
            for group, value in zip(groups, values)
        ]


def _for_each_group(who: str, name: str, optimizer: Any, values: Any, check: Callable[..., Any]) -> list[Any]:
    """A value for each group, checked; one alone is for all."""
    count = len(check_optimizer(who, optimizer).param_groups)
    if not isinstance(values, (list, tuple)):
        values = [values] * count
    if len(values) != count:
        raise ArgumentError(f"{who}: expected {name} once, or for each of {count} groups, got {len(values)}")
    return [check(who, value) for value in values]


def rates_of_groups(who: str, name: str, optimizer: Any, values: Any, below: float | None = None) -> list[float]:
    """A number >= 0 for each group."""
    check = lambda who, value: as_real(who, name, value, 0.0, below=below, finite=True)  # noqa: E731
    return _for_each_group(who, name, optimizer, values, check)


def _same_optimizer(who: str, optimizer: Any, schedulers: Any) -> list[LRScheduler]:
    """Schedulers of this optimizer."""
    found = as_list(who, "schedulers", schedulers)
    if not found:
        raise ArgumentError(f"{who}: expected at least one scheduler, got none")
    for scheduler in found:
        if not isinstance(scheduler, LRScheduler):
            raise ArgumentError(f"{who}: expected schedulers, got a {type(scheduler).__name__}")
        if scheduler.optimizer is not optimizer:
            raise ArgumentError(f"{who}: expected schedulers of one optimizer, got a {scheduler.who} of another one")
    return found


def __getattr__(name: str) -> Any:
    raise absent(__name__, name)
