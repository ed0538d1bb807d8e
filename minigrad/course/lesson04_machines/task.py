"""Lesson 4: communicators of your own, and who this process is."""

from __future__ import annotations

from collections.abc import Mapping

from minigrad.distributed import Communicator


def get_solo_communicator() -> Communicator:
    """A communicator for a rank that is alone: rank 0 of 1. Not minigrad's own SoloCommunicator, but a class of yours.

    Derive it from `minigrad.distributed.Front`, which checks arguments, knows tensors, and makes all other calls out of
    five. Its constructor is Front(rank, world_size, timeout_s=...). Implement

        _reduce(self, what, array, op, weight=None)         overwrite array by its reduction over the ranks
        _broadcast(self, what, array, root)                 overwrite array by the root's
        _reduce_scatter(self, what, output, source, op)     output (n,) is part `rank` of the reduction of source (W n,)
        _all_gather(self, what, output, source)             output (W n,) is the sources (n,) of all ranks
        _meet(self, what)                                   return when all ranks are here

    what: the call in words, a pair of str. op: a `minigrad.distributed.ReduceOp`, SUM, AVG, MIN, MAX or PROD; weight is
    always None unless your class says `adds_weighted = True`. Arrays are contiguous; output and source have as many
    elements as said above, but may have any shapes: the elements count in C order.

    Each returns a work: an object with `done()`, `wait(host=False)` and an attribute `span`, which may be None. Over
    when the call returns? Then done() is True, and wait() returns at once.

    Example:
        >>> import numpy as np
        >>> x = np.ones(2)
        >>> get_solo_communicator().all_reduce(x).wait()  # doctest: +SKIP
        >>> x.tolist()  # doctest: +SKIP
        [1.0, 1.0]
    """
    raise NotImplementedError


def get_thread_communicators(world_size: int, timeout_s: float) -> list[Communicator]:
    """Communicators for ranks that are threads of this process, one for each rank, in order.

    The caller starts a thread for each and hands it over; start none yourself. Derive your class from `Front` as in
    `get_solo_communicator`; here the five calls wait for the other ranks, at the latest in wait(). What must hold:

        The n-th call of a rank meets the n-th of the others. Results have the bits that `minigrad.distributed.
        collectives.all_reduce([array of rank 0, array of rank 1, ...], op)` gives, on all ranks. It changes these
        arrays. An array may be overwritten once its own rank has the result, also while others still add up.
        Ranks that make different calls: all raise CollectiveMismatchError. `self._next(what, array)` (no array for
        `_meet`) numbers a call and returns its header, to be called once a call: where two headers of one number
        differ the calls do, in kind, reduction, root, dtype or count.
        A rank that has not come after timeout_s seconds: those that wait raise CollectiveTimeoutError, whose message
        names it as "rank 1". The late rank raises too, in its next call.
        A rank aborts or closes: the others raise RankFailedError at once, also those that wait already. Results of
        calls for which all had come are given out even so.

    For that, Front has `self._fail(error)`: it keeps the first error of this rank in `self.failure`, and calls
    `self._tell(error)`, which you implement: let the other ranks hear, by `other.failure.set(error)`, and wake those
    that wait. `self.failure.raise_on(self.rank)` raises what has failed, if anything did; `self.failure.error` is it,
    or None. `abort` calls `_fail`; each call first looks whether the world has failed. `close` calls `self._leave()`:
    override it to tell the others "rank 1 closed its communicator" as a RankFailedError, then call
    super()._leave(). The errors are in `minigrad.errors`.

    Args:
        world_size: >= 1.
        timeout_s: How long a call waits for the others.

    Example:
        >>> first, second = get_thread_communicators(2, timeout_s=5.0)  # doctest: +SKIP
        >>> first.rank, second.rank, second.world_size  # doctest: +SKIP
        (0, 1, 2)
    """
    raise NotImplementedError


def read_seat(environ: Mapping[str, str]) -> tuple[int, int, int]:
    """Which rank this process is, of how many, and which on its host, as its launcher has told it.

    These launchers set these variables; the first of them of which the rank or the world size is set decides:

        torchrun         RANK                  WORLD_SIZE             LOCAL_RANK
        Open MPI         OMPI_COMM_WORLD_RANK  OMPI_COMM_WORLD_SIZE   OMPI_COMM_WORLD_LOCAL_RANK
        MPICH, Intel     PMI_RANK              PMI_SIZE               MPI_LOCALRANKID
        Slurm's srun     SLURM_PROCID          SLURM_STEP_NUM_TASKS   SLURM_LOCALID

    Slurm's count only where SLURM_STEP_ID is set: the shell of an sbatch script has SLURM_PROCID=0 too, and no peers.
    Where no launcher is found this process is alone: (0, 1, 0). A local rank that is not set is the rank.

    Args:
        environ: The variables; look at these, and not at os.environ.

    Returns:
        (rank, world_size, local_rank).

    Raises:
        ValueError: only one of rank and world size is set: the message has the name of the one that is missing. One
            is no integer: its name, and what it is. The rank is not in [0, world_size): the name of the rank's.

    Example:
        >>> read_seat({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})  # doctest: +SKIP
        (3, 8, 1)
    """
    raise NotImplementedError
