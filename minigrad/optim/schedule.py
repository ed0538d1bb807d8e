"""Learning-rate schedules: the factor of the base rate as a function of the step, and the object that applies it.

Any function from a step (an int from 0) to a factor is a schedule; those here can also be compared and printed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.arguments import as_amount, as_integer, as_real, keep_as
from minigrad.errors import ArgumentError, DtypeError, StateDictError
from minigrad.nn.companions import attach
from minigrad.nn.flat import flatten
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.state import INITIAL_LR

__all__ = [
    "Constant", "CosineAnnealing", "ExponentialDecay", "LRScheduler", "LinearRamp", "MultiStepDecay", "Piecewise",
    "Schedule", "StepDecay", "warmup",
]

ScheduleLike = Callable[[int], float]


class Schedule:
    """A function of the step: schedule(step) is the factor of the base learning rate.

    Raises:
        ArgumentError: the step is no integer >= 0.
    """

    def __call__(self, step: int) -> float:
        as_integer(type(self).__name__, "step", step, 0)
        return self.factor(step)

    def factor(self, step: int) -> float:
        """The formula; step is an integer >= 0."""
        raise NotImplementedError(f"{type(self).__name__} has no formula")


@dataclass(frozen=True)
class Constant(Schedule):
    """The same factor, >= 0, at every step."""

    value: float = 1.0

    def __post_init__(self) -> None:
        keep_as(self, as_amount, "value")

    def factor(self, step: int) -> float:
        """value"""
        return self.value


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Times gamma every step_size steps, as PyTorch's StepLR.

    Args:
        step_size: Steps, >= 1.
        gamma: > 0.

    Example:
        >>> [StepDecay(2, gamma=0.5)(step) for step in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    step_size: int
    gamma: float = 0.1

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "step_size", least=1)
        keep_as(self, as_real, "gamma", above=0.0, finite=True)

    def factor(self, step: int) -> float:
        """gamma ** (step // step_size)"""
        return float(self.gamma ** (step // self.step_size))


@dataclass(frozen=True)
class MultiStepDecay(Schedule):
    """Times gamma at each milestone, as PyTorch's MultiStepLR.

    Args:
        milestones: Steps, increasing, each >= 1.
        gamma: > 0.
    """

    milestones: Sequence[int]
    gamma: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "milestones", _check_milestones("MultiStepDecay", self.milestones))
        keep_as(self, as_real, "gamma", above=0.0, finite=True)

    def factor(self, step: int) -> float:
        """gamma ** (the number of milestones <= step)"""
        return float(self.gamma ** bisect_right(self.milestones, step))


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """Times gamma, > 0, at every step, as PyTorch's ExponentialLR."""

    gamma: float

    def __post_init__(self) -> None:
        keep_as(self, as_real, "gamma", above=0.0, finite=True)

    def factor(self, step: int) -> float:
        """gamma ** step"""
        return float(self.gamma**step)


@dataclass(frozen=True)
class CosineAnnealing(Schedule):
    """Half a cosine from 1 down to min_factor over total_steps, then up again, as PyTorch's CosineAnnealingLR.

    Source: Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", ICLR 2017, without restarts.

    Args:
        total_steps: Steps of the way down, >= 1 (PyTorch's T_max).
        min_factor: >= 0; PyTorch's eta_min is min_factor times the base rate.
    """

    total_steps: int
    min_factor: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "total_steps", least=1)
        keep_as(self, as_amount, "min_factor")

    def factor(self, step: int) -> float:
        """min_factor + (1 - min_factor)(1 + cos(π step / total_steps)) / 2"""
        return self.min_factor + (1 - self.min_factor) * (1 + math.cos(math.pi * step / self.total_steps)) / 2


@dataclass(frozen=True)
class LinearRamp(Schedule):
    """A straight line from start_factor to end_factor over total_steps, then end_factor, as PyTorch's LinearLR.

    Args:
        total_steps: >= 1 (PyTorch's total_iters).
        start_factor, end_factor: >= 0.
    """

    total_steps: int = 5
    start_factor: float = 1 / 3
    end_factor: float = 1.0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "total_steps", least=1)
        keep_as(self, as_amount, "start_factor", "end_factor")

    def factor(self, step: int) -> float:
        """start_factor + (end_factor - start_factor) · min(1, step / total_steps)"""
        rise = self.end_factor - self.start_factor
        return self.start_factor + rise * min(step, self.total_steps) / self.total_steps


@dataclass(frozen=True)
class Piecewise(Schedule):
    """One schedule after the other, each counting steps from its own start, as PyTorch's SequentialLR.

    Args:
        schedules: At least one.
        milestones: The steps at which the second and later ones start: increasing, each >= 1, one fewer.
    """

    schedules: Sequence[ScheduleLike]
    milestones: Sequence[int]

    def __post_init__(self) -> None:
        if not isinstance(self.schedules, Sequence):
            raise ArgumentError(f"Piecewise: expected a list of schedules, got {self.schedules!r}")
        object.__setattr__(self, "schedules", tuple(_check_schedule("Piecewise", s) for s in self.schedules))
        object.__setattr__(self, "milestones", _check_milestones("Piecewise", self.milestones))
        if len(self.milestones) != len(self.schedules) - 1:
            raise ArgumentError(
                f"Piecewise: expected one milestone fewer than schedules, "
                f"got {len(self.schedules)} schedules and {len(self.milestones)} milestones"
            )

    def factor(self, step: int) -> float:
        """The factor of the schedule that step falls into, at the steps since its start"""
        i = bisect_right(self.milestones, step)
        return self.schedules[i](step - (self.milestones[i - 1] if i else 0))


