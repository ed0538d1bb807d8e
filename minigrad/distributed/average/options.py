"""The options of a `ParameterAverager`: checked, alone and together, and told to the other ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minigrad.arguments import check_choice
from minigrad.distributed.average.asynchronous import Async
from minigrad.distributed.average.buffers import INTEGER_BUFFERS, IntegerBuffers
from minigrad.distributed.average.fragments import count_of
from minigrad.distributed.average.outer import Mean, OuterOptimizer
from minigrad.distributed.average.policies import Policy, check_policy, facts_of
from minigrad.distributed.comm.differences import in_words
from minigrad.distributed.balance.guards import NoGuard, as_guard, guard_data
from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.parameter import Parameter
from minigrad.optim.optimizer import Optimizer, settled_parts

_WHO = "ParameterAverager"


@dataclass(frozen=True)
class AverageOptions:
    """What a `ParameterAverager` was told; see there.

    Raises:
        ArgumentError: an option is none, or two of them do not go together.
    """

    policy: Policy
    outer: OuterOptimizer
    average: str
    optimizer: Optimizer | None
    optimizer_state: str
    buffers: str
    integer_buffers: IntegerBuffers
    guard: Any

    def __post_init__(self) -> None:
        check_policy(_WHO, self.policy)
        check_outer(self.outer)
        check_choice(_WHO, ("parameters", "gradients"), average=self.average)
        check_choice(_WHO, ("keep", "average", "reset"), optimizer_state=self.optimizer_state)
        check_choice(_WHO, ("merge", "keep"), buffers=self.buffers)
        check_choice(_WHO, INTEGER_BUFFERS, integer_buffers=self.integer_buffers)
        object.__setattr__(self, "guard", as_guard(_WHO, self.guard))
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise ArgumentError(f"{_WHO}: expected an optimizer, got {type(self.optimizer).__name__}")
        if self.optimizer_state != "keep" and self.optimizer is None:
            raise ArgumentError(
                f"{_WHO}: expected optimizer= with optimizer_state={self.optimizer_state!r}, got none: give the one "
                "that makes this rank's steps"
            )
        if isinstance(self.policy, Async):
            self._check_async()
        if self.average == "gradients":
            self._check_gradients()
        if self.is_guarded and not self.policy.takes_guard:
            raise ArgumentError(
                f"{_WHO}: expected a policy that a guard can slow down, got {self.policy}: use Cadence(), or read "
                "report.divergence"
            )
        self._check_spacing()

    def _check_gradients(self) -> None:
        if self.outer != Mean() or self.optimizer_state != "keep" or self.is_guarded:
            raise ArgumentError(
                f'{_WHO}: expected outer=Mean(), optimizer_state="keep" and no guard with average="gradients", whose '
                f"parameters and optimizers stay alike, got {self.outer}, {self.optimizer_state!r} and {self.guard}"
            )

    def _check_async(self) -> None:
        if self.average == "gradients":
            raise ArgumentError(
                f'{_WHO}: expected average="parameters" with {self.policy}, got "gradients": those of a rank that is '
                "late are of values that the others have left, so average parameters, or take EveryK(k)"
            )
        got = (self.outer, self.optimizer_state, self.integer_buffers)
        if got != (Mean(), "keep", "compare"):
            raise ArgumentError(
                f'{_WHO}: expected outer=Mean(), optimizer_state="keep" and no integer_buffers= with {self.policy}, '
                f"under which ranks are never at one place, got {', '.join(map(repr, got))}: take EveryK(k)"
            )

    def _check_spacing(self) -> None:
        parts, delay, period = self.parts, self.outer.delay, self.policy.period
        if parts == 1 and not delay:
            return
        if period is None:
            raise ArgumentError(
                f"{_WHO}: expected a policy with a fixed period where an outer optimizer has fragments or a delay, got "
                f"{self.policy}: use EveryK(k)"
            )
        if period % parts or delay >= period // parts:
            raise ArgumentError(
                f"{_WHO}: expected a period that {parts} fragments divide, in parts longer than the delay of {delay}, "
                f"got {period} steps: write EveryK({-(-max(period, (delay + 1) * parts) // parts) * parts})"
            )

    def check_optimizer_of(self, params: Sequence[Parameter]) -> None:
        """Refuse an optimizer of other parameters, whose state would be combined for nothing; ArgumentError."""
        if self.optimizer is not None and set(map(id, params)).isdisjoint(map(id, self.optimizer.params())):
            raise ArgumentError(
                f"{_WHO}: expected an optimizer of the module's parameters, got {self.optimizer.name} of others: give "
                "the one that makes this rank's steps"
            )

    @property
    def parts(self) -> int:
        """In how many parts the parameters are combined."""
        return count_of(self.outer.fragments)

    @property
    def spacing(self) -> int | None:
        """Steps from one fragment to the next; None where the policy is asked."""
        if self.parts == 1 and not self.outer.delay:
            return None
        return (self.policy.period or 1) // self.parts

    def optimizer_to_step(self) -> Optimizer:
        """The optimizer, for a rank without data to make the steps of the others; ArgumentError where there is none."""
        if self.optimizer is None:
            raise ArgumentError(
                f'{_WHO}.finish: expected optimizer= with average="gradients", whose steps it makes for a rank without '
                "data, got none: give it, or call step(0) and optimizer.step() as often as the others do"
            )
        return self.optimizer

    @property
    def is_guarded(self) -> bool:
        """Whether a guard is asked."""
        return not isinstance(self.guard, NoGuard)

    def facts(self) -> dict[str, str]:
        """What has to be alike on all ranks, by name."""
        told = {**facts_of(self.policy), "outer": in_words(self.outer), "average": self.average}
        told |= {"optimizer_state": self.optimizer_state, "buffers": self.buffers}
        told |= {"integer_buffers": self.integer_buffers, "guard": str(guard_data(self.guard))}
        return {**told, **self._facts_of_moments()}

    def _facts_of_moments(self) -> dict[str, str]:
        """Of the optimizer where its state is averaged: its kind, and which state it has of which parameters."""
        if self.optimizer is None or self.optimizer_state != "average":
            return {}
        told = {"optimizer": self.optimizer.name}
        for number, part in enumerate(settled_parts(self.optimizer)):
            names = ", ".join(str(param.name) for param in part.params)
            told[f"optimizer part {number}"] = f"{', '.join(part.slots) or 'no state'} of {names}"
        return told


def check_facts(who: str, own: Mapping[str, str], saved: Mapping[str, str]) -> None:
    """Refuse the state of other options.

    Raises:
        StateDictError: it names the first that is another one.
    """
    for name, value in own.items():
        if saved.get(name) != value:
            raise StateDictError(f"{who}: expected a state with {name} {value}, got {saved.get(name)}")


def check_outer(outer: Any) -> None:
    """Refuse what is no outer optimizer; ArgumentError."""
    names = ("start", "combine")
    if isinstance(outer, type) or not all(callable(getattr(outer, name, None)) for name in names):
        kind = f"the class {outer.__name__}" if isinstance(outer, type) else repr(outer)
        raise ArgumentError(
            f"{_WHO}: expected an outer optimizer, such as Mean() or DiLoCo(), got {kind:.100}: one of your own has "
            "fragments, delay, makes_alike, start(values) and combine(state, local, average)"
        )
    for name in ("fragments", "delay", "makes_alike"):
        if not hasattr(outer, name):
            raise ArgumentError(f"{_WHO}: expected an outer optimizer with {name}, got {outer!r:.100}")
