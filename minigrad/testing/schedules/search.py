"""Searches the orders in which thread ranks can run for one in which something fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from minigrad.arguments import as_integer
from minigrad.distributed.comm.turns import scheduled
from minigrad.errors import ArgumentError


class Failing(NamedTuple):
    """A schedule under which something failed.

    Attributes:
        seed: `run(fn, world_size, schedule=seed)` replays it, and so does `with scheduled(seed):`.
        error: What was raised.
    """

    seed: int
    error: BaseException


def schedules(fn: Callable[[], Any], n: int, first: int = 0) -> Failing | None:
    """Call fn under n schedules, and give the first that fails, that of the smallest seed; None where none does.

    Every `minigrad.distributed.run` in fn that names no schedule runs by the seed. fn has to make anew, in each call,
    whatever ranks share.

    Args:
        fn: Called without arguments; it fails by raising.
        n: Seeds first, first + 1, ..., first + n - 1; >= 1.

    Raises:
        ArgumentError: fn is no function, or a number out of range.

    Example:
        >>> import numpy as np
        >>> from minigrad.distributed import run
        >>> def first_come():
        ...     came = []
        ...     def body(comm):
        ...         work = comm.all_reduce(np.ones(1))  # hands over
        ...         came.append(comm.rank)
        ...         work.wait()
        ...     run(body, 2)
        ...     assert came == [0, 1], came
        >>> schedules(first_come, 20)
        Failing(seed=0, error=AssertionError([1, 0]))
    """
    if not callable(fn):
        raise ArgumentError(f"schedules: expected a function without arguments, got {fn!r:.100}")
    as_integer("schedules", "n", n, 1)
    as_integer("schedules", "first", first, 0)
    for seed in range(first, first + n):
        with scheduled(seed):
            try:
                fn()
            except Exception as error:
                return Failing(seed, error)
    return None
