"""The state of an optimizer as a state_dict, in PyTorch's form."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from minigrad.arguments import as_amount, is_real
from minigrad.backend.device import to_device
from minigrad.backend.dtypes import Array, is_half
from minigrad.errors import ArgumentError, DtypeError, StateDictError
from minigrad.nn.parameter import Parameter
from minigrad.ops.foreign import array_of
from minigrad.optim.part import Part
from minigrad.tensor import Tensor

# Keys of PyTorch's groups that choose between equal implementations, name parameters, or belong to a schedule.
_WITHOUT_MEANING = {"foreach", "fused", "capturable", "differentiable", "param_names"}
_WITHOUT_MEANING |= {"max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}

INITIAL_LR = "initial_lr"  # of a group: the base of a schedule, see `LRScheduler`
MASTER = "master_weights"  # float32 copies of parameters; an optimizer makes them anew where they are missing

Member = tuple[Parameter, Part, int]  # a parameter, its part, and its position in there
Saved = tuple[int, dict[str, Array]]  # of a parameter: its step, and its arrays by name


class Kept(Protocol):
    """What is read of an optimizer, and written to it."""

    name: str
    defaults: dict[str, Any]
    param_groups: list[dict[str, Any]]
    parts: list[list[Part]]
    step_limit: int

    def slots(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the state arrays that a group with these options needs."""

    def check(self, group: dict[str, Any]) -> None:
        """Raise ArgumentError where an option is out of range."""

    def params(self) -> list[Parameter]:
        """All parameters, in the order of the groups."""


def state_views(member: Member) -> dict[str, Array]:
    """The state of a parameter by name, in its shape and in the optimizer's memory."""
    param, part, _ = member
    start, stop = part.buffer.span(param)
    if part.slots and stop - start != param.numel():
        raise ArgumentError(
            f"Optimizer: expected the whole state of {getattr(param, 'name', None) or 'a parameter'}, got that of "
            f"{stop - start} of its {param.numel()} elements: ask the ShardedOptimizer it was given to, on all ranks"
        )
    return {name: part.state[name][start:stop].reshape(param.shape) for name in part.slots}


def optimizer_state(optimizer: Kept, views: Callable[[Member], Mapping[str, Array]] = state_views) -> dict[str, Any]:
    """Options and state of an optimizer.

    Args:
        views: Gives the arrays of a parameter that was updated; by default those of the optimizer itself.
    """
    state = {}
    for index, member in enumerate(members_of(optimizer)):
        _, part, i = member
        entry: dict[str, Any] = {"step": part.steps[i]} if _counts(optimizer) else {}
        if part.steps[i]:
            entry.update({name: Tensor(array) for name, array in views(member).items()})
            if entry:
                state[index] = entry
    groups, first = [], 0
    for group in optimizer.param_groups:
        count = len(group["params"])
        groups.append({**group, "params": list(range(first, first + count))})
        first += count
    return {"state": state, "param_groups": groups}


class StateView(dict[str, Tensor]):
    """The state of a parameter: its tensors can be changed, but not replaced."""

    def __setitem__(self, name: str, value: Any) -> None:
        raise ArgumentError(
            f"Optimizer.state: expected its tensors to stay in their place, got another {name}: "
            f"write state[param][{name!r}].copy_(...), or load_state_dict"
        )


class StateViews(dict[Parameter, StateView]):
    """The state of each parameter that was updated."""

    def __missing__(self, param: Any) -> StateView:
        raise ArgumentError(
            "Optimizer.state: expected a parameter that was updated, got another one: an optimizer of your own names "
            "its state in slots() and gets it in update(), see Optimizer"
        )


def state_by_parameter(optimizer: Kept) -> StateViews:
    """State of each parameter that was updated; tensors share memory with the optimizer."""
    state, params = optimizer_state(optimizer)["state"], optimizer.params()
    return StateViews({params[index]: StateView(entry) for index, entry in state.items()})


def load_optimizer_state(
    optimizer: Kept, state_dict: Mapping[str, Any], restore: Callable[[Member, Saved], None] | None = None
) -> None:
    """Put options and state into an optimizer: everything is checked first, then copied.

    Args:
        restore: Copies the state of one parameter; by default all of it.

    Raises:
        StateDictError: something does not fit; nothing was changed then.
    """
    who = f"{optimizer.name}.load_state_dict"
    _check_keys(who, "with state and param_groups", state_dict, {"state", "param_groups"})
    saved_groups = state_dict["param_groups"]
    _check_groups(who, optimizer, saved_groups)
    options = [_saved_options(who, optimizer, saved) for saved in saved_groups]
    for parts, values in zip(optimizer.parts, options):
        _check_slots(who, parts, optimizer.slots(values))
    keys = [key for saved in saved_groups for key in saved["params"]]
    state = _check_mapping(who, "of state by parameter", state_dict["state"])
    unknown = [key for key in state if key not in keys]
    if unknown:
        raise StateDictError(f"{who}: expected state of the parameters in param_groups, got state of {unknown}")
    members = members_of(optimizer)
    entries = [_saved_entry(who, optimizer, member, key, state.get(key, {})) for key, member in zip(keys, members)]
    for group, values in zip(optimizer.param_groups, options):
        group.pop(INITIAL_LR, None)
        group.update(values)
    for member, entry in zip(members, entries):
        (restore or _restore)(member, entry)


