"""kill -9 of one process among three: the others raise at once, name it, and nothing of any of them is left."""

import contextlib
import multiprocessing
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

import minigrad
from minigrad import nn
from minigrad.distributed import DDP
from minigrad.distributed.comm.shm.mailbox import _File
from minigrad.distributed.comm.shm.region import Region
from minigrad.errors import RankFailedError
from tests.distributed import worlds

VICTIM, TIMEOUT_S = 1, 20.0


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(function):
    """The function, which ends the process when it is done."""

    def deadly(*args, **kwargs):
        function(*args, **kwargs)
        die()

    return deadly


def in_forward(comm, ddp):
    ddp.module[0].forward = die


def in_backward(comm, ddp):
    ddp.module[1].weight.listeners += (DiesAtItsLeaf(),)


class DiesAtItsLeaf:
    """Backward is under way, the first bucket is launched."""

    def begin(self, leaves):
        pass

    def leaf(self, leaf):
        die()

    def end(self, error):
        pass


def before_a_collective_is_posted(comm, ddp):
    comm.board.post = die


def in_the_middle_of_a_collective(comm, ddp):
    """All have posted; this rank has reduced its share of the elements, and nobody knows."""
    Region.reduce = die_after(Region.reduce)


def waiting_for_a_collective(comm, ddp):
    """Its own share is done."""
    comm.board.executed = die_after(comm.board.executed)


def at_the_optimizer_step(comm, ddp):
    ddp.reducer.after_pass = die


MOMENTS = [
    in_forward,
    in_backward,
    before_a_collective_is_posted,
    in_the_middle_of_a_collective,
    waiting_for_a_collective,
    at_the_optimizer_step,
]


def segments_of(pids):
    """Files in /dev/shm that these processes made; those of others come and go meanwhile."""
    return [path for pid in pids for path in Path("/dev/shm").glob(f"minigrad-{pid}-*")]


def gone(pid):
    """Whether a process is no more; one that nobody has waited for is not gone."""
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return False
    return True


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_the_others_raise_at_once_and_nothing_is_left(moment, monkeypatch):
    ports = []
    monkeypatch.setattr(worlds, "free_port", lambda pick=worlds.free_port: ports.append(pick()) or ports[-1])
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def body(comm):
        ddp = DDP(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), comm, bucket_cap_bytes=16)
        queue.put(("pid", os.getpid()))
        for step in range(4):
            if step == 2 and comm.rank == VICTIM:
                moment(comm, ddp)
            try:
                ddp(minigrad.ones(2, 3)).sum().backward()
                ddp.zero_grad()
            except RankFailedError as error:
                queue.put((comm.rank, str(error)))
                return

    started = time.monotonic()
    with pytest.raises(RankFailedError, match="a rank of the test died"):
        worlds.run_processes(body, 3, TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S
    heard = [queue.get() for _ in range(5)]
    messages = dict(entry for entry in heard if entry[0] != "pid")
    pids = [pid for what, pid in heard if what == "pid"]
    assert sorted(messages) == [0, 2]
    for rank, message in messages.items():
        assert message.startswith(f"rank {rank}: call ")
        assert "expected all 3 ranks, got ranks [" in message
        assert f"rank {VICTIM} is gone (process " in message and " died) and last called call " in message
    assert len(pids) == 3 and all(map(gone, pids))
    assert segments_of(pids) == []
    with socket.socket() as probe:  # SO_REUSEADDR: connections that were closed in order linger, nobody listens
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", ports[0]))


# ---------------------------------------------------------------------------------------------------------- messages


def while_it_sends(comm):
    """Its elements lie there, and nobody was told."""
    _File.write = die_after(_File.write)
    comm.send(np.ones(300_000), 0)


def while_it_takes(comm):
    """It has the elements, and the sender does not know."""
    _File.read = die_after(_File.read)
    comm.recv(np.empty(300_000), 0, tag=1).wait()


def before_it_comes_to_a_message(comm):
    die()


@pytest.mark.parametrize("moment", [while_it_sends, while_it_takes, before_it_comes_to_a_message])
def test_who_waits_for_a_message_raises_at_once_and_names_it(moment):
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def body(comm):
        queue.put(("pid", os.getpid()))
        comm.barrier()
        if comm.rank == VICTIM:
            moment(comm)
        try:
            if moment is while_it_takes:
                comm.send(np.ones(300_000), VICTIM, tag=1 if comm.rank == 0 else 2).wait()
            comm.recv(np.empty(300_000), VICTIM).wait()
        except RankFailedError as error:
            queue.put((comm.rank, str(error)))

    started = time.monotonic()
    with pytest.raises(RankFailedError, match="a rank of the test died"):
        worlds.run_processes(body, 3, TIMEOUT_S)
    assert time.monotonic() - started < TIMEOUT_S
    heard = [queue.get() for _ in range(5)]
    messages = dict(entry for entry in heard if entry[0] != "pid")
    assert sorted(messages) == [0, 2]
    for rank, message in messages.items():
        assert message.startswith(f"rank {rank}: ") and "expected rank 1 to " in message
        assert f"got nothing: rank {VICTIM} is gone (process " in message and " died) and last called " in message
    pids = [pid for what, pid in heard if what == "pid"]
    assert len(pids) == 3 and all(map(gone, pids)) and segments_of(pids) == []
