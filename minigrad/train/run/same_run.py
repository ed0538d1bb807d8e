"""What a run says of itself in its checkpoints, and in what one that goes on from there has to be like it.

Much may be another: how many ranks, epochs and steps, the schedule, how gradients are clipped. What a state says, so
that another option would do nothing, may not: that is refused. Rates follow: see `Updates.follow`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minigrad.errors import ArgumentError, StateDictError
from minigrad.nn.bundle import is_stateful
from minigrad.train.run.config import WHO, RunConfig
from minigrad.train.run.rank import Worker

PLAIN = "run"  # the name of what has no state of its own


def options_of(worker: Worker) -> dict[str, Any]:
    """What a checkpoint says of the options of its run, plain data."""
    config, updates = worker.config, worker.updates
    return {
        "engine": config.combination.engine,
        "seed": config.seed,
        "optimizer": updates.made,
        "scaler": None if config.scaler is None else str(config.scaler.state_dict()),
        "rates": list(updates.made_rates),
    }


def told_in(saved: Any) -> Mapping[str, Any]:
    """What is not in the state of an object, of a rank that has saved; StateDictError where no run has written it."""
    told = saved.get(PLAIN) if isinstance(saved, Mapping) else None
    if not isinstance(told, Mapping) or "options" not in told:
        got = [*saved] if isinstance(saved, Mapping) else type(saved).__name__
        raise StateDictError(f"{WHO}: expected a checkpoint that a run has written, got one of {got}")
    return told


def check_engine(config: RunConfig, told: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of ranks that were directed in another way; ArgumentError."""
    before, now = told["options"]["engine"], config.combination.engine
    if before != now:
        raise ArgumentError(
            f"{WHO}: expected a checkpoint of ranks that are {now}, got one of ranks that were {before}: resume with "
            "the policy, dispatch and on_failure of that run, or load its model alone"
        )


def go_on(worker: Worker, told: Mapping[str, Any]) -> None:
    """Compare a worker, which has the states of a run, with that run, and let its rates follow.

    Raises:
        ArgumentError: an option is another, and would do nothing.
    """
    before, now = told["options"], options_of(worker)
    check_engine(worker.config, told)
    if worker.config.has_drawn_seed:
        now["seed"] = before["seed"]
    for name in ("seed", "optimizer", "scaler"):
        if before[name] != now[name]:
            raise ArgumentError(
                f"{WHO}: expected {name}={before[name]}, which the run has that is resumed, and its state says, got "
                f"{now[name]}: write the same, or name another folder"
            )
    worker.updates.follow(before["rates"])


def check_names(objects: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Refuse the states of other objects than these; StateDictError."""
    here, there = {*objects}, {*saved} - {PLAIN}
    if here != there:
        lacks, more = sorted(here - there), sorted(there - here)
        got = [f"none of {name}" for name in lacks] + [f"one of {name}" for name in more]
        raise StateDictError(
            f"{WHO}: expected a checkpoint with states of {sorted(here)}, got {' and '.join(got)}: resume with the "
            "options that the run had"
        )
    for name, thing in objects.items():
        if isinstance(thing, Mapping):
            check_names(thing, saved[name])


def states_of_callbacks(config: RunConfig) -> dict[str, Any]:
    """The callbacks that have a state, by their types and where there are several of one by number; {} without any."""
    found: dict[str, Any] = {}
    for each in filter(is_stateful, config.callbacks):
        name = type(each).__name__
        same = sum(other.partition(" ")[0] == name for other in found)
        found[f"{name} {same + 1}" if same else name] = each
    return {"callbacks": found} if found else {}
