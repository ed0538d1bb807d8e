"""Lesson 18: a watchdog of your own: who has to be mended, and who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minigrad.distributed import Communicator


def diagnose_hang(ranks: Sequence[Mapping[str, Any]]) -> tuple[str, tuple[int, ...]]:
    """Say what is wrong with ranks that can't go on together, and whose fault it is, from their last calls.

    Each rank is a dict of

        "rank": its number; they may come in any order.
        "calls": its last calls, the earliest first, each (number, what, line), for example
            (41, "all_reduce(SUM) of 3 float32", "train.py:17"). Numbers go up by one; where a list begins, its rank has
            made all calls before, and nobody knows which. An empty list: it has made no call.
        "gone": "" while the rank is there; else "raised", "died", or "left", where it closed its communicator. Ranks
            also raise because others have failed.

    Look at the first number, of those at which every list has begun, at which the ranks have not all made one call:
    one `what`, whatever its line.

    Some made one call there, and some another? Accused are the ranks of the one that fewer have made; there are never
    equally many. Look at their call: has any rank made the same, with this line, under a lower number?

                                                       made before        never before
        at a line at which others made theirs          "order"            "array"
        at another line                                "left out"         "extra"

    Else some have not made it. Accused are those of them that raised, as "raised"; if none has, those that died, as
    "died"; then those that left, as "left". Where none of them is gone all are accused, as "late".

    Returns:
        (kind, ranks accused, in ascending order); ("", ()) where all have made the same calls.

    Example:
        >>> calls = [(0, "all_reduce(SUM) of 3 float32", "a.py:3"), (1, "barrier", "a.py:4")]
        >>> ranks = [{"rank": 0, "calls": calls, "gone": ""}, {"rank": 1, "calls": calls[:1], "gone": "died"}]
        >>> diagnose_hang(ranks)  # doctest: +SKIP
        ('died', (1,))
    """
    raise NotImplementedError


def find_missing(
    comm: Communicator, timeout_s: float, pause: Callable[[float], object] = time.sleep
) -> list[int]:
    """Wait for all ranks, but no longer than that: a barrier that names who has not come.

    All ranks call it, at different times; those that don't are alive, and elsewhere. Use comm.send, comm.recv and
    `done()` of what they return; no collective, and no `wait()` of a work that is not done: that waits for the
    communicator's own timeout, and fails all ranks. The time is comm.clock.now_s(), in seconds; between two looks call
    pause(timeout_s / 100), and look again after it.

        Rank 0 waits for the others until timeout_s after its own call. Who has come until then is here.
        All ranks that are here return the same list: what rank 0 has seen. It is known as soon as all are here.
        Where rank 0 does not come, the others return [0]. They may not give it up before it could have answered: it
        may come timeout_s after them, and then waits for timeout_s itself. By 2.1 timeout_s after its own call every
        rank has returned.

    What a rank gets that comes too late is its own affair, and nobody uses the communicator afterwards.

    Args:
        comm: This rank's communicator.
        timeout_s: > 0.
        pause: Sleeps for so many seconds.

    Returns:
        The ranks that are missing, in ascending order; [] where all are here.
    """
    raise NotImplementedError
