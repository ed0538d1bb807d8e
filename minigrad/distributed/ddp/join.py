"""Joining: a rank that has run out of data takes part in the passes of those that have not, with no samples.

At the end it gets the state of a rank that was there last: parameters, and that of optimizers, schedules, loss scales,
or of anything like them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minigrad.arguments import as_sequence
from minigrad.backend.device import array_module
from minigrad.backend.dtypes import Array, as_dtype
from minigrad.distributed.comm.differences import gather_alike
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.errors import ArgumentError, RankFailedError
from minigrad.nn.companions import loading_turns
from minigrad.tensor import Tensor

JOIN = "join(divide_by_initial_world_size, throw_on_early_termination, also)"


@contextmanager
def joined(
    reducer: Reducer,
    broadcast_parameters: Callable[[int], None],
    divide_by_initial_world_size: bool,
    throw_on_early_termination: bool,
    also: Sequence[Any],
) -> Iterator[None]:
    """See `DistributedDataParallel.join`.

    A rank without data makes no optimizer steps, so at the end all get the parameters of one that was there last, and
    the state of what is named in also.
    """
    comm = reducer.comm

    def rule(active: list[int]) -> float:
        missing = sorted(set(range(comm.world_size)) - set(active))
        if missing and active and throw_on_early_termination:
            raise RankFailedError(
                f"rank {comm.rank}: join: expected data on every rank, but it ran out on ranks {missing}"
            )
        return len(active) / comm.world_size if divide_by_initial_world_size and active else 1.0

    names = ", ".join(type(thing).__name__ for thing in also)
    reducer.joining = True
    reducer.alike.set_option(JOIN, [divide_by_initial_world_size, throw_on_early_termination, names])
    try:
        with reducer.on_counts(rule):
            yield
            while reducer.combine("join", has_data=False).active_ranks:
                pass
            if reducer.last_active:
                broadcast_parameters(reducer.last_active[0])
                hand_over("join(also=)", comm, reducer.last_active[0], also)
    finally:
        reducer.joining = False
        reducer.alike.set_option(JOIN, None)


def check_stateful(who: str, things: Sequence[Any]) -> list[Any]:
    """Things whose state can be handed on.

    Raises:
        ArgumentError: one has no state_dict and load_state_dict; it is named.
    """
    for thing in as_sequence(who, "also", things):
        if not all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict")):
            raise ArgumentError(
                f"{who}: expected also to hold what has state_dict() and load_state_dict(), got {thing!r:.100}"
            )
    return list(things)


def hand_over(who: str, comm: Communicator, root: int, things: Sequence[Any]) -> None:
    """Give the state of one rank's things to those of all others; every rank calls it with its own, in one order.

    Raises:
        ReplicaMismatchError: the ranks name things of other classes; on all of them.
    """
    kinds = [type(thing).__name__ for thing in things]
    arrays: list[Array] = []
    packed = [_pack(thing.state_dict(), arrays) for thing in things] if comm.rank == root else None
    found = gather_alike(who, "things", comm, {"their list": kinds}, packed)
    states = [_unpack(packed, comm, root, arrays) for packed in found[root]]
    turns = loading_turns(things)
    for i in sorted(range(len(things)), key=lambda i: turns[id(things[i])]):
        if comm.rank != root:
            things[i].load_state_dict(states[i])
        if hasattr(things[i], "settle"):
            things[i].settle(i)


def _pack(value: Any, arrays: list[Array]) -> list[Any]:
    """A state in plain data; its arrays are put aside in order."""
    data = value.data if isinstance(value, Tensor) else value
    if isinstance(data, dict):
        return ["dict", [[key, _pack(each, arrays)] for key, each in data.items()]]
    if isinstance(data, (list, tuple)):
        return [type(data).__name__, [_pack(each, arrays) for each in data]]
    if hasattr(data, "nbytes") and getattr(data, "ndim", None) is not None and not isinstance(data, np.generic):
        arrays.append(array_module(data).ascontiguousarray(data))
        return ["tensor" if isinstance(value, Tensor) else "array", [list(data.shape), data.dtype.name]]
    return ["plain", data.item() if isinstance(data, np.generic) else data]


def _unpack(packed: list[Any], comm: Communicator, root: int, arrays: list[Array]) -> Any:
    """The state again; each array is received when its turn comes."""
    kind, content = packed
    if kind == "dict":
        return {key: _unpack(each, comm, root, arrays) for key, each in content}
    if kind in ("list", "tuple"):
        parts = [_unpack(each, comm, root, arrays) for each in content]
        return parts if kind == "list" else tuple(parts)
    if kind == "plain":
        return content
    shape, dtype = content
    with comm.device.current() as xp:
        array = xp.asarray(arrays.pop(0)) if comm.rank == root else xp.zeros(shape, as_dtype(dtype))
        flat = array.reshape(-1)
        comm.broadcast(flat, root).wait(host=True)
    return Tensor(array) if kind == "tensor" else array
