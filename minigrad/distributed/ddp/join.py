"""Joining: a rank that has run out of data takes part in the passes of those that have not, with no samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minigrad.distributed.ddp.passes import Pass
from minigrad.distributed.ddp.reducer import Reducer
from minigrad.errors import RankFailedError


@contextmanager
def joined(
    reducer: Reducer,
    broadcast_parameters: Callable[[int], None],
    divide_by_initial_world_size: bool,
    throw_on_early_termination: bool,
) -> Iterator[None]:
    """See `DistributedDataParallel.join`.

    A rank without data makes no optimizer steps, so at the end all get the parameters of one that was there last.
    """
    before = reducer.before_launch

    def rule(one: Pass) -> None:
        before(one)
        missing = sorted(set(range(reducer.comm.world_size)) - set(one.active_ranks))
        if missing and one.active_ranks and throw_on_early_termination:
            raise RankFailedError(
                f"rank {reducer.comm.rank}: join: expected data on every rank, but it ran out on ranks {missing}"
            )
        if divide_by_initial_world_size:
            one.shrink = len(one.active_ranks) / reducer.comm.world_size

    reducer.before_launch = rule
    try:
        yield
        reducer.active = False
        while reducer.synchronize(strict=False).active_ranks:
            pass
        if reducer.last_active:
            broadcast_parameters(reducer.last_active[0])
    finally:
        reducer.active = True
        reducer.before_launch = before
