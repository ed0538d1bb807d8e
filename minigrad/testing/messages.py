"""The cases of the contract of messages from one rank to another, also of those that do not go over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from minigrad import nn
from minigrad.distributed import Communicator
from minigrad.errors import (
    ArgumentError,
    AutogradError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DtypeError,
    RankFailedError,
    ShapeError,
)
from minigrad.recording import no_grad
from minigrad.tensor import Tensor
from minigrad.testing.contract import DTYPES, contract, as_dtype, refused, whole_numbers

LONE = "another rank than 0, and there is none"


@contract(sizes=(1,))
def a_lone_rank_has_nobody_to_write_to(comm: Communicator) -> None:
    """And is told so."""
    with refused(ArgumentError, f"rank 0: send: expected dst to be {LONE}, got itself"):
        comm.send(np.ones(2), 0)
    with refused(ArgumentError, f"rank 0: recv: expected src to be {LONE}, got itself"):
        comm.recv(np.ones(2), 0)
    with refused(ArgumentError, r"rank 0: send: expected dst to be an integer in \[0, 1\), got 1"):
        comm.send(np.ones(2), 1)


@contract(sizes=(2, 3))
def a_message_goes_to_each_neighbour(comm: Communicator) -> None:
    """In both directions at once, of every dtype and many sizes; the array that is sent stays as it is."""
    rank, size = comm.rank, comm.world_size
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in DTYPES:
        for count in (0, 1, 7, 5000):
            mine, theirs = whole_numbers(rank, count, as_dtype(dtype)), np.zeros((2, count), as_dtype(dtype))
            mine.setflags(write=False)
            sent = [comm.send(mine, right, tag=1), comm.send(mine, left, tag=2)]
            comm.recv(theirs[0], left, tag=1).wait()
            comm.recv(theirs[1], right, tag=2).wait(host=True)
            for work in sent:
                work.wait()
                assert work.done()
            for array, other in zip(theirs, (left, right)):
                assert array.tobytes() == whole_numbers(other, count, as_dtype(dtype)).tobytes()
            assert mine.tobytes() == whole_numbers(rank, count, as_dtype(dtype)).tobytes()


@contract(sizes=(2,))
def large_messages_in_both_directions(comm: Communicator) -> None:
    """From memory of the communicator's and into it, and from any other: several are under way at once."""
    count, other = 2 * 1024 * 1024 + 3, 1 - comm.rank
    mine, theirs = [make(count, "float32") for make in (comm.empty, np.empty)], [np.empty(count, np.float32), None]
    theirs[1] = comm.empty(count, "float32")
    places = np.arange(count, dtype=np.float32) % 1000
    for i, array in enumerate(mine):
        np.add(places, 10 * i + comm.rank, out=array)
    works = [comm.send(array, other) for array in mine]
    works += [comm.recv(array, other) for array in theirs]
    for work in reversed(works):
        work.wait()
    for i, array in enumerate(theirs):
        np.testing.assert_array_equal(array, places + (10 * i + other))


@contract(sizes=(3,))
def the_order_is_that_of_each_tag_and_pair(comm: Communicator) -> None:
    """Whatever else is called meanwhile, and in whatever order works are waited for."""
    rank, size, works = comm.rank, comm.world_size, []
    others = [r for r in range(size) if r != rank]
    sent = {(r, tag, n): np.array([[rank, r], [tag, n]]) for n in range(5) for tag in (4, 0) for r in others}
    for (r, tag, _), array in sent.items():
        works.append(comm.send(array, r, tag))
    total = np.full(2, rank)
    comm.all_reduce(total).wait()
    assert total.tolist() == [sum(range(size))] * 2
    taken = {(r, tag, n): np.empty(4, int) for tag in (0, 4) for n in range(5) for r in reversed(others)}
    works += [comm.recv(array, r, tag) for (r, tag, _), array in taken.items()]
    comm.barrier()
    for work in reversed(works):
        work.wait()
    for (r, tag, n), array in taken.items():
        assert array.tolist() == [r, rank, tag, n]


