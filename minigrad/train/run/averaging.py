"""Who combines in a run, and when: policies by name, and what kind each is for the table of options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minigrad.arguments import check_choice, check_switch
from minigrad.distributed import average as averaging
from minigrad.distributed.average.averager import ParameterAverager
from minigrad.distributed.average.options import AverageOptions
from minigrad.distributed.average.policies import check_policy
from minigrad.distributed.balance.guards import as_guard
from minigrad.distributed.record.timeline import Timeline
from minigrad.errors import ArgumentError
from minigrad.train.options import PolicyKind

_BY_NAME: dict[str, Callable[[], averaging.Policy]] = {
    "sync": averaging.Sync,
    "cadence": averaging.Cadence,
    "async": lambda: averaging.Async(bound=4),
}
_ASKED = ("optimizer_state", "buffers", "integer_buffers", "init_sync")  # of ParameterAverager's options


def as_policy(who: str, policy: Any) -> averaging.Policy:
    """A policy, also by the seeds' names: "sync", "cadence", and "async" for `Async(bound=4)`.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(policy, str):
        if policy not in _BY_NAME:
            names = ", ".join(map(repr, _BY_NAME))
            raise ArgumentError(f"{who}: expected policy as one, or one of {names}, got {policy!r}")
        return _BY_NAME[policy]()
    return check_policy(who, policy)


def kind_of_policy(policy: averaging.Policy) -> PolicyKind:
    """Its kind in the table of options."""
    if isinstance(policy, averaging.Async):
        return "async"
    if isinstance(policy, averaging.Cadence):
        return "cadence"
    if isinstance(policy, averaging.Sync):
        return "sync"
    fixed = policy.period is not None or isinstance(policy, averaging.PostLocalSGD)
    return "fixed" if fixed else "own"


def check_average_options(who: str, options: Any) -> dict[str, Any]:
    """Options of `ParameterAverager` that a run leaves to it.

    Raises:
        ArgumentError: no mapping, or an option that it has not, or that the run has itself.
    """
    if not isinstance(options, Mapping):
        raise ArgumentError(f"{who}: expected average_options by name, got {options!r:.100}")
    for name in options:
        if name not in _ASKED:
            raise ArgumentError(f"{who}: expected average_options among {', '.join(_ASKED)}, got {name!r:.100}")
    return dict(options)


def check_averaging(policy: averaging.Policy, outer: Any, average: str, guard: Any, options: Mapping[str, Any]) -> None:
    """Refuse what a `ParameterAverager` would, before there is one; ArgumentError."""
    who = "ParameterAverager"
    check_choice(who, ("keep", "average", "reset"), optimizer_state=options.get("optimizer_state", "keep"))
    check_switch(who, init_sync=options.get("init_sync", True))
    beside = {name: options[name] for name in ("buffers", "integer_buffers") if name in options}
    given = {"buffers": "merge", "integer_buffers": "compare", **beside}
    AverageOptions(policy, outer, average, None, "keep", **given, guard=guard)


def averager_of(
    model: Any,
    comm: Any,
    optimizer: Any,
    policy: averaging.Policy,
    outer: Any,
    guard: Any,
    options: Mapping[str, Any],
    timeline: Timeline | None = None,
) -> ParameterAverager:
    """What combines the parameters of a run's ranks."""
    given = {"optimizer": optimizer, "guard": guard, "timeline": timeline, **options}
    return ParameterAverager(model, comm, policy, outer, average="parameters", **given)


__all__ = ["as_guard", "as_policy", "averager_of", "check_average_options", "check_averaging", "kind_of_policy"]
