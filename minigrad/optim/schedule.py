"""Learning-rate schedules: the factor of the base rate as a function of the step.

Any function from a step (an int from 0) to a factor is a schedule; those here can also be compared and printed.
`optim.LRScheduler` applies one to an optimizer; `optim.lr_scheduler` has both in one under PyTorch's names.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.arguments import as_amount, as_integer, as_real, check_switch, keep_as
from minigrad.errors import ArgumentError

__all__ = [
    "Constant", "CosineAnnealing", "CosineRestarts", "ExponentialDecay", "LinearRamp", "MultiStepDecay", "OneCycle",
    "Piecewise", "PolynomialDecay", "Schedule", "StepDecay", "Triangle", "warmup",
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
        object.__setattr__(self, "milestones", check_milestones("MultiStepDecay", self.milestones))
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
class CosineRestarts(Schedule):
    """Half a cosine from 1 down to min_factor, again and again, as PyTorch's CosineAnnealingWarmRestarts.

    Source: Loshchilov and Hutter, "SGDR: Stochastic gradient descent with warm restarts", ICLR 2017, equation 5.

    Args:
        first_steps: Steps until the first restart, >= 1 (PyTorch's T_0).
        multiplier: Each way down has this many times the steps of the one before, an integer >= 1 (PyTorch's T_mult).
        min_factor: >= 0.

    Example:
        >>> [CosineRestarts(2)(step) for step in range(5)]
        [1.0, 0.5, 1.0, 0.5, 1.0]
    """

    first_steps: int
    multiplier: int = 1
    min_factor: float = 0.0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "first_steps", "multiplier", least=1)
        keep_as(self, as_amount, "min_factor")

    def factor(self, step: float) -> float:
        """min_factor + (1 - min_factor)(1 + cos(π since / length)) / 2, with the steps since the last restart"""
        since, length = step, self.first_steps
        if self.multiplier == 1:
            since = step % length
        while since >= length:
            since, length = since - length, length * self.multiplier
        return self.min_factor + (1 - self.min_factor) * (1 + math.cos(math.pi * since / length)) / 2


@dataclass(frozen=True)
class PolynomialDecay(Schedule):
    """From 1 down to 0 over total_steps, then 0, as PyTorch's PolynomialLR.

    Args:
        total_steps: >= 1 (PyTorch's total_iters).
        power: Of the fraction of steps that is left, > 0; 1 is a straight line.
    """

    total_steps: int = 5
    power: float = 1.0

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "total_steps", least=1)
        keep_as(self, as_real, "power", above=0.0, finite=True)

    def factor(self, step: int) -> float:
        """(1 - min(1, step / total_steps)) ** power"""
        return float((1 - min(step, self.total_steps) / self.total_steps) ** self.power)


@dataclass(frozen=True)
class Triangle(Schedule):
    """Up a straight line from 0 to 1 and down again, over and over, as PyTorch's CyclicLR without its bounds.

    Source: Smith, "Cyclical learning rates for training neural networks", WACV 2017.

    Args:
        up_steps, down_steps: Steps of the way up and of the way down, each >= 1.
    """

    up_steps: int = 2000
    down_steps: int = 2000

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "up_steps", "down_steps", least=1)

    def factor(self, step: int) -> float:
        """The height at step mod (up_steps + down_steps)"""
        since = step % (self.up_steps + self.down_steps)
        return since / self.up_steps if since <= self.up_steps else 1 - (since - self.up_steps) / self.down_steps

    def cycle(self, step: int) -> int:
        """Which time up and down this is, from 1."""
        return 1 + step // (self.up_steps + self.down_steps)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """From start_factor up to 1, then down to end_factor, where it stays, as PyTorch's OneCycleLR.

    The base rate is the highest one, PyTorch's max_lr.
    Source: Smith and Topin, "Super-convergence: Very fast training of neural networks using large learning rates",
    2018.

    Args:
        total_steps: Steps of the whole, >= 1.
        rise_fraction: Of the steps that go up, in [0, 1] (PyTorch's pct_start).
        start_factor, end_factor: >= 0 (PyTorch's 1 / div_factor, and that over final_div_factor).
        straight: Go along straight lines; else along halves of a cosine.
        three_phases: Come down to start_factor in as many steps as up, and to end_factor in the rest.

    Example:
        >>> [round(OneCycle(5, rise_fraction=0.5, start_factor=0.5, end_factor=0.0)(step), 3) for step in range(5)]
        [0.5, 0.875, 0.905, 0.345, 0.0]
    """

    total_steps: int
    rise_fraction: float = 0.3
    start_factor: float = 1 / 25
    end_factor: float = 1 / 250000
    straight: bool = False
    three_phases: bool = False

    def __post_init__(self) -> None:
        keep_as(self, as_integer, "total_steps", least=1)
        keep_as(self, as_real, "rise_fraction", least=0.0, most=1.0)
        keep_as(self, as_amount, "start_factor", "end_factor")
        check_switch("OneCycle", straight=self.straight, three_phases=self.three_phases)

    def factor(self, step: int) -> float:
        """From one level to the next: start_factor, 1, with three phases start_factor, and end_factor"""
        return self.along(step, [self.start_factor, 1.0, *[self.start_factor] * self.three_phases, self.end_factor])

    def along(self, step: int, levels: Sequence[float]) -> float:
        """What lies between levels as the factor does between its own: three, or four where there are three phases."""
        rise = self.rise_fraction * self.total_steps
        ends = [rise - 1, *[2 * rise - 2] * self.three_phases, self.total_steps - 1]
        phase = next((i for i, end in enumerate(ends) if step <= end), len(ends) - 1)
        first = ends[phase - 1] if phase else 0.0
        length = ends[phase] - first
        part = min(1.0, (step - first) / length) if length else 1.0
        start, end = levels[phase], levels[phase + 1]
        return end + (start - end) * (1 - part if self.straight else (1 + math.cos(math.pi * part)) / 2)


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
        object.__setattr__(self, "schedules", tuple(check_schedule("Piecewise", s) for s in self.schedules))
        object.__setattr__(self, "milestones", check_milestones("Piecewise", self.milestones))
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
    return Piecewise((LinearRamp(steps, start_factor), check_schedule("warmup", schedule)), (steps,))


def check_schedule(who: str, schedule: Any) -> ScheduleLike:
    """A function as it is; ArgumentError for anything else, a class included."""
    if not callable(schedule) or isinstance(schedule, type):
        raise ArgumentError(f"{who}: expected a function from a step to a factor, got {schedule!r}")
    return schedule  # type: ignore[no-any-return]


def check_milestones(who: str, milestones: Any) -> tuple[int, ...]:
    """Increasing steps >= 1 as a tuple; ArgumentError for others."""
    found = tuple(milestones) if isinstance(milestones, Sequence) else (milestones,)
    for milestone in found:
        as_integer(who, "each milestone", milestone, 1)
    if any(after <= before for before, after in zip(found, found[1:])):
        raise ArgumentError(f"{who}: expected increasing milestones, got {list(found)}")
    return found
