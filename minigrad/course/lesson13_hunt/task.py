"""Lesson 13: hunt the bug."""

from collections.abc import Sequence
from typing import Any


def first_difference(run: Sequence[Any], other: Sequence[Any]) -> tuple[int, int, int] | None:
    """Where two runs of one program part.

    Both have the fingerprint of each bucket of combined gradients, on each rank, after each step:
    `run[step][bucket][rank]` is an integer of 64 bits. Buckets are in the order in which they go out. Both runs have as
    many buckets and ranks; one may have ended earlier.

    Args:
        run, other: Lists of lists of lists of ints, or arrays of uint64, (steps, buckets, ranks).

    Returns:
        (step, bucket, rank), from 0: the first step in which a fingerprint differs, its first bucket that does, and the
        lowest rank. Where none does and one run has fewer steps, n of them, (n, 0, 0). None where the runs are equal.

    Example:
        >>> run = [[[5, 5], [7, 7]], [[6, 6], [8, 8]]]         # two steps, two buckets, two ranks
        >>> first_difference(run, [[[5, 5], [7, 7]], [[6, 6], [8, 9]]])
        (1, 1, 1)
        >>> first_difference(run, run[:1])
        (1, 0, 0)
    """
    raise NotImplementedError


def name_the_bug(steps: Sequence[dict[str, Any]]) -> str:
    """Which kind of bug a run has, from what each rank noted of it.

    Args:
        steps: One dict for each step of W ranks, whose model has P parameters and B numbers in buffers:
            "epoch": its number.
            "loss": (W,) float64, each rank's own.
            "samples": (W,) int64, n of each rank.
            "read": for each rank the list of the numbers of the samples that it read.
            "own": (W, P) float64, the gradient of each rank's loss as one process computes it from these samples.
            "combined": (W, P) float64, the gradient that each rank had after backward, with which it stepped.
            "buffers": (W, B) float64, after the step.

    Returns:
        The kind of the first step in which something is wrong; where several hold, the first of this list:
            "data": a sample was read twice in one epoch, or all ranks read what they read at the same place of the
                epoch before.
            "not reduced": ranks do not have the same combined gradient, bit for bit.
            "old gradients": the combined gradient is no sum w_0·own_0 + ... + w_(W-1)·own_(W-1), whatever the weights.
            "weights": it is one, with other weights than n_r / Σ n.
            "buffers": ranks do not have the same buffers, bit for bit.
        "right" where no step has anything. The gradients are sums in another order than yours: numbers that are less
        than 1e-9 of the largest apart are the same, but between ranks. Gradients of ranks are never multiples of each
        other, and P > W.

    Example:
        >>> import numpy as np
        >>> own = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 4.0]])
        >>> step = {"epoch": 0, "loss": np.ones(2), "samples": np.array([3, 1]), "read": [[4, 0, 2], [1]], "own": own}
        >>> step |= {"combined": np.stack([own.mean(axis=0)] * 2), "buffers": np.zeros((2, 1))}
        >>> name_the_bug([step])
        'weights'
    """
    raise NotImplementedError
