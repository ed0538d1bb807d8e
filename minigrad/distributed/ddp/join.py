"""Joining: a rank that has run out of data takes part in the passes of those that have not, with no samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minigrad.distributed.ddp.handover import hand_over
from minigrad.distributed.ddp.passes import Pass
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.errors import RankFailedError

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
    before = reducer.before_launch

    def rule(one: Pass) -> None:
        before(one)
        missing = sorted(set(range(reducer.comm.world_size)) - set(one.active_ranks))
        if missing and one.active_ranks and throw_on_early_termination:
            raise RankFailedError(
                f"rank {reducer.comm.rank}: join: expected data on every rank, but it ran out on ranks {missing}"
            )
        if divide_by_initial_world_size and one.active_ranks:
            one.shrink = len(one.active_ranks) / reducer.comm.world_size

    names = ", ".join(type(thing).__name__ for thing in also)
    options = [divide_by_initial_world_size, throw_on_early_termination]
    reducer.before_launch = rule
    reducer.alike.set_option(JOIN, [*options, names])
    try:
        yield
        reducer.active = False
        while reducer.synchronize("join", strict=False).active_ranks:
            pass
        if reducer.last_active:
            broadcast_parameters(reducer.last_active[0])
            hand_over("join(also=)", reducer.comm, reducer.last_active[0], also)
    finally:
        reducer.active = True
        reducer.alike.set_option(JOIN, None)
        reducer.before_launch = before
