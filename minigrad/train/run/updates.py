"""What makes the steps of one replica: its optimizer, with the schedule, the scaler and the clipping of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minigrad.arguments import as_real
from minigrad.errors import ArgumentError
from minigrad.nn.clip import clip_grad_norm_
from minigrad.nn.module import Module
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.scaler import GradScaler
from minigrad.optim.scheduler import LRScheduler
from minigrad.tensor import Tensor
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.schedules import schedule_of


class Updates:
    """Steps one replica as a run says.

    Args:
        world_size: For rates that depend on it.

    Attributes:
        optimizer: What make_optimizer made.
        schedule: None where the run has none.
        scaler: This rank's own; None where the run has none.
        made_rates: The rate of each group as it was made.
        made: Of which type the optimizer is, and the other options of its groups, in words.

    Raises:
        ArgumentError: make_optimizer made no optimizer, or one of other parameters.
    """

    def __init__(self, config: RunConfig, model: Module, world_size: int) -> None:
        self._params, self._max_norm = list(model.parameters()), config.max_grad_norm
        self.optimizer = config.make_optimizer(list(self._params))
        if not isinstance(self.optimizer, Optimizer):
            got = type(self.optimizer).__name__
            raise ArgumentError(f"{WHO}: expected make_optimizer(params) to make an Optimizer, got {got}")
        own = set(map(id, self._params))
        strange = sum(id(param) not in own for param in self.optimizer.params())
        if strange:
            raise ArgumentError(
                f"{WHO}: expected make_optimizer(params) to make an optimizer of these params, got one with {strange} "
                "others, which no rank would combine: let it make a new one in each call"
            )
        factor = config.rate_factor(world_size)
        if factor != 1.0:
            self._scale_rates(factor)
        self.made_rates, self.made = _as_made(self.optimizer)
        schedule = schedule_of(config.schedule, world_size)
        self.schedule = LRScheduler(self.optimizer, schedule) if schedule is not None else None
        self.scaler: GradScaler | None = None
        if config.scaler is not None:
            self.scaler = GradScaler(enabled=config.scaler.is_enabled())
            self.scaler.load_state_dict(config.scaler.state_dict())

    def show(self) -> None:
        """Let who keeps the replica alike on ranks see all of this from now on."""
        if self.scaler is not None:
            self.scaler.attach(self.optimizer)

    def scaled(self, loss: Tensor) -> Tensor:
        """What backward begins at."""
        if self.scaler is None:
            return loss
        scaled: Tensor = self.scaler.scale(loss)
        return scaled

    def step(self) -> None:
        """Clip and step by the gradients that there are, move the rates, and forget the gradients."""
        if self._max_norm is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self._params, self._max_norm)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()

    def skip(self) -> None:
        """Forget the gradients."""
        self.optimizer.zero_grad()

    # -------------------------------------------------------------------------------------------------------- rates

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return float(self.optimizer.param_groups[0]["lr"])

    def set_rate(self, rate: Any) -> None:
        """Give all groups this rate from now on.

        Raises:
            ArgumentError: no finite rate >= 0; or there is a schedule, which would move it at the next step.
        """
        value = as_real(WHO, "lr", rate, least=0.0, finite=True)
        if self.schedule is not None:
            raise ArgumentError(
                f"{WHO}: expected no schedule where a callback sets the rate, got {self.schedule.schedule!r:.100}, "
                "which moves it at the next step: write worker.scale_lr(factor), or leave schedule= out"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = value

    def scale_rate(self, factor: Any) -> None:
        """Multiply all rates from now on, those that a schedule will give too.

        Raises:
            ArgumentError: no factor > 0.
        """
        value = as_real(WHO, "factor of lr", factor, above=0.0, finite=True)
        self._change_rates(lambda rate, number: value * rate)

    def follow(self, before: Sequence[float]) -> None:
        """A run is resumed whose rates were made as these: where they are made otherwise here, go on by that factor.

        So that another rate of make_optimizer counts, and a lr_scale by ranks where they are more or fewer than then.
        """
        now = self.made_rates
        if [*before] != now:
            same = [1.0 if then == rate else rate / then if then else None for then, rate in zip(before, now)]
            self._change_rates(lambda rate, n: now[n] if (by := same[n]) is None else by * rate)

    def _change_rates(self, changed: Callable[[float, int], float]) -> None:
        """Give each group changed(rate, number) for its rate; for the base of it, where there is a schedule."""
        if self.schedule is None:
            for number, group in enumerate(self.optimizer.param_groups):
                group["lr"] = changed(group["lr"], number)
            return
        told = self.schedule.state_dict()
        rates = [changed(rate, number) for number, rate in enumerate(told["base_lrs"])]
        self.schedule.load_state_dict({**told, "base_lrs": rates})

    def _scale_rates(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = factor * group["lr"]

    def everything(self) -> dict[str, Any]:
        """What has a state, by name."""
        found = {"optimizer": self.optimizer, "schedule": self.schedule, "scaler": self.scaler}
        return {name: each for name, each in found.items() if each is not None}


def _as_made(optimizer: Optimizer) -> tuple[list[float], str]:
    """The rates of an optimizer, and its type with the other options of its groups, in words."""
    groups = optimizer.param_groups
    options = [{name: group[name] for name in sorted(group) if name not in ("params", "lr")} for group in groups]
    return [float(group["lr"]) for group in groups], f"{type(optimizer).__name__} {options}"