@contract(sizes=(2,))
def a_message_is_over_once_it_is_taken(comm: Communicator) -> None:
    """A sender waits for nobody; who waits for the work waits for the other rank."""
    array = np.full(3, float(comm.rank))
    if comm.rank == 0:
        work = comm.send(array, 1)
        assert not work.done()
        comm.barrier()
        work.wait()
    else:
        comm.barrier()
        work = comm.recv(array, 0)
        while not work.done():
            time.sleep(1e-3)
        work.wait()
    assert work.done() and array.tolist() == [0.0] * 3
    if comm.rank == 1:
        work = comm.recv(array, 0, tag=5)
        assert not work.done()
    comm.barrier()
    if comm.rank == 0:
        work = comm.send(np.full(3, 7.0), 1, tag=5)
    work.wait()
    assert array.tolist() == [7.0 * comm.rank] * 3
    calls = comm.last_calls()
    assert ("recv(from 0, tag 5)" if comm.rank == 1 else "send(to 1, tag 5)") in " ".join(calls[:2])


@contract(sizes=(2,))
def messages_that_are_refused(comm: Communicator) -> None:
    """Before the other rank hears of them."""
    rank, other, anything, fixed = comm.rank, 1 - comm.rank, np.ones(2), np.ones(2)
    half: Any = 0.5
    fixed.setflags(write=False)
    weight, itself = nn.Linear(2, 3).weight, f"to be another rank than {rank}: copy the array, got itself"
    tags = r"tag to be an integer in \[0, 2\*\*31\), got"
    refusals: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (ArgumentError, f"rank {rank}: send: expected dst {itself}", lambda: comm.send(anything, rank)),
        (ArgumentError, f"rank {rank}: recv: expected src {itself}", lambda: comm.recv(anything, rank)),
        (ArgumentError, r"send: expected dst to be an integer in \[0, 2\), got 2", lambda: comm.send(anything, 2)),
        (ArgumentError, r"recv: expected src to be an integer in \[0, 2\), got -1", lambda: comm.recv(anything, -1)),
        (ArgumentError, f"send: expected {tags} -1", lambda: comm.send(anything, other, -1)),
        (ArgumentError, f"recv: expected {tags} 0.5", lambda: comm.recv(anything, other, half)),
        (ShapeError, "C-contiguous", lambda: comm.send(np.ones((4, 6))[:, ::2], other)),
        (ShapeError, "C-contiguous", lambda: comm.recv(np.ones((3, 2)).T, other)),
        (DtypeError, "recv: expected a tensor or an array, got list", lambda: comm.recv([1.0], other)),
        (DtypeError, "send: expected an array of numbers, got object", lambda: comm.send(np.array([None]), other)),
        (ArgumentError, "recv: expected an array to overwrite, got a read-only one", lambda: comm.recv(fixed, other)),
        (AutogradError, "send: expected a tensor that does not require grad", lambda: comm.send(weight, other)),
        (AutogradError, "recv: expected a tensor that does not require grad", lambda: comm.recv(weight, other)),
    ]
    for kind, words, call in refusals:
        with refused(kind, words):
            call()
    comm.barrier()


@contract(sizes=(2,))
def tensors_are_sent_and_taken_as_arrays_are(comm: Communicator) -> None:
    """Of any shape with so many elements; backward refuses to use what such a tensor was before."""
    other, x = 1 - comm.rank, Tensor(np.full((2, 3), comm.rank + 1.0))
    scale = Tensor(np.ones(1), requires_grad=True)
    loss = (x * scale).sum()
    sent = comm.send(Tensor(np.full(6, comm.rank + 5.0)), other)
    comm.recv(x, other).wait()
    sent.wait()
    assert x.tolist() == [[other + 5.0] * 3] * 2
    with refused(AutogradError, "got data changed in place since"):
        loss.backward()
    weight = nn.Linear(2, 3).weight
    with no_grad():
        weight.fill_(comm.rank)
        sent = comm.send(weight.detach().clone(), other)
        comm.recv(weight, other).wait()
        sent.wait()
    assert weight.detach().tolist() == [[other] * 2] * 3


# ----------------------------------------------------------------------------------------- messages that do not go over


