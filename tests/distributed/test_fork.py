"""A child of a fork refuses every use of the communicator that it inherited, and disturbs nobody by its end."""

import multiprocessing
import os
import threading
import time
import traceback
import warnings
from multiprocessing.connection import Connection

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.data import DataLoader
from minigrad.distributed import DDP
from minigrad.errors import ArgumentError, DistributedError
from tests.distributed.worlds import run_ranks


def in_a_fork(child):
    """Call a function in a child of this process; whether it returned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which hold nothing that the child needs
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_closes_nothing_that_its_parent_has_closed_already(monkeypatch):
    """A descriptor that was given back may be another's by then: of the pipe to the child, say."""
    close, closing, slow = Connection._close, threading.Event(), []

    def slow_close(connection):
        close(connection)
        if connection in slow:
            closing.set()
            time.sleep(0.3)

    def body(comm):
        assert comm.all_gather_object(comm.rank) == [0, 1]
        if comm.rank == 0:
            return True
        slow.append(comm._control.star._waker)
        monkeypatch.setattr(Connection, "_close", slow_close)
        threading.Thread(target=comm.close).start()
        assert closing.wait(10.0)
        ours = [end for _ in range(8) for end in os.pipe()]
        good = in_a_fork(lambda: [os.fstat(end) for end in ours])
        for end in ours:
            os.close(end)
        return good

    assert run_ranks("nccl", body, 2) == [True, True]


def without_sync(ddp, x):
    with ddp.no_sync():
        ddp(x).sum().backward()


def uses(comm, ddp, x, works):
    return [
        *(work.wait for work in works),
        lambda: comm.all_reduce(np.ones(1)).wait(),
        lambda: comm.broadcast(np.ones(10_000)).wait(),
        lambda: comm.all_gather_object(1),
        comm.barrier,
        lambda: ddp(x).sum().backward(),
        lambda: without_sync(ddp, x),
        lambda: ddp.module(x).sum().backward(),
        ddp.flush,
        lambda: comm.abort("for no reason"),
        comm.close,
    ]


def child(comm, ddp, x, works):
    for use in uses(comm, ddp, x, works):
        with pytest.raises(DistributedError, match=f"rank {comm.rank}.*expected the process that made the comm"):
            use()
    with minigrad.no_grad():
        assert ddp(x).shape == (2, 1)
    assert set(ddp.state_dict()) == {"weight", "bias"}
    ddp.module.weight.grad.fill_(7.0)  # in shared memory, the other ranks would add it up
    ddp.unwrap()
    ddp.module(x).sum().backward()


@pytest.mark.parametrize("kind", ["threads", "shm", "nccl"])
def test_a_child_is_refused_and_the_parents_go_on(kind):
    forked = multiprocessing.get_context("fork").Event()

    def body(comm):
        ddp = DDP(nn.Linear(3, 1), comm)
        x = minigrad.ones(2, 3) * (comm.rank + 1)
        ddp(x).sum().backward()
        ddp.zero_grad(set_to_none=False)
        works = []
        if comm.rank == 0:
            good = forked.wait(20.0)
        if kind != "nccl":  # whose calls wait for each other, in debug mode
            works = [comm.all_reduce(np.ones(3))]
        if comm.rank == 1:
            good = in_a_fork(lambda: child(comm, ddp, x * 100.0, works))
            forked.set()
        for work in works:
            work.wait()
        comm.barrier()
        ddp(x).sum().backward()
        return good, ddp.module.weight.grad.tolist()

    assert run_ranks(kind, body, 2) == [(True, [[3.0, 3.0, 3.0]])] * 2


def test_a_child_of_a_world_of_one_may_train():
    def body(comm):
        ddp = DDP(nn.Linear(3, 1), comm)
        assert in_a_fork(lambda: ddp(minigrad.ones(2, 3)).sum().backward())

    run_ranks("solo", body, 1)


def test_an_epoch_that_was_begun_ahead_does_not_hang_in_a_child():
    batches = iter(DataLoader(range(100), 2, prefetch=2))
    next(batches)

    def child():
        with pytest.raises(ArgumentError, match="DataLoader: expected the process that began this epoch, got a fork"):
            list(batches)

    assert in_a_fork(child)
    assert len(list(batches)) == 49
