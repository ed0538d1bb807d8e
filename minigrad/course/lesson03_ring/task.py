"""Lesson 3: two all-reduces of your own, and the size of an array at which one becomes better than the other."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from minigrad.distributed import Communicator


def ring_all_reduce(array: NDArray[Any], comm: Communicator) -> None:
    """Overwrite array on every rank by its sum over the ranks, by messages that go round in a ring.

    Use `comm.rank`, `comm.world_size`, `comm.send` and `comm.recv`, and no collective. With W ranks and n bytes:

        Cut the array into W chunks, of as equal sizes as can be. In W - 1 rounds each rank passes a chunk on to its
        neighbour and takes one from the other side, which it adds to its own: then each rank has one chunk of the
        sum. In W - 1 more rounds the finished chunks go round.

    What must hold, for any W >= 1 and any length, 0 and less than W too:

        All ranks have the sum, and the same bits of it.
        Each rank sends to one other rank only, and at most 2 (W - 1) messages of at most ceil(length / W) elements:
        2 (W - 1) / W · n bytes where W divides the length.
        A rank sends its message before it waits for the one that comes: a round takes as long as one message.

    `work = comm.send(chunk, dst)` returns at once; `work.wait()` returns when rank dst has taken the chunk, and until
    then the chunk must not change. `comm.recv(chunk, src).wait()` fills chunk.

    Args:
        array: (length,) contiguous, float32 or float64; changed in place. A slice of it is a view.
        comm: This rank's communicator.

    Example:
        >>> from minigrad.distributed import run
        >>> import numpy as np
        >>> def body(comm):
        ...     array = np.full(5, comm.rank + 1.0)
        ...     ring_all_reduce(array, comm)
        ...     return array.tolist()
        >>> run(body, 3)[0]  # doctest: +SKIP
        [6.0, 6.0, 6.0, 6.0, 6.0]
    """
    raise NotImplementedError


def doubling_all_reduce(array: NDArray[Any], comm: Communicator) -> None:
    """Overwrite array on every rank by its sum over the ranks, in few rounds.

    Use `comm.send` and `comm.recv` alone. With recursive doubling a rank exchanges its whole array with the rank whose
    number differs in bit 0, adds what came, then with that of bit 1, and so on. Where W is no power of two, some ranks
    first hand their array to another one, and get the result from it at the end. Halving and doubling, or a tree up
    and down again, will do as well.

    What must hold, for any W >= 1 and any length:

        All ranks have the sum, and the same bits of it.
        It is over after at most 2 ceil(log2 W) rounds. A round is the time of one message: a rank that sends two, one
        after the other, needs two.

    Args:
        array: (length,) contiguous, float32 or float64; changed in place.
        comm: This rank's communicator.
    """
    raise NotImplementedError


def crossing_bytes(world_size: int, latency_s: float, bandwidth_bytes_s: float) -> float:
    """The size of an array, in bytes, for which the ring and recursive doubling take equally long.

    A message of m bytes takes latency_s + m / bandwidth_bytes_s seconds. The ring is that of `ring_all_reduce`, with
    chunks of n / W bytes. Recursive doubling sends the whole array in each round, floor(log2 W) times; where W is no
    power of two, there are two more rounds: one before, one after.

    Args:
        world_size: W >= 2.
        latency_s: > 0.
        bandwidth_bytes_s: > 0, finite.

    Returns:
        Bytes, which need not be whole: smaller arrays are faster by doubling, larger ones round the ring. math.inf
        where doubling is faster for every size.
    """
    raise NotImplementedError
