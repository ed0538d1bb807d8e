"""Which options of a run go together: one table, of which each combination either runs or is refused with a reason.

Pure: a `Combination` says of each option what kind it has; where two do not go together a `Rule` says why, and what to
write instead. What a run does with options that go together is said at `RunConfig`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

PolicyKind = Literal["sync", "fixed", "cadence", "async", "own"]  # fixed: steps between two combinations are known
PlaceKind = Literal["given", "ranks", "devices", "comm", "cluster"]
Engine = Literal["in step", "coordinated"]


@dataclass(frozen=True)
class Combination:
    """What kind each option of a run has.

    Attributes:
        place: By which option ranks are said; "given": by none.
        outer: Whether there is another outer optimizer than `Mean`.
        guard, shares, overshoot, batch_diff, ddp_options, average_options, checks_replicas: Whether they are given.
    """

    policy: PolicyKind = "sync"
    average: Literal["gradients", "parameters"] = "gradients"
    dispatch: Literal["static", "proportional", "progressive"] = "static"
    on_failure: Literal["stop", "shrink"] = "stop"
    place: PlaceKind = "given"
    outer: bool = False
    guard: bool = False
    shares: bool = False
    overshoot: bool = False
    batch_diff: bool = False
    ddp_options: bool = False
    average_options: bool = False
    checks_replicas: bool = False

    @property
    def engine(self) -> Engine:
        """How its ranks run: "in step", each knowing what the others do; or "coordinated", told what to do next."""
        apart = self.policy == "async" or self.dispatch == "progressive" or self.on_failure == "shrink"
        return "coordinated" if apart else "in step"


@dataclass(frozen=True)
class Rule:
    """Two or more options that do not go together.

    Attributes:
        refuses: Whether a combination has them.
        expected, got, instead: The words about it.
    """

    refuses: Callable[[Combination], bool]
    expected: str
    got: str
    instead: str

    def __str__(self) -> str:
        return f"expected {self.expected}, got {self.got}: {self.instead}"


RULES = (
    Rule(
        lambda c: c.policy == "async" and c.average == "gradients",
        'average="parameters" with Async',
        '"gradients"',
        "those of a rank that is late are of values that the others have left, so average parameters, or take EveryK",
    ),
    Rule(
        lambda c: c.outer and c.average == "gradients",
        'average="parameters" with an outer optimizer',
        '"gradients"',
        "it goes on from combined parameters, so average these, or leave outer= out",
    ),
    Rule(
        lambda c: c.outer and c.engine == "coordinated",
        "the plain Mean where ranks are not in step",
        "another outer optimizer",
        'take EveryK or Cadence with dispatch="static" and on_failure="stop", or leave outer= out',
    ),
    Rule(
        lambda c: c.policy == "own" and c.average == "gradients",
        'average="parameters" with a policy of your own that has no period',
        '"gradients"',
        "a rank has to know before a backward whether it combines, so give the policy a period",
    ),
    Rule(
        lambda c: c.guard and (c.policy != "cadence" or c.average == "gradients" or c.engine == "coordinated"),
        'guard= with policy=Cadence(), average="parameters" and ranks in step, which it can slow down',
        "something else",
        "leave guard= out, or take these",
    ),
    Rule(
        lambda c: c.ddp_options and (c.average == "parameters" or c.engine == "coordinated"),
        'ddp_options where DDP combines: with average="gradients" and ranks in step',
        "something else",
        "leave ddp_options= out",
    ),
    Rule(
        lambda c: c.checks_replicas and (c.average == "parameters" or c.engine == "coordinated"),
        'check_replicas_every where replicas are alike after each step: with average="gradients" and ranks in step',
        "something else",
        "leave it out",
    ),
    Rule(
        lambda c: c.average_options and (c.average == "gradients" or c.engine == "coordinated"),
        'average_options with average="parameters" and ranks in step',
        "something else",
        "leave average_options= out",
    ),
    Rule(
        lambda c: c.shares and c.dispatch == "progressive",
        'no shares with dispatch="progressive", where ranks take what they have time for',
        "some",
        'leave shares= out, or take dispatch="static"',
    ),
    Rule(
        lambda c: c.dispatch == "proportional" and not c.shares and c.policy != "cadence",
        'policy=Cadence() or shares with dispatch="proportional", by which parts are in proportion',
        "neither",
        'give one of them, or take dispatch="static"',
    ),
    Rule(
        lambda c: c.overshoot and c.engine == "in step",
        "no max_overshoot where ranks run in step, and end an epoch together",
        "some",
        'leave it out, or take dispatch="progressive" or Async',
    ),
    Rule(
        lambda c: c.batch_diff and c.engine == "in step",
        "no max_batch_diff where ranks run in step",
        "some",
        "leave it out, or say it in CadenceConfig",
    ),
    Rule(
        lambda c: c.batch_diff and c.policy in ("sync", "fixed") and not c.shares,
        "max_batch_diff where ranks may be apart: with Cadence, Async or shares",
        "it with a policy by which all make as many batches",
        "leave it out",
    ),
)


def refused(combination: Combination) -> str:
    """Why a combination of options can't run; empty where it can.

    Example:
        >>> refused(Combination())
        ''
        >>> print(refused(Combination(dispatch="progressive", shares=True)))
        expected no shares with dispatch="progressive", where ranks take what they have time for, got some: leave \
shares= out, or take dispatch="static"
    """
    return next((str(rule) for rule in RULES if rule.refuses(combination)), "")
