"""ReduceLROnPlateau: lowers the learning rates when what is measured no longer gets better."""

from __future__ import annotations

import math
import weakref
from typing import Any

from minigrad.arguments import as_integer, as_list, as_real, check_choice, is_number
from minigrad.backend.capturing import refuse_in_capture
from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.companions import attach
from minigrad.optim.optimizer import Optimizer, buffers_of
from minigrad.optim.scheduler import check_optimizer

__all__ = ["ReduceLROnPlateau"]

_KEYS = ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")


class ReduceLROnPlateau:
    """Multiplies the rates by factor when what is measured has not got better for more than patience epochs.

    With several ranks each has to be given the same number, as an all_reduce makes it: the next synchronising backward
    raises where they differ. It changes the rates that it finds, so it may follow another schedule.

    Args:
        optimizer: The optimizer.
        mode: "min" where less is better, "max" where more is.
        factor: In (0, 1).
        patience: Epochs in a row without getting better that are borne, >= 0.
        threshold: What counts as better: by more than this fraction of the best, or by more than this, >= 0.
        threshold_mode: "rel" or "abs", which of the two.
        cooldown: Epochs after a change in which nothing counts, >= 0.
        min_lr: No rate goes below, one for all groups or one for each, >= 0.
        eps: A change of less than that is not made, >= 0.

    Attributes:
        best, num_bad_epochs, cooldown_counter, last_epoch: As in PyTorch.

    Raises:
        DtypeError: the optimizer is none.
        ArgumentError: a value out of range.

    Example:
        >>> optimizer = SGD([nn.Parameter(np.ones(2))], lr=0.5)
        >>> scheduler = ReduceLROnPlateau(optimizer, patience=1)
        >>> for loss in (3.0, 2.0, 2.0, 2.0):
        ...     scheduler.step(loss)
        >>> scheduler.get_last_lr()
        [0.05]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        who = "ReduceLROnPlateau"
        self.optimizer = check_optimizer(who, optimizer)
        check_choice(who, ("min", "max"), mode=mode)
        check_choice(who, ("rel", "abs"), threshold_mode=threshold_mode)
        self.mode, self.threshold_mode = mode, threshold_mode
        self.factor = as_real(who, "factor", factor, above=0.0, below=1.0)
        self.patience = as_integer(who, "patience", patience, 0)
        self.threshold = as_real(who, "threshold", threshold, 0.0, finite=True)
        self.cooldown = as_integer(who, "cooldown", cooldown, 0)
        self.eps = as_real(who, "eps", eps, 0.0, finite=True)
        groups = optimizer.param_groups
        lowest = [min_lr] * len(groups) if is_number(min_lr) else as_list(who, "min_lr", min_lr)
        if len(lowest) != len(groups):
            raise ArgumentError(f"{who}: expected min_lr once, or for each of {len(groups)} groups, got {len(lowest)}")
        self.min_lrs = [as_real(who, "min_lr", rate, 0.0, finite=True) for rate in lowest]
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        attach(self, buffers_of(optimizer))

    def step(self, metrics: Any) -> None:
        """Take what was measured in an epoch; to be called after it.

        Args:
            metrics: A number, or a tensor or an array of one element; NaN is never better.

        Raises:
            ArgumentError: it is no number, or the optimizer got another group since.
        """
        refuse_in_capture("ReduceLROnPlateau.step", "a rate that the host sets", "call it outside of the captured step")
        value = _as_number(metrics)
        self.last_epoch += 1
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if self.threshold_mode == "abs":
            return sign * value < sign * self.best - self.threshold
        return sign * value < sign * self.best * (1.0 - sign * self.threshold)

    def _reduce(self) -> None:
        groups = self.optimizer.param_groups
        if len(groups) != len(self.min_lrs):
            raise ArgumentError(
                f"ReduceLROnPlateau: expected an optimizer of {len(self.min_lrs)} groups, got one of {len(groups)}: "
                "add groups before the scheduler is made"
            )
        for group, lowest in zip(groups, self.min_lrs):
            rate = max(group["lr"] * self.factor, lowest)
            if group["lr"] - rate > self.eps:
                group["lr"] = rate
                self.optimizer.moved_by = weakref.ref(self)

    def get_last_lr(self) -> list[float]:
        """The present rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Plain data: what was best, and the counts; the rates are saved with the optimizer."""
        return {key: getattr(self, key) for key in _KEYS}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned, here or in PyTorch, where there is more in it.

        Raises:
            StateDictError: keys are missing, or values out of range; nothing was changed then.
        """
        who = "ReduceLROnPlateau.load_state_dict"
        if not isinstance(state_dict, dict) or not set(_KEYS) <= set(state_dict):
            raise StateDictError(f"{who}: expected a dict with {', '.join(_KEYS)}, got {state_dict!r:.200}")
        try:
            best = as_real(who, "best", state_dict["best"])
            counts = [as_integer(who, key, state_dict[key], 0) for key in _KEYS[1:]]
        except ArgumentError as error:
            raise StateDictError(f"{who}: expected usable values, got others: {error}") from error
        self.best, (self.num_bad_epochs, self.cooldown_counter, self.last_epoch) = best, counts

    def mark(self) -> int:
        """See `nn.companions.Companion`."""
        return hash((self.best, self.num_bad_epochs, self.cooldown_counter, self.last_epoch))

    def settle(self, number: int) -> None:
        """See `nn.companions.Companion`: the mark is the state itself."""


def _as_number(metrics: Any) -> float:
    value = metrics
    if not is_number(metrics) and hasattr(metrics, "item"):
        try:
            value = metrics.item()
        except (ValueError, RuntimeError):  # of several elements
            value = None
    if not is_number(value):
        raise ArgumentError(f"ReduceLROnPlateau.step: expected a number, got {metrics!r:.100}")
    return float(value)
