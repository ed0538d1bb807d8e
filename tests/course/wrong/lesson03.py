"""Mistakes that people make in lesson 3."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.course.wrong import Wrong


def ring(array: Any, comm: Any, *, wait_first: bool = False, in_turn: bool = False, lost: bool = False) -> None:
    """A ring, with one of some mistakes."""
    rank, size = comm.rank, comm.world_size
    right, left = (rank + 1) % size, (rank - 1) % size
    chunk = len(array) // size
    chunks = [array[r * chunk : (r + 1) * chunk] for r in range(size)] if lost else np.array_split(array, size)
    for turn in range(2 * (size - 1)):
        adds = turn < size - 1
        mine, comes = chunks[(rank - turn) % size], chunks[(rank - turn - 1) % size]
        came = np.empty_like(comes)
        if in_turn and rank:
            comm.recv(came, left).wait()
            comm.send(mine, right).wait()
        elif wait_first:
            comm.send(mine, right).wait()
            comm.recv(came, left).wait()
        else:
            sent = comm.send(mine, right)
            comm.recv(came, left).wait()
            sent.wait()
        comes[...] = comes + came if adds else came


def ring_that_waits_first(array: Any, comm: Any) -> None:
    """Each rank waits until its message is taken before it takes one."""
    ring(array, comm, wait_first=True)


def ring_in_turn(array: Any, comm: Any) -> None:
    """One rank after the other: a token goes round."""
    ring(array, comm, in_turn=True)


def ring_that_loses_the_rest(array: Any, comm: Any) -> None:
    """Chunks of length // W leave what is over."""
    ring(array, comm, lost=True)


def ring_of_whole_arrays(array: Any, comm: Any) -> None:
    """Each array goes round whole, and every rank adds it up in another order."""
    size, passed = comm.world_size, array.copy()
    for _ in range(size - 1):
        came = np.empty_like(passed)
        sent = comm.send(passed, (comm.rank + 1) % size)
        comm.recv(came, (comm.rank - 1) % size).wait()
        sent.wait()
        passed = came
        array += came


def ring_of_a_mean(array: Any, comm: Any) -> None:
    """What an average would be."""
    ring(array, comm)
    array /= comm.world_size


def ring_of_a_new_array(array: Any, comm: Any) -> Any:
    """The sum is returned."""
    total = array.copy()
    ring(total, comm)
    return total


def ring_in_float64(array: Any, comm: Any) -> None:
    """Right sums, of twice the bytes where the array is float32."""
    total = array.astype(np.float64)
    ring(total, comm)
    array[...] = total


def ring_that_does_not_wait_for_what_comes(array: Any, comm: Any) -> None:
    """What recv returns is dropped."""
    rank, size = comm.rank, comm.world_size
    chunks = np.array_split(array, size)
    for turn in range(2 * (size - 1)):
        comes = chunks[(rank - turn - 1) % size]
        came = np.zeros_like(comes)
        sent = comm.send(chunks[(rank - turn) % size], (rank + 1) % size)
        comm.recv(came, (rank - 1) % size)
        sent.wait()
        comes[...] = comes + came if turn < size - 1 else came


def star(array: Any, comm: Any) -> None:
    """Rank 0 adds all up, and tells all."""
    if comm.rank:
        comm.send(array, 0).wait()
        comm.recv(array, 0).wait()
        return
    for rank in range(1, comm.world_size):
        came = np.empty_like(array)
        comm.recv(came, rank).wait()
        array += came
    for work in [comm.send(array, rank) for rank in range(1, comm.world_size)]:
        work.wait()


def by_a_collective(array: Any, comm: Any) -> None:
    """What was to be written."""
    comm.all_reduce(array).wait()


def doubling(array: Any, comm: Any, *, waits: bool = True) -> None:
    """Recursive doubling, where a rank without a partner sits out."""
    distance = 1
    while distance < comm.world_size:
        partner = comm.rank ^ distance
        if partner < comm.world_size:
            came = np.empty_like(array)
            sent = comm.send(array, partner)
            comm.recv(came, partner).wait()
            if waits:
                sent.wait()
            array += came
        distance *= 2


def doubling_that_does_not_wait(array: Any, comm: Any) -> None:
    """What is sent is overwritten while it travels."""
    doubling(array, comm, waits=False)


def doubling_of_all_with_all(array: Any, comm: Any) -> None:
    """Each rank sends to each, and adds up what comes beginning with its own."""
    others = [(comm.rank + step) % comm.world_size for step in range(1, comm.world_size)]
    mine = array.copy()
    works = [comm.send(mine, other) for other in others]
    for other in others:
        came = np.empty_like(array)
        comm.recv(came, other).wait()
        array += came
    for work in works:
        work.wait()


def crossing_of_powers_of_two(world_size: int, latency_s: float, bandwidth_bytes_s: float) -> float:
    """As if doubling took ceil(log2 W) rounds for any W."""
    messages, rounds = 2 * (world_size - 1), math.ceil(math.log2(world_size))
    arrays = rounds - messages / world_size
    return (messages - rounds) * latency_s * bandwidth_bytes_s / arrays if arrays else math.inf


def crossing_of_whole_arrays(world_size: int, latency_s: float, bandwidth_bytes_s: float) -> float:
    """Two ranks never cross, and the ring sends the array once."""
    if world_size == 2:
        return math.inf
    whole = int(math.log2(world_size))
    rounds = whole + (2 if world_size & (world_size - 1) else 0)
    messages = 2 * (world_size - 1)
    return (messages - rounds) * latency_s * bandwidth_bytes_s / (rounds - 1)


def crossing_that_divides_by_zero(world_size: int, latency_s: float, bandwidth_bytes_s: float) -> float:
    """Of two ranks: 0 stands for never."""
    return 0.0


WRONG = {
    "ring_all_reduce": [
        Wrong(ring_that_waits_first, "wait for each other for ever"),
        Wrong(ring_in_turn, "a rank waits for what comes before it sends"),
        Wrong(ring_that_loses_the_rest, "leave out the rest"),
        Wrong(ring_of_whole_arrays, "not the whole array"),
        Wrong(ring_of_a_mean, "this is the mean"),
        Wrong(ring_of_a_new_array, "Change it in place"),
        Wrong(ring_in_float64, "in the array's dtype, float32"),
        Wrong(ring_that_does_not_wait_for_what_comes, "wait() on what recv returns"),
        Wrong(star, "one neighbour only"),
        Wrong(by_a_collective, "got the collective all_reduce"),
    ],
    "doubling_all_reduce": [
        Wrong(doubling, "no power of two"),
        Wrong(doubling_that_does_not_wait, "changed them before it knew that they were taken"),
        Wrong(doubling_of_all_with_all, "add up in different orders"),
        Wrong(ring, "rounds"),
        Wrong(star, "rounds"),
    ],
    "crossing_bytes": [
        Wrong(crossing_of_powers_of_two, "no power of two"),
        Wrong(crossing_of_whole_arrays, "on the virtual clock"),
        Wrong(crossing_that_divides_by_zero, "one latency more"),
    ],
}