def _counts(optimizer: Kept) -> bool:
    return optimizer.step_limit == sys.maxsize


def members_of(optimizer: Kept) -> list[Member]:
    """Where each parameter's state lies, in the order of the groups."""
    found = {id(p): (p, part, i) for parts in optimizer.parts for part in parts for i, p in enumerate(part.params)}
    return [found[id(param)] for param in optimizer.params()]


def _check_mapping(who: str, what: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise StateDictError(f"{who}: expected a dict {what}, got {type(value).__name__}")
    return value


def _check_keys(who: str, what: str, value: Any, expected: set[str]) -> None:
    if set(_check_mapping(who, what, value)) != expected:
        inside = [name for name, held in value.items() if isinstance(held, Mapping) and expected == set(held)]
        hint = f": load what is under {inside[0]!r}" if inside else ""
        raise StateDictError(f"{who}: expected a dict {what}, got keys {sorted(map(str, value))}{hint}")


def _check_groups(who: str, optimizer: Kept, saved_groups: Any) -> None:
    """The saved groups have as many parameters as ours."""
    ours = [len(group["params"]) for group in optimizer.param_groups]
    try:
        saved = [len(group["params"]) for group in saved_groups]
    except (TypeError, KeyError) as error:
        raise StateDictError(f'{who}: expected param_groups to be dicts with "params", got {saved_groups!r}') from error
    if saved != ours:
        raise StateDictError(f"{who}: expected groups of {ours} parameters, got groups of {saved}")


def _check_slots(who: str, parts: list[Part], needed: tuple[str, ...]) -> None:
    """The state that the saved options need was made at construction."""
    for part in parts:
        if not set(needed) <= set(part.slots):
            raise StateDictError(
                f"{who}: expected options that need no more state than {', '.join(part.slots) or 'none'}, got options "
                f"that need {', '.join(needed)}: make the optimizer with the options that it was saved with"
            )


def _saved_options(who: str, optimizer: Kept, saved: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a saved group, checked; a switch that it lacks was not there yet, here or in PyTorch."""
    known = optimizer.defaults
    saved = {**{name: value for name, value in known.items() if isinstance(value, bool)}, **saved}
    missing = [name for name in known if name not in saved]
    unknown = [
        name
        for name, value in saved.items()
        if name not in {*known, "params", INITIAL_LR, *_WITHOUT_MEANING} and value not in (None, False)
    ]
    if missing or unknown:
        raise StateDictError(
            f"{who}: expected groups with options {', '.join(known)}, got missing {missing} and unknown {unknown}"
        )
    options = {name: _plain(saved[name]) for name in known}
    try:
        optimizer.check(options)
        if INITIAL_LR in saved:
            options[INITIAL_LR] = as_amount(who, INITIAL_LR, _plain(saved[INITIAL_LR]))
    except ArgumentError as error:
        raise StateDictError(f"{who}: expected options in range, got others: {error}") from error
    return options


def _plain(value: Any) -> Any:
    """A saved option: a list is a tuple, and a tensor of no axes, as PyTorch may have it, its number."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(each) for each in value)
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def _saved_entry(who: str, optimizer: Kept, member: Member, key: Any, saved: Any) -> Saved:
    """Step and arrays of one parameter, checked; step 0 and no arrays where there is no state."""
    param, part, _ = member
    label = f"state of parameter {getattr(param, 'name', None) or key} of shape {param.shape}"
    entry = _check_mapping(who, f"as {label}", saved)
    present = {name: value for name, value in entry.items() if value is not None}
    if not present:
        return 0, {}
    expected = set(part.slots) | ({"step"} if _counts(optimizer) else set())
    if MASTER not in present:
        expected.discard(MASTER)
    _check_keys(who, f"with {', '.join(sorted(expected))} as {label}", present, expected)
    step = _as_step(who, label, present.pop("step", optimizer.step_limit))
    shape, dtypes = param.shape, {name: part.state[name].dtype for name in part.slots}
    return step, {name: _saved_array(who, name, label, value, shape, dtypes[name]) for name, value in present.items()}


def _saved_array(
    who: str, name: str, label: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """A saved tensor, of ours or of another library, that fits; one of 16 bits, as PyTorch has them, is widened."""
    try:
        array = array_of(f"{who}: {name}", value)
    except DtypeError as error:
        raise StateDictError(str(error)) from error
    narrow = array is not None and is_half(array.dtype) and dtype == np.float32
    if array is None or array.shape != shape or not (array.dtype == dtype or narrow):
        got = type(value).__name__ if array is None else f"{array.dtype.name} {array.shape}"
        raise StateDictError(f"{who}: expected {name} of {dtype.name} {shape} in the {label}, got {got}")
    return array


def _as_step(who: str, label: str, value: Any) -> int:
    """A saved step, which PyTorch keeps as a float tensor of no axes."""
    number = value.item() if getattr(value, "shape", None) == () else value
    if not is_real(number) or number < 0 or number % 1 != 0:
        raise StateDictError(f"{who}: expected step to be a whole number >= 0 in the {label}, got {value!r}")
    return int(number)


def _restore(member: Member, saved: Saved) -> None:
    _, part, i = member
    part.steps[i], arrays = saved
    with part.buffer.device.current():
        for name, view in state_views(member).items():
            view[...] = to_device(arrays[name], part.buffer.device) if name in arrays else 0
