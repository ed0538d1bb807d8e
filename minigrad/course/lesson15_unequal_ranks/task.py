"""Unequal ranks: what each of them gets of a batch, so that all are done at one time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def divide_batch(batch_size: int, speeds: Sequence[float]) -> list[int]:
    """The samples of each rank in a batch, in proportion to its speed, by largest remainders.

    A rank's exact part is batch_size · its speed / the sum of all speeds, which is seldom whole. Each rank gets that
    rounded down; of the samples that are left, one each goes to the ranks whose exact part was cut the most. Equal
    remainders: to the faster rank, then to the lower one.

    Args:
        batch_size: Whole, >= 0; may be less than the number of ranks.
        speeds: Of each rank, in samples a second, all > 0.

    Returns:
        One Python int for each rank, >= 0, of sum batch_size.

    Example:
        >>> divide_batch(60, [3.0, 2.0, 1.0])
        [30, 20, 10]
        >>> divide_batch(2, [1.0, 1.0, 1.0])
        [1, 1, 0]
        >>> divide_batch(2, [1.0, 3.0])
        [0, 2]
    """
    raise NotImplementedError


def choose_shards(state: Any, batch_size: int, readings: Sequence[tuple[float, float]]) -> tuple[Any, list[int], str]:
    """A balancer: after a step, the samples of each rank in the next one, and why.

    It is a function of its arguments alone: what it has to remember comes back as the state of the next call, and may
    be anything that JSON gives back as it is (lists, numbers, texts, mappings with texts as keys; no tuples, no NaN).

    What ranks cost is not known: a step of a rank takes fixed + per_sample · samples seconds, both parts differ between
    ranks, times vary by a few per cent from step to step, and a rank may change its speed at any time. What counts is
    the slowest rank, for the others wait for it: once the balancer has had twenty steps of ranks that don't change, a
    step has to take at most 1.05 times as long as in the best division there is.

    Args:
        state: None in the first call, then what the last call returned.
        batch_size: Whole, >= 0; the same for all steps in most trainings, but not in all.
        readings: (samples, seconds of computing, waiting not counted) of each rank in the step that is over. Both are
            zero for a rank that had no samples; a rank that never gets one is never measured, so each gets at least one
            where the batch has enough.

    Returns:
        The next state; the samples of each rank, whole and >= 0, of sum batch_size; and the reason, in words.

    Example:
        >>> state, sizes, reason = choose_shards(None, 60, [(20, 0.2), (20, 0.3), (20, 0.6)])
        >>> sizes
        [30, 20, 10]
    """
    raise NotImplementedError
