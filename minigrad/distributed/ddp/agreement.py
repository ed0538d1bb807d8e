"""What ranks tell each other of what must be alike: a module, who has which gradient, and the state beside the model.

The latter only where their marks differ, see `alike`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from minigrad.arguments import is_real
from minigrad.backend.device import to_host
from minigrad.backend.dtypes import Array
from minigrad.distributed.comm.context import communicator_for
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.differences import Facts, describe, difference, gather_alike
from minigrad.distributed.comm.headers import announce
from minigrad.distributed.record.fingerprint import fingerprint
from minigrad.errors import ArgumentError, DeviceError, UnreducedGradientError
from minigrad.nn.companions import Companion
from minigrad.nn.module import Module
from minigrad.nn.parameter import Parameter
from minigrad.optim.optimizer import Optimizer
from minigrad.tensor import Tensor

Description = dict[str, Any]  # plain data: "idle", "options" and "companions", each of these [kind, places, facts]


# ------------------------------------------------------------------------------------------------------- the module


def check_replicas(module: Module, comm: Communicator, options: Mapping[str, object]) -> None:
    """Refuse replicas that differ in the names, shapes, dtypes, order or requires_grad of parameters and buffers.

    Args:
        options: What else has to be alike, by name.

    Raises:
        ReplicaMismatchError: on all ranks; it names the first difference.
    """
    announce(comm, "DistributedDataParallel wraps a module")
    facts = {**describe(module), **{name: repr(value) for name, value in options.items()}}
    gather_alike("DistributedDataParallel", "replicas", comm, facts)


def check_wrappable(module: Module, given: Communicator | None, wrapper: type[Module]) -> Communicator:
    """The communicator, or this context's; refuses what DistributedDataParallel, the wrapper, can't wrap.

    Raises:
        ArgumentError: no module or communicator, a wrapper inside, or nothing to train.
        DeviceError: the parameters do not live on the communicator's device.
    """
    if not isinstance(module, Module):
        raise ArgumentError(f"DistributedDataParallel: expected a Module, got {type(module).__name__}")
    comm = communicator_for("DistributedDataParallel", given)
    if any(isinstance(inner, wrapper) for inner in module.modules()):
        raise ArgumentError("DistributedDataParallel: expected a module without wrapper inside, got a nested one")
    params = list(module.parameters())
    check_free("DistributedDataParallel", params)
    if not any(p.requires_grad for p in params):
        raise ArgumentError(
            f"DistributedDataParallel: expected a parameter that requires grad, got none in {type(module).__name__}"
        )
    devices = {p.device for p in params}
    if devices != {comm.device}:
        listed = ", ".join(sorted(map(str, devices)))
        raise DeviceError(
            f"rank {comm.rank}: DistributedDataParallel: expected all parameters on {comm.device}, got {listed}: "
            "move the module first"
        )
    return comm


def tell_of_copy(name: str, comm: Communicator) -> None:
    """Every rank copies its wrapper of this name: one that does something else is told so."""
    announce(comm, f"a copy of {name} is made")


def check_free(who: str, params: Iterable[Parameter]) -> None:
    """Refuse parameters whose gradients something combines already; ArgumentError."""
    if any(getattr(listener, "reduces", False) for param in params for listener in param.listeners):
        raise ArgumentError(
            f"{who}: expected parameters that nothing reduces yet, got some of a wrapper, or of a graph on several "
            "devices: unwrap() the one, build another model instead of the other"
        )


def present(
    who: str, names: Sequence[str], counts: Array | Sequence[float], has: Mapping[int, Sequence[float]]
) -> set[int]:
    """The numbers of the parameters of which any rank has a gradient.

    Args:
        who: For the message.
        names: Of all parameters.
        counts: The samples of each rank.
        has: For each parameter that is combined, whether each rank has a gradient of it.

    Raises:
        UnreducedGradientError: a rank with samples has none where another has one.
    """
    used = {i for i, on in has.items() if any(on)}
    for i in (i for i in has if i in used):
        lacking = [str(rank) for rank, own in enumerate(has[i]) if counts[rank] > 0 and not own]
        if lacking:
            raise UnreducedGradientError(
                f"{who}: expected a gradient of parameter {names[i]} on every rank that counts, got none on rank "
                f"{', '.join(lacking)}: use it in the loss there, or count 0 samples"
            )
    return used


# ---------------------------------------------------------------------------------------------------- beside the model


def places_of(companion: Any, index: Mapping[int, int]) -> list[int] | None:
    """The numbers of the parameters that an optimizer, or the optimizer of a schedule, has; None for others.

    Args:
        index: The number of each parameter in the layout, by its id.
    """
    optimizer = getattr(companion, "optimizer", companion)
    if not isinstance(optimizer, Optimizer):
        return None
    return sorted(index[id(param)] for param in optimizer.params() if id(param) in index)


def describe_state(
    companions: Callable[[], list[Companion]],
    options: Mapping[str, Any],
    names: Sequence[str],
    index: Mapping[int, int],
    idle: bool,
) -> Description:
    """All that a rank has beside the model, in plain data; waits for devices.

    Args:
        companions: Finds them. What was replaced and nobody holds any more is gone by then.
        options: Of the wrapper.
        names: Of the parameters in the layout.
        index: See `places_of`.
        idle: Whether this rank had no samples, and so may not have used all that it has.
    """
    kinds = [*map(_kind_of, companions())]
    if len(set(kinds)) < len(kinds):
        gc.collect()
    described = [_describe_companion(each, names, index) for each in companions()]
    return {"idle": idle, "options": _facts_in(options), "companions": described}


def _kind_of(companion: Companion) -> str:
    return "optimizer" if isinstance(companion, Optimizer) else type(companion).__name__


def _describe_companion(companion: Companion, names: Sequence[str], index: Mapping[int, int]) -> list[Any]:
    places = places_of(companion, index)
    if not isinstance(companion, Optimizer):
        return [_kind_of(companion), places, _facts_in(companion.state_dict())]
    facts = {"class": companion.name, "master_weights": str(companion.master_weights)}
    facts["parameters"] = ", ".join(names[i] for i in places or [])
    for i, group in enumerate(companion.param_groups):
        of = "" if len(companion.param_groups) == 1 else f" of group {i}"
        facts |= {name + of: _said(group[name]) for name in companion.defaults}
    state = companion.state_dict()["state"]
    for i, param in enumerate(companion.params()):
        name = names[index[id(param)]] if id(param) in index else f"parameter {i}"
        facts |= {f"{key} of {name}": said for key, said in _facts_in(state.get(i, {})).items()}
    return [_kind_of(companion), places, facts]


def _facts_in(state: Mapping[str, Any]) -> Facts:
    """The values of a state, or of options, in words that are the same where they are; arrays by fingerprint."""
    return {name: _said(value) for name, value in state.items()}


def _said(value: Any) -> str:
    data = value.data if isinstance(value, Tensor) else value
    if isinstance(value, Tensor):
        return f"an array of fingerprint {int(to_host(fingerprint(data))):016x}"
    if isinstance(data, (list, tuple)):
        return f"[{', '.join(map(_said, data))}]"
    if is_real(data):
        number = float(data)
        return str(int(number)) if number.is_integer() else repr(number)
    return repr(data)


def is_divided(found: Mapping[int, Description]) -> bool:
    """Whether the optimizers of each rank have parameters that those of no other have."""
    owned = [
        {place for _, places, _ in each["companions"] if places is not None for place in places}
        for each in found.values()
    ]
    return sum(map(len, owned)) == len(set[int]().union(*owned))


def without_optimizers(description: Description) -> Description:
    """A description of what does not belong to parameters."""
    return {**description, "companions": [each for each in description["companions"] if each[1] is None]}


def states_differ(my: Description, their: Description, mine: int, theirs: int) -> str:
    """What differs first between two ranks, in words; empty where nothing does."""
    options = my["options"], their["options"]
    both = options[0].keys() & options[1].keys()  # what is in force on one rank only is said to be None on the others
    ours, others = ({name: each[name] for name in each if name in both} for each in options)
    words = difference(ours, others, mine, theirs)
    kinds = dict.fromkeys(kind for kind, _, _ in (*my["companions"], *their["companions"]))
    for kind in kinds:
        held, met = _facts_of(kind, my), _facts_of(kind, their)
        for a, b in zip(held, met):
            label = a.get("class", kind) if a.get("class") == b.get("class") else kind
            unlike = difference(a, b, mine, theirs)
            words = words or (unlike and f"{label}: {unlike}")
        missing = my["idle"] if len(held) < len(met) else their["idle"]
        if len(held) != len(met) and not (kind != "optimizer" and missing):
            words = words or f"{len(held)} {kind} on rank {mine} and {len(met)} on rank {theirs}"
    return words


def _facts_of(kind: str, description: Description) -> list[Facts]:
    """Of each companion of a kind, in an order that does not depend on when it was made."""
    found = [(places or [], facts) for k, places, facts in description["companions"] if k == kind]
    return [facts for _, facts in sorted(found, key=lambda each: (each[0], [*each[1].items()]))]
