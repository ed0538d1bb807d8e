"""Messages from rank to rank, beside what `minigrad.testing.messages` asks of every communicator."""

import multiprocessing

import numpy as np
import pytest

from minigrad.distributed import Fault, FaultInjecting, Recording, run
from minigrad.distributed.comm.shm.mailbox import MOST_MESSAGES
from minigrad.errors import ArgumentError
from tests.distributed.worlds import run_processes, run_ranks

TIMEOUT_S = 10.0


def to_the_other(comm, array, tag=0):
    """The array of the other of two ranks."""
    taken = np.empty_like(array)
    work = comm.send(array, 1 - comm.rank, tag)
    comm.recv(taken, 1 - comm.rank, tag).wait()
    work.wait()
    return taken


def test_wrappers_see_both_ends():
    def body(comm):
        comm = Recording(FaultInjecting(comm, [Fault("delay", rank=1, kind="recv", delay_s=0.01)]))
        to_the_other(comm, np.ones(3, np.float32), tag=6)
        return [(call.kind, call.detail, call.dtype, call.count, call.nbytes) for call in comm.calls]

    for rank, calls in enumerate(run(body, 2)):
        other = 1 - rank
        assert calls == [
            ("send", f"to {other}, tag 6", "float32", 3, 12),
            ("recv", f"from {other}, tag 6", "float32", 3, 12),
        ]


# ------------------------------------------------------------------------------------------------------- processes


def test_a_message_can_be_taken_while_its_sender_computes():
    """Here it waits for word that it was taken, which does not come through the communicator."""
    taken = multiprocessing.get_context("fork").Event()

    def body(comm):
        array = np.full(300_000, comm.rank + 1.0)
        if comm.rank == 0:
            work = comm.send(array, 1)
            assert taken.wait(TIMEOUT_S)
            work.wait()
        else:
            comm.recv(array, 0).wait()
            taken.set()
        return array.tolist() == [1.0] * 300_000

    assert run_processes(body, 2, TIMEOUT_S) == [True, True]


def test_memory_of_messages_is_used_again():
    """Also where one in the middle is taken later than those behind it; and so many can be on their way."""

    def body(comm):
        mail, other = comm.mail, 1 - comm.rank
        early = comm.send(np.full(1000, 5.0), other, tag=9)
        for i in range(3 * MOST_MESSAGES):
            assert to_the_other(comm, np.full(500, float(i)))[0] == i
            if i == MOST_MESSAGES // 2:
                late = np.empty(1000)
                comm.recv(late, other, tag=9).wait()
                early.wait()
        assert late.tolist() == [5.0] * 1000 and mail._places.end <= mail._mine.front_bytes + 4 * 8064
        works = [comm.send(np.ones(1), other) for _ in range(MOST_MESSAGES)]
        with pytest.raises(ArgumentError, match="expected at most 1,024 messages to rank . that it has not taken"):
            comm.send(np.ones(1), other)
        comm.barrier()
        for _ in works:
            comm.recv(np.empty(1), other).wait()
        for work in works:
            work.wait()
        assert mail._places.end == mail._mine.front_bytes
        return True

    assert run_processes(body, 2, TIMEOUT_S) == [True, True]


def test_a_rank_takes_a_message_in_a_collective_for_its_sender_to_come_to_it():
    def body(comm):
        array = np.full(3, float(comm.rank))
        if comm.rank == 0:
            comm.send(array, 1).wait()
        else:
            work = comm.recv(array, 0)
        comm.barrier()
        if comm.rank == 1:
            assert work.done()
        return array.tolist()

    for kind in ("threads", "shm"):
        assert run_ranks(kind, body, 2, TIMEOUT_S) == [[0.0] * 3] * 2
