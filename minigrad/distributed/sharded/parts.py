"""An optimizer cut to the runs of one rank: its parts, its whole state, and what of a whole state is this rank's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from minigrad.backend.device import to_device
from minigrad.backend.dtypes import Array
from minigrad.distributed.sharded.gradients import ShardedGradients
from minigrad.errors import StateDictError
from minigrad.nn.parameter import Parameter
from minigrad.optim.optimizer import Optimizer, all_parts
from minigrad.optim.part import Part
from minigrad.optim.run import FlatRun
from minigrad.optim.state import Member, Saved, members_of


def cut(optimizer: Optimizer, gradients: ShardedGradients) -> None:
    """Put parts of this rank's own runs in the place of those that hold whole flat buffers.

    A part counts the steps of all parameters of its bucket, also of those of which this rank has no element, so that
    counts are the same on all ranks. State that the optimizer has is lost: see `restore_run`.
    """
    empty: dict[tuple[int, int | None], FlatRun] = {}  # by flat buffer and bucket: of parameters that others own
    for parts in optimizer.parts:
        if all(isinstance(part.buffer, FlatRun) for part in parts):
            continue
        slots = {id(param): part.slots for part in parts for param in part.params}
        members: dict[int, tuple[FlatRun, list[Parameter]]] = {}
        for param in (param for part in parts for param in part.params):
            bucket = gradients.bucket_of(param)  # None where it gets no gradient
            run = _run_of(param, () if bucket is None else gradients.own[bucket])
            if run is None:
                run = empty.setdefault((id(param.flat), bucket), FlatRun(param.flat, 0, 0, param.flat.params))
            members.setdefault(id(run), (run, []))[1].append(param)
        for part in parts:
            optimizer._state.pop(id(part.buffer), None)
        parts[:] = [
            Part(run, params, slots[id(params[0])], optimizer._state.setdefault(id(run), {}))
            for run, params in members.values()
        ]


def _run_of(param: Parameter, runs: Iterable[FlatRun]) -> FlatRun | None:
    """The run that has elements of a parameter."""
    spans = ((run, run.span(param)) for run in runs)
    return next((run for run, (start, stop) in spans if start < stop), None)


def whole_views(optimizer: Optimizer, gradients: ShardedGradients) -> Callable[[Member], Mapping[str, Array]]:
    """What gives the whole state of a parameter, put together from all ranks; all of them call it."""
    slots: dict[int, dict[str, Any]] = {}  # of each bucket with state: names and dtypes, the same on all ranks
    for part in all_parts(optimizer):
        for param, step in zip(part.params, part.steps):
            bucket = gradients.bucket_of(param)
            if step and bucket is not None:
                slots.setdefault(bucket, {}).update({name: part.state[name].dtype for name in part.slots})
    gathered: dict[tuple[int, str], Array] = {}
    for bucket in sorted(slots):
        states = [optimizer._state.get(id(run), {}) for run in gradients.own[bucket]]
        for name, dtype in sorted(slots[bucket].items()):
            gathered[bucket, name] = gradients.gathered(bucket, [state.get(name) for state in states], dtype)

    def views(member: Member) -> Mapping[str, Array]:
        param, part, _ = member
        bucket = gradients.bucket_of(param)
        assert bucket is not None  # without a bucket it was never updated
        start, stop = gradients.place(bucket, param)
        return {name: gathered[bucket, name][start:stop].reshape(param.shape) for name in part.slots}

    return views


def restore_run(member: Member, saved: Saved) -> None:
    """Copy what this rank has of the whole state of one parameter."""
    param, part, i = member
    run, (step, arrays) = part.buffer, saved
    assert isinstance(run, FlatRun)
    part.steps[i] = step
    start, stop = run.span(param)
    with run.device.current():
        for name in part.slots:
            whole = arrays.get(name)
            own = 0 if whole is None else to_device(whole.reshape(-1)[run.piece(param)], run.device)
            part.state[name][start:stop] = own


def check_homed(who: str, optimizer: Optimizer, gradients: ShardedGradients, state_dict: Any) -> None:
    """Refuse state of a parameter that is in no bucket: no rank has room for it.

    Raises:
        StateDictError: there is some.
    """
    state = state_dict.get("state") if isinstance(state_dict, Mapping) else None
    groups = state_dict.get("param_groups") if isinstance(state_dict, Mapping) else None
    if not isinstance(state, Mapping) or not isinstance(groups, (list, tuple)):
        return  # which is refused later, in other words
    keys = [key for group in groups if isinstance(group, Mapping) for key in group.get("params", ())]
    for key, (param, _, _) in zip(keys, members_of(optimizer)):
        if state.get(key) and gradients.bucket_of(param) is None:
            raise StateDictError(
                f"{who}: expected no state of frozen parameters, got that of {param.name or key}: leave its entry out, "
                "or wrap the module once it is trainable"
            )
