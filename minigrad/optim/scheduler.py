"""LRScheduler: moves the learning rates of an optimizer along a schedule."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

from minigrad.arguments import as_amount, as_integer, as_list
from minigrad.backend.capturing import refuse_in_capture
from minigrad.errors import ArgumentError, DtypeError, StateDictError
from minigrad.nn.companions import attach
from minigrad.optim.optimizer import Optimizer, buffers_of
from minigrad.optim.schedule import ScheduleLike, check_schedule
from minigrad.optim.state import INITIAL_LR

__all__ = ["LRScheduler"]


class LRScheduler:
    """Sets the learning rate of each group to its base rate times schedule(step).

    The base rate of a group is its "initial_lr", which the first schedule sets to the rate that it finds and which is
    saved with the optimizer, as in PyTorch: a schedule that is made anew and stepped forward, after the optimizer was
    loaded, does not take a rate that is scheduled already as its base. A rate set by hand lasts until the next `step`.
    PyTorch's schedules multiply the present rate instead, so that two of them may be stepped on one optimizer; here
    each says the whole rate, and stepping a second one is refused: `optim.lr_scheduler` joins them.

    A subclass gives `options_at`, or PyTorch's `get_lr`: then it is made as there, by `(optimizer, last_epoch)`.

    Args:
        optimizer: The optimizer; its rates are set at once, for step 0.
        schedule: A function from the step to a factor.
        last_epoch: The last step of an earlier run, after which this one goes on; -1 begins at step 0.

    Attributes:
        last_step: The step whose rates are set; PyTorch's name for it, last_epoch, can be read too.

    Raises:
        DtypeError: the optimizer is none.
        ArgumentError: the schedule can't be called, or gives a rate that is negative or not finite; a last_epoch, where
            a group has no initial_lr.
    """

    def __init__(
        self, optimizer: Optimizer, schedule: ScheduleLike | int | None = None, last_epoch: int = -1
    ) -> None:
        if not self._has_own_get_lr():
            self.schedule = check_schedule(type(self).__name__, schedule)
        elif schedule is not None:
            last_epoch = schedule  # type: ignore[assignment]  # checked where it is used
        self._start(optimizer, last_epoch)

    def _start(self, optimizer: Optimizer, last_epoch: int = -1, base_lrs: list[float] | None = None) -> None:
        """Set the rates of the first step; base_lrs where they are others than the groups say."""
        self.who = type(self).__name__
        groups = check_optimizer(self.who, optimizer).param_groups
        as_integer(self.who, "last_epoch", last_epoch, -1)
        if last_epoch >= 0 and any(INITIAL_LR not in group for group in groups):
            raise ArgumentError(
                f"{self.who}: expected an initial_lr in each group with last_epoch={last_epoch}, got none: "
                "load the optimizer's state first"
            )
        self.optimizer = optimizer
        self.base_lrs: list[float] = base_lrs or [group.get(INITIAL_LR, group["lr"]) for group in groups]
        self.last_step: float = last_epoch + 1
        self._apply(self.last_step, self.base_lrs)
        attach(self, buffers_of(optimizer))

    def options_at(self, step: Any, base_lrs: Sequence[float]) -> list[dict[str, Any]]:
        """What each group gets at a step: its "lr", and what else the schedule moves. For subclasses to override."""
        if self._has_own_get_lr():
            self.last_step, self.base_lrs = step, list(base_lrs)  # what get_lr goes by
            return [{"lr": rate} for rate in as_list(self.who, "the rates of get_lr", self.get_lr())]
        factor = self.schedule(step)
        as_amount(self.who, f"the schedule's factor at step {step}", factor)
        return [{"lr": base * factor} for base in base_lrs]

    def get_lr(self) -> list[float]:
        """The rates of step `last_epoch`; for subclasses in PyTorch's form, from `base_lrs` or the present ones."""
        return [each["lr"] for each in self.options_at(self.last_step, self.base_lrs)]

    @property
    def last_epoch(self) -> int:
        """PyTorch's name for `last_step`."""
        return math.floor(self.last_step)

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step; to be called after the optimizer's own.

        Args:
            epoch: Go to this step instead.

        Raises:
            ArgumentError: the optimizer got another group since, another schedule has stepped it, or the rate is
                negative or not finite.
        """
        refuse_in_capture(f"{self.who}.step", "a rate that the host sets", "call it outside of the captured step")
        check_turn(self, self.optimizer)
        self._apply(self.last_step + 1 if epoch is None else epoch, self.base_lrs)

    def get_last_lr(self) -> list[float]:
        """The rate of each group, as last set here."""
        return list(self._last_lrs)

    def state_dict(self) -> dict[str, Any]:
        """Plain data: the step and the base rates; the schedule itself is code."""
        return {"last_step": self.last_step, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, and set the rates, unless a `get_lr` made them: then they stay.

        Raises:
            StateDictError: other keys, another number of groups, or values out of range; nothing was changed then.
        """
        who = f"{self.who}.load_state_dict"
        if not isinstance(state_dict, dict) or set(state_dict) != {"last_step", "base_lrs"}:
            hint = ""
            if isinstance(state_dict, dict) and not {"last_epoch", "_last_lr"}.isdisjoint(state_dict):
                step = 's["last_epoch"]' if "last_epoch" in state_dict else 's["_schedulers"][0]["last_epoch"]'
                rates = 's["base_lrs"]' if "base_lrs" in state_dict else "scheduler.base_lrs"
                hint = f': for that of PyTorch write {{"last_step": {step}, "base_lrs": {rates}}}'
            raise StateDictError(f"{who}: expected a dict with last_step and base_lrs, got {state_dict!r:.200}{hint}")
        try:
            self._apply(state_dict["last_step"], list(state_dict["base_lrs"]), moves=not self._has_own_get_lr())
        except (ArgumentError, TypeError) as error:
            raise StateDictError(f"{who}: expected values that fit the optimizer, got others: {error}") from error

    def mark(self) -> int:
        """See `nn.companions.Companion`."""
        return hash((self.last_step, *self.base_lrs))

    def settle(self, number: int) -> None:
        """See `nn.companions.Companion`: the mark is the state itself."""

    def _has_own_get_lr(self) -> bool:
        return type(self).get_lr is not LRScheduler.get_lr

    def _check_step(self, step: Any) -> None:
        as_integer(self.who, "last_step", step, 0)

    def _apply(self, step: Any, base_lrs: list[float], moves: bool = True) -> None:
        self._check_step(step)
        groups = self.optimizer.param_groups
        if len(groups) != len(base_lrs):
            raise ArgumentError(
                f"{self.who}: expected an optimizer of {len(base_lrs)} groups, got one of {len(groups)}: "
                "add groups before the scheduler is made"
            )
        options = self.options_at(step, base_lrs) if moves else [{"lr": group["lr"]} for group in groups]
        rates = [as_amount(self.who, f"the learning rate at step {step}", each["lr"]) for each in options]
        if len(rates) != len(groups):
            raise ArgumentError(f"{self.who}: expected a rate for each of {len(groups)} groups, got {len(rates)}")
        for group, each, base in zip(groups, options, base_lrs):
            group.update({INITIAL_LR: base, **each})
        self.last_step, self.base_lrs, self._last_lrs = step, base_lrs, rates


def check_optimizer(who: str, optimizer: Any) -> Optimizer:
    """An optimizer as it is; DtypeError for anything else."""
    if not isinstance(optimizer, Optimizer):
        raise DtypeError(f"{who}: expected an Optimizer, got {type(optimizer).__name__}")
    return optimizer


def check_turn(scheduler: Any, optimizer: Optimizer) -> None:
    """Refuse to move the rates of an optimizer that another schedule, which still lives, has moved.

    Raises:
        ArgumentError: see above; each would undo what the other did.
    """
    other = None if optimizer.moved_by is None else optimizer.moved_by()
    if other is not None and other is not scheduler:
        raise ArgumentError(
            f"{type(scheduler).__name__}.step: expected one schedule that steps an optimizer, got a "
            f"{type(other).__name__} that has stepped it too: join them by optim.lr_scheduler.SequentialLR or "
            "ChainedScheduler, or delete the one that is over"
        )
    optimizer.moved_by = weakref.ref(scheduler)
