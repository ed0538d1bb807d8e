"""Thread ranks: `run(fn, world_size)` calls a function once a rank, and fails as a whole when one rank fails."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from minigrad.arguments import as_integer
from minigrad.backend.random import set_noise_key
from minigrad.backend.ranks import set_ranks_here
from minigrad.backend.thread import new_thread, with_blas_threads
from minigrad.distributed.comm.protocol import Communicator
from minigrad.distributed.comm.threads import ThreadWorld
from minigrad.distributed.comm.turned import TurnedWorld, handing_over
from minigrad.distributed.comm.turns import Baton, chosen_schedule
from minigrad.errors import ArgumentError, DistributedError, RankFailedError

T = TypeVar("T")
thread_rank: contextvars.ContextVar[Communicator | None] = contextvars.ContextVar(
    "minigrad_thread_rank", default=None
)  # the rank that this thread is, for `init`


def run(
    fn: Callable[..., T],
    world_size: int,
    *args: Any,
    timeout_s: float | None = None,
    blas_threads: int | None = None,
    schedule: int | None = None,
) -> list[T]:
    """Call fn(comm, *args) in a thread for each rank, and return the results in order of rank.

    Every rank runs in a copy of the caller's context: modes and the seed carry over, the init stream is the same on
    all ranks, the noise stream is each rank's own.

    Args:
        world_size: Number of ranks, >= 1.
        timeout_s: How long a collective waits for a rank; $MINIGRAD_TIMEOUT_S or 300 s by default.
        blas_threads: BLAS threads while it runs; by default the cores divided among the ranks, at least 1.
        schedule: A seed in [0, 2**64): ranks run one at a time, and hand over only at collectives, at messages and
            where a gradient is complete, in an order that follows from it. The same seed gives the same order.

    Raises:
        ArgumentError: fn is no function, or another argument is out of range.
        RankFailedError: a rank called sys.exit() with a status other than 0; with 0, or none, it has returned None.
        Exception: what the first failing rank raised, with a note that names the rank. The other ranks are stopped
            at their next collective; a rank that does not come to one within the timeout is left running, and
            a second note says so.

    Example:
        >>> run(lambda comm: comm.rank * 10, 2)
        [0, 10]
    """
    if blas_threads is not None:
        blas_threads = as_integer("run", "blas_threads", blas_threads, 1)
    as_integer("run", "world_size", world_size, 1)
    seed = chosen_schedule() if schedule is None else schedule
    if seed is None:
        world = ThreadWorld(world_size, timeout_s=timeout_s)
        return run_world(fn, world, world.communicators(), *args, blas_threads=blas_threads)
    world = TurnedWorld(world_size, timeout_s=timeout_s)
    world.turns = Baton(seed, world.world_size, world.timeout_s)
    return run_world(fn, world, world.communicators(), *args, blas_threads=blas_threads, around=handing_over)


def be_rank(comm: Communicator) -> None:
    """Let this context be the rank of a communicator, which `init` gives in it, on its device and with its noise."""
    comm.device.use()
    set_noise_key(comm.rank)
    thread_rank.set(comm)
    set_ranks_here(comm)


def run_world(
    fn: Callable[..., T],
    world: ThreadWorld,
    communicators: Sequence[Communicator],
    *args: Any,
    blas_threads: int | None = None,
    around: Callable[[Communicator], AbstractContextManager[Any]] = nullcontext,
) -> list[T]:
    """`run` for a world that is there already, whose ranks use these communicators: wrapped ones, say.

    Args:
        around: Gives what each rank's thread calls fn within.
    """
    if not callable(fn):
        raise ArgumentError(f"run: expected a function of a communicator, got {fn!r:.100}")
    results: list[Any] = [None] * world.world_size
    errors: list[tuple[int, BaseException]] = []  # in order of time

    def body(comm: Communicator) -> None:
        be_rank(comm)
        try:
            world.enter(comm.rank)
            with around(comm):
                results[comm.rank] = _call(fn, comm, *args)
        except BaseException as error:
            errors.append((comm.rank, error))
            if not world.failure.inherited:
                world.failure.set(_failed(comm.rank, error))
        finally:
            if not world.failure.inherited:  # else this is a child of a fork, at the end of its own
                world.exit(comm.rank)

    limit = blas_threads if blas_threads is not None else max(1, (os.cpu_count() or 1) // world.world_size)
    with with_blas_threads(limit):
        threads = [_start(body, comm) for comm in communicators]
        running = _join(threads, world, errors)
    if errors:
        _raise_first(errors, running)
    return results


def _call(fn: Callable[..., T], comm: Communicator, *args: Any) -> T | None:
    """What a rank returns: None where it ends itself by sys.exit() without a status, or with 0.

    Raises:
        RankFailedError: it ended itself with another status.
    """
    try:
        return fn(comm, *args)
    except SystemExit as end:
        if end.code in (None, 0):
            return None
        failure = f"rank {comm.rank}: run: expected the function to return or to raise, got sys.exit({end.code!r})"
        raise RankFailedError(failure) from end


def _failed(rank: int, error: BaseException) -> DistributedError:
    failure = RankFailedError(f"rank {rank} failed first: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _start(body: Callable[[Communicator], None], comm: Communicator) -> threading.Thread:
    thread = new_thread(body, comm, name=f"rank-{comm.rank}")
    thread.start()
    return thread


def _join(threads: list[threading.Thread], world: ThreadWorld, errors: list[tuple[int, BaseException]]) -> list[str]:
    """Wait for all ranks, once one has raised no longer than the timeout; return who is still running."""
    try:
        for thread in threads:
            while thread.is_alive() and not errors:
                thread.join(0.2)
        for thread in threads:
            thread.join(world.timeout_s)
    except BaseException:  # an interrupt: the ranks, which are left to themselves, end at their next collective
        world.failure.set(RankFailedError("the caller of run() was interrupted"))
        raise
    return [thread.name for thread in threads if thread.is_alive()]


def _raise_first(errors: list[tuple[int, BaseException]], running: list[str]) -> None:
    """Raise the error that came first; those of other ranks are mostly its consequence."""
    rank, error = next((e for e in errors if not isinstance(e[1], RankFailedError)), errors[0])
    notes = [f"raised on rank {rank}"]
    if running:
        notes.append(f"still running, and left to itself: {', '.join(running)}")
    if hasattr(error, "add_note"):
        for note in notes:
            error.add_note(note)
    raise error
