"""What you write: the gradient of the whole batch from those of its shards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minigrad.distributed import Communicator


def combine_gradients(comm: Communicator, gradient: np.ndarray, samples: int) -> None:
    """Overwrite this rank's gradient by that of the mean loss over the samples of all ranks.

    Every rank calls it, each with its own gradient, of one length and dtype, and its own number of samples. Afterwards
    all ranks hold the same bits, where any has samples. In float64 it agrees to 1e-12 with the gradient that one device
    computes from the whole batch.

    Args:
        comm: `comm.all_reduce(array).wait()` overwrites an array by its sum over the ranks, in any float dtype.
        gradient: (n,), float32 or float64: of the mean loss over this rank's samples. Where it has none, anything may
            lie in it, NaN too. It is changed in place.
        samples: How many this rank has, >= 0. Where no rank has any, every gradient stays what it is.

    Example:
        >>> from minigrad.distributed import run
        >>> def rank(comm):
        ...     gradient = np.array([1.0, 2.0]) if comm.rank == 0 else np.array([5.0, 6.0])
        ...     combine_gradients(comm, gradient, samples=[30, 10][comm.rank])
        ...     return gradient.tolist()
        >>> run(rank, 2)
        [[2.0, 3.0], [2.0, 3.0]]
    """
    raise NotImplementedError


def accumulation_weights(comm: Communicator, counts: Sequence[int]) -> list[float]:
    """Return the factor for each of this rank's micro-batches.

    A rank that has not enough memory for its shard runs it as several micro-batches, one backward each; gradients add
    up over them, and are then added up over the ranks, by a sum and no division. Each loss is the mean over the tokens
    of its micro-batch, times its factor. With these factors the sum is the gradient of the mean loss over all tokens
    of all micro-batches of all ranks.

    Args:
        comm: As above. Every rank calls this function.
        counts: The tokens of each micro-batch that count in its loss, >= 0: padding does not. A rank may have more
            micro-batches than another, or none.

    Returns:
        One Python float for each micro-batch; 0.0 for one without tokens.

    Example:
        >>> from minigrad.distributed import run
        >>> run(lambda comm: accumulation_weights(comm, [[6, 2], [8]][comm.rank]), 2)
        [[0.375, 0.125], [0.5]]
    """
    raise NotImplementedError
