"""What you write: an all-reduce from its two halves, and a broadcast that is a sum."""

from __future__ import annotations

import numpy as np

from minigrad.distributed import Communicator


def communicator_by_parts(comm: Communicator) -> Communicator:
    """Return a communicator like another one, but for its all-reduce, which is made of two collectives.

    Its `all_reduce(array, op, layout)` calls `reduce_scatter` and then `all_gather` of `comm`, once each, with the
    same op. It does what `comm.all_reduce` does, with the same bits: the array is overwritten, in place, by its
    reduction over the ranks, whatever its shape, whatever its length. That a length is no multiple of the number of
    ranks costs fewer than world_size elements more. It returns a Work, whose `wait()` returns once the array is right.

    Derive a class from `minigrad.distributed.Wrapper`, which passes everything on, and override `all_reduce`.

    Args:
        comm: `comm.reduce_scatter(output, source, op)` overwrites output (n,) by part `rank` of the reduction of
            source (world_size * n,); `comm.all_gather(output, source)` overwrites output (world_size * n,) by the
            sources (n,) of all ranks. Both return a Work, as `comm.all_reduce` does. Arrays are contiguous.

    Example:
        >>> from minigrad.distributed import run
        >>> def rank(comm):
        ...     array = np.full(5, 10.0**comm.rank)
        ...     communicator_by_parts(comm).all_reduce(array).wait()
        ...     return array.tolist()
        >>> run(rank, 3)[0]
        [111.0, 111.0, 111.0, 111.0, 111.0]
    """
    raise NotImplementedError


def broadcast_by_sum(comm: Communicator, array: np.ndarray, root: int) -> None:
    """Overwrite this rank's array by the root's, with the same bits, using `comm.all_reduce` alone.

    Args:
        comm: Every rank calls this function, with an array of one length and dtype, and one root.
        array: (n,), of any float or integer dtype. On ranks other than the root anything may lie in it, NaN too. The
            root's may have NaN, infinities and -0.0, which arrive as such.
        root: The rank whose array it is, 0 <= root < world_size.

    Example:
        >>> from minigrad.distributed import run
        >>> def rank(comm):
        ...     array = np.array([comm.rank, np.nan if comm.rank == 0 else -0.0])
        ...     broadcast_by_sum(comm, array, root=2)
        ...     return array.tolist()
        >>> run(rank, 3)
        [[2.0, -0.0], [2.0, -0.0], [2.0, -0.0]]
    """
    raise NotImplementedError