def warmup(schedule: ScheduleLike, steps: int, start_factor: float = 1 / 3) -> Piecewise:
    """A straight line from start_factor to 1 over so many steps, then the schedule from its start.

    Raises:
        ArgumentError: schedule can't be called, steps < 1, or start_factor < 0.

    Example:
        >>> [warmup(StepDecay(2, gamma=0.5), 2, start_factor=0.5)(step) for step in range(6)]
        [0.5, 0.75, 1.0, 1.0, 0.5, 0.5]
    """
    as_integer("warmup", "steps", steps, 1)
    as_amount("warmup", "start_factor", start_factor)
    return Piecewise((LinearRamp(steps, start_factor), _check_schedule("warmup", schedule)), (steps,))


class LRScheduler:
    """Sets the learning rate of each group to its base rate times schedule(step).

    The base rate of a group is its "initial_lr", which the first schedule sets to the rate that it finds and which is
    saved with the optimizer, as in PyTorch: a schedule that is made anew and stepped forward, after the optimizer was
    loaded, does not take a rate that is scheduled already as its base. A rate set by hand lasts until the next `step`.

    Args:
        optimizer: The optimizer; its rates are set at once, for step 0.
        schedule: A function from the step to a factor.

    Raises:
        DtypeError: the optimizer is none.
        ArgumentError: the schedule can't be called, or gives a rate that is negative or not finite.
    """

    def __init__(self, optimizer: Optimizer, schedule: ScheduleLike) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DtypeError(f"LRScheduler: expected an Optimizer, got {type(optimizer).__name__}")
        self.optimizer, self.schedule = optimizer, _check_schedule("LRScheduler", schedule)
        self.base_lrs: list[float] = [group.get(INITIAL_LR, group["lr"]) for group in optimizer.param_groups]
        self.last_step = 0
        self._apply(0, self.base_lrs)
        attach(self, flatten(optimizer.params()))

    def step(self) -> None:
        """Go to the next step.

        Raises:
            ArgumentError: the optimizer got another group since, or the rate is negative or not finite.
        """
        self._apply(self.last_step + 1, self.base_lrs)

    def get_last_lr(self) -> list[float]:
        """The rate of each group, as last set here."""
        return list(self._last_lrs)

    def state_dict(self) -> dict[str, Any]:
        """Plain data: the step and the base rates; the schedule itself is code."""
        return {"last_step": self.last_step, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, and set the rates.

        Raises:
            StateDictError: other keys, another number of groups, or values out of range; nothing was changed then.
        """
        who = "LRScheduler.load_state_dict"
        if not isinstance(state_dict, dict) or set(state_dict) != {"last_step", "base_lrs"}:
            raise StateDictError(f"{who}: expected a dict with last_step and base_lrs, got {state_dict!r}")
        try:
            as_integer(who, "last_step", state_dict["last_step"], 0)
            self._apply(state_dict["last_step"], list(state_dict["base_lrs"]))
        except (ArgumentError, TypeError) as error:
            raise StateDictError(f"{who}: expected values that fit the optimizer, got others: {error}") from error

    def mark(self) -> int:
        """See `nn.companions.Companion`."""
        return hash((self.last_step, *self.base_lrs))

    def settle(self, number: int) -> None:
        """See `nn.companions.Companion`: the mark is the state itself."""

    def _apply(self, step: int, base_lrs: list[float]) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(base_lrs):
            raise ArgumentError(
                f"LRScheduler: expected an optimizer of {len(base_lrs)} groups, got one of {len(groups)}: "
                "add groups before the scheduler is made"
            )
        factor = self.schedule(step)
        as_amount("LRScheduler", f"the schedule's factor at step {step}", factor)
        rates = [base * factor for base in base_lrs]
        for rate in rates:
            as_amount("LRScheduler", f"the learning rate at step {step}", rate)
        for group, rate, base in zip(groups, rates, base_lrs):
            group["lr"], group[INITIAL_LR] = rate, base
        self.last_step, self.base_lrs, self._last_lrs = step, base_lrs, rates


def _check_schedule(who: str, schedule: Any) -> ScheduleLike:
    if not callable(schedule) or isinstance(schedule, type):
        raise ArgumentError(f"{who}: expected a function from a step to a factor, got {schedule!r}")
    return schedule  # type: ignore[no-any-return]


def _check_milestones(who: str, milestones: Any) -> tuple[int, ...]:
    found = tuple(milestones) if isinstance(milestones, Sequence) else (milestones,)
    for milestone in found:
        as_integer(who, "each milestone", milestone, 1)
    if any(after <= before for before, after in zip(found, found[1:])):
        raise ArgumentError(f"{who}: expected increasing milestones, got {list(found)}")
    return found
