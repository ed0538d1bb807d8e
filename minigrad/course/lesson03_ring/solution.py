"""Lesson 3, solved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigrad.distributed import Communicator


def ring_all_reduce(array: NDArray[Any], comm: Communicator) -> None:
    """Each chunk goes round once, and grows; then once more, as the sum."""
    rank, world_size = comm.rank, comm.world_size
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = np.array_split(array, world_size)  # views
    arrived = np.empty_like(chunks[0])  # no chunk is longer than the first

    def pass_on(chunk: NDArray[Any], comes: NDArray[Any]) -> NDArray[Any]:
        """Send a chunk to the right, and return what comes from the left, which is as long as `comes`."""
        sent = comm.send(chunk, right)
        came = arrived[: comes.size]
        comm.recv(came, left).wait()
        sent.wait()
        return came

    for turn in range(world_size - 1):
        mine, comes = chunks[(rank - turn) % world_size], chunks[(rank - turn - 1) % world_size]
        comes += pass_on(mine, comes)
    for turn in range(world_size - 1):  # chunk rank + 1 is the sum now
        mine, comes = chunks[(rank + 1 - turn) % world_size], chunks[(rank - turn) % world_size]
        comes[...] = pass_on(mine, comes)


def doubling_all_reduce(array: NDArray[Any], comm: Communicator) -> None:
    """Among a power of two of ranks each round doubles how many are in a sum; a rank beyond has a partner there."""
    rank, world_size = comm.rank, comm.world_size
    inside = 1 << (world_size.bit_length() - 1)
    if rank >= inside:
        comm.send(array, rank - inside).wait()
        comm.recv(array, rank - inside).wait()
        return
    arrived = np.empty_like(array)
    if rank + inside < world_size:
        comm.recv(arrived, rank + inside).wait()
        array += arrived
    distance = 1
    while distance < inside:
        sent = comm.send(array, rank ^ distance)
        comm.recv(arrived, rank ^ distance).wait()
        sent.wait()
        array += arrived  # a + b here is b + a there: the same bits
        distance *= 2
    if rank + inside < world_size:
        comm.send(array, rank + inside).wait()


def crossing_bytes(world_size: int, latency_s: float, bandwidth_bytes_s: float) -> float:
    """2 (W - 1)(alpha + beta·n / W) = rounds·(alpha + beta·n), solved for n."""
    whole = world_size.bit_length() - 1
    rounds = whole if world_size == 1 << whole else whole + 2
    messages = 2 * (world_size - 1)
    arrays = rounds - messages / world_size  # that doubling sends more than the ring
    return (messages - rounds) * latency_s * bandwidth_bytes_s / arrays if arrays > 0 else math.inf
