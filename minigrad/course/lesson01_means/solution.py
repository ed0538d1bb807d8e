"""Ours: every gradient counts for its samples, whatever the shards are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.distributed import Communicator


def combine_gradients(comm: Communicator, gradient: np.ndarray, samples: int) -> None:
    """Overwrite this rank's gradient by that of the mean loss over the samples of all ranks."""
    total = np.array([samples], np.float64)
    comm.all_reduce(total).wait()
    if total[0] == 0:
        return  # on all ranks: each has the same total
    if samples == 0:
        gradient[...] = 0.0  # not times 0: what lies in it may be NaN
    gradient *= samples / total[0]
    comm.all_reduce(gradient).wait()


def accumulation_weights(comm: Communicator, counts: Sequence[int]) -> list[float]:
    """Return the factor for each of this rank's micro-batches."""
    total = np.array([sum(counts)], np.float64)
    comm.all_reduce(total).wait()  # also by a rank that has none: the others wait for it
    return [float(count / total[0]) if count else 0.0 for count in counts]
