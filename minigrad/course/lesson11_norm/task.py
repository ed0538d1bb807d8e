"""Lesson 11, to write: one batch norm over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from minigrad.distributed import Communicator

Array = NDArray[Any]


def combine_moments(
    counts: Sequence[int], means: Sequence[Array], variances: Sequence[Array]
) -> tuple[int, Array, Array]:
    """Count, mean and variance of several parts together, from those of the parts.

    The variance is that of the population, Σ(x - mean)² / count. It is not the mean of the variances: parts whose means
    differ vary more together than each alone. What a part of no values says of its mean and variance is to be ignored:
    it may be anything, NaN too.

    Shapes:
        each of means and variances: (C,) float64; both results the same

    Args:
        counts: Of each part, >= 0.
        means, variances: Of each part.

    Returns:
        The count; mean and variance, as accurate as those of the parts, also where the means are 10,000 times the
        deviation. Of no values at all: 0, zeros, zeros.

    Example:
        >>> import numpy as np
        >>> means, variances = [np.array([1.0]), np.array([4.0])], [np.array([1.0]), np.array([0.0])]
        >>> count, mean, variance = combine_moments([2, 1], means, variances)    # of 0 and 2, and of 4
        >>> count, mean.tolist(), variance.tolist()
        (3, [2.0], [2.6666666666666665])
    """
    raise NotImplementedError


def sync_norm_forward(comm: Communicator, x: Array, eps: float = 1e-5) -> tuple[Array, Array, int]:
    """(x - mean) / sqrt(variance + eps), with mean and variance of each column over the rows of all ranks.

    Statistics are taken in float64, whatever x is in. All ranks call it, those too that have no row; one collective
    is enough, and what it carries must not grow with the number of rows. At most 3 are allowed.

    Shapes:
        x: (n, C), n >= 0, which may differ between ranks; all together there is at least one row

    Args:
        comm: The ranks.
        x: The rows of this rank, float32 or float64. It stays as it is.
        eps: > 0.

    Returns:
        The normalised rows, (n, C) in the dtype of x; 1 / sqrt(variance + eps), (C,) float64; the rows of all ranks.

    Example:
        Rank 0 has the rows [[0.0], [2.0]] and rank 1 has [[4.0]]: mean 2 and variance 8/3 on both. With eps near 0
        rank 0 gets [[-1.2247], [0.0]], and rank 1 [[1.2247]].
    """
    raise NotImplementedError


def sync_norm_backward(comm: Communicator, grad: Array, normalised: Array, inverse: Array, count: int) -> Array:
    """The gradient of x, from that of the normalised rows.

    The loss is the sum of the ranks' losses, and each rank knows the gradient of it with respect to its own rows. A row
    of one rank acts on the rows of all others, through mean and variance. One collective, which must not grow with the
    number of rows; all ranks call it, those too that have no row.

    Args:
        comm: The ranks.
        grad: (n, C) of the loss with respect to the normalised rows of this rank. It stays as it is.
        normalised, inverse, count: What `sync_norm_forward` returned.

    Returns:
        (n, C) of the loss with respect to the rows of this rank, in the dtype of grad.
    """
    raise NotImplementedError