@contract(sizes=(2, 3), case=["dtype", "size"])
def ends_that_are_not_alike_fail_both(comm: Communicator, case: str) -> None:
    """And name both; the world stays failed, also for those that had nothing to do with it."""
    array = np.ones(3 if case == "dtype" else 4, np.float32)
    taken = rf"recv\(from 0, tag 2\) of {array.size} float32.* on rank 1"
    words = rf"got send\(to 1, tag 2\) of 3 float64.* on rank 0 and {taken}"
    with refused(CollectiveMismatchError, f"rank {comm.rank}: expected one dtype and size at both ends .*{words}"):
        if comm.rank == 0:
            comm.send(np.ones(3), 1, tag=2).wait()
        elif comm.rank == 1:
            comm.recv(array, 0, tag=2).wait()
        comm.barrier()
    with refused(CollectiveMismatchError, words):
        comm.send(array, (comm.rank + 1) % comm.world_size)


@contract(sizes=(2,), timeout_s=0.4)
def a_message_that_nobody_sends_is_named(comm: Communicator) -> None:
    """With what the other rank did last, and with the tags that it sent in place of this one."""
    comm.barrier()
    if comm.rank == 1:
        comm.send(np.ones(2), 0, tag=3)
        comm.send(np.ones(2), 0, tag=8)
        time.sleep(1.2)
        return
    words = r"^rank 0: recv\(from 1, tag 7\) of 3 float64: expected rank 1 to send it within 0.4 s, got "
    with refused(CollectiveTimeoutError, words + "what it sent with tag 3 and 8 instead: rank 1 last called ") as said:
        comm.recv(np.ones(3), 1, tag=7).wait()
    assert r"last called send(to 0, tag 8) of 2 float64 (before that send(to 0, tag 3) of 2 float64; " in said[0]


@contract(sizes=(2,), timeout_s=0.4)
def a_message_that_nobody_takes_is_named(comm: Communicator) -> None:
    """By who waits for that; two ranks that both wait for the other to take theirs are told so."""
    comm.barrier()
    words = r"send\(to .*\) of 3 float64: expected rank . to take it within 0.4 s, got nothing: rank . last called send"
    with refused(CollectiveTimeoutError, words):
        comm.send(np.ones(3), 1 - comm.rank).wait()


@contract(sizes=(2, 3))
def a_message_whose_other_end_has_left(comm: Communicator) -> None:
    """Nobody waits for the timeout; what a rank sent, and nobody had taken, is gone with it."""
    if comm.rank == 1:
        comm.send(np.ones(2), 0, tag=4)
        comm.barrier()
        comm.close()
        return
    comm.barrier()
    time.sleep(0.2)
    with refused(RankFailedError, "rank 1 (closed its communicator|has returned)"):
        comm.recv(np.ones(2), 1, tag=4 if comm.world_size == 2 else comm.rank).wait()


@contract(sizes=(2,))
def a_message_is_over_though_who_took_it_has_left(comm: Communicator) -> None:
    """And though its sender has not looked before."""
    array = np.full(3, float(comm.rank))
    if comm.rank == 0:
        work = comm.send(array, 1)
        time.sleep(0.3)
        work.wait(host=True)
        assert work.done()
    else:
        comm.recv(array, 0).wait(host=True)
        assert (array == 0.0).all()
        comm.close()


@contract(sizes=(2, 3))
def a_message_to_a_rank_that_has_left(comm: Communicator) -> None:
    """Is told to who waits, or asks, for it."""
    if comm.rank == 1:
        comm.close()
        return
    with refused(RankFailedError, "rank 1 (closed its communicator|has returned)"):
        work = comm.send(np.ones(2), 1)
        while not work.done():
            time.sleep(1e-3)


@contract(sizes=(2, 3))
def an_abort_ends_messages_under_way(comm: Communicator) -> None:
    """On all ranks, with its reason; and no other can be started."""
    if comm.rank == 1:
        for rank in (rank for rank in range(comm.world_size) if rank != 1):
            comm.recv(np.ones(1), rank).wait(host=True)
        comm.abort("no more")
    else:
        comm.send(np.ones(1), 1)
    with refused(RankFailedError, "rank 1 aborted: no more"):
        comm.recv(np.ones(2), 1 if comm.rank == 0 else 0).wait()
    with refused(RankFailedError, "rank 1 aborted: no more"):
        comm.send(np.ones(2), 1 if comm.rank == 0 else 0).wait()
