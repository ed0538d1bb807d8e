"""How a job under mpirun ends when a rank raises, is killed, is late, leaves or never comes; and what starts it."""

import queue
import re
import sys
from collections import deque

import pytest

from minigrad.distributed.comm.mpi.carrier import next_of
from minigrad.distributed.comm.mpi.start import load_mpi
from minigrad.errors import MissingPackageError
from tests.distributed.processes import all_gone, mpich_segments, remove_unused
from tests.distributed.worlds import mpirun

SCRIPT = """
import os, sys, threading, time
import numpy as np
from minigrad import distributed, errors
def say(text):
    sys.stdout.write(text)  # in one piece, so that the ranks' lines stay whole
    sys.stdout.flush()
mode, last = sys.argv[1], os.environ["PMI_RANK"] == "1"
say(f"pid {os.getpid()}\\n")
if mode == "absent" and last:
    time.sleep(30)
if mode == "tardy" and last:
    from mpi4py import MPI
    time.sleep(30)
comm = distributed.init()
array = np.ones(3) * (comm.rank + 1)
comm.all_reduce(array).wait()
say(f"sum {int(array[0])}\\n")
if mode == "raise" and last:
    raise ValueError("boom")
if mode == "kill" and last:
    os.kill(os.getpid(), 9)
if mode == "late" and last:
    time.sleep(30)
if mode == "leave" and last:
    sys.exit(0)
if mode == "killed in the middle":
    if last:
        threading.Timer(0.1, os.kill, (os.getpid(), 9)).start()
    large = np.ones(4_000_000)
    while True:
        comm.all_reduce(large).wait()
if mode == "killed in a message":
    if last:
        threading.Timer(0.1, os.kill, (os.getpid(), 9)).start()
    large = np.ones(4_000_000)
    while True:
        work = comm.send(large, 1 - comm.rank)
        comm.recv(np.empty_like(large), 1 - comm.rank).wait()
        work.wait()
if mode == "message left" and last:
    comm.send(array, 0)
    sys.exit(0)
if mode in ("message left", "message late") and not last:
    comm.recv(array, 1, tag=3).wait()
if mode == "message late" and last:
    comm.send(array, 0)
    time.sleep(30)
if mode == "fork" and last:
    child = os.fork()
    if child == 0:
        for use in (comm.barrier, comm.end_job, distributed.init):
            try:
                use()
            except errors.DistributedError as error:
                say(str(error))
        sys.exit(0)  # which must not end MPI
    os.waitpid(child, 0)
if mode == "forget":
    comm.all_reduce(np.ones(1_000_000))
    sys.exit(0)
comm.barrier()
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """job(mode, *options) runs the script on two ranks: its exit status, and what it wrote."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    monkeypatch.setenv("MINIGRAD_TIMEOUT_S", "1.5")

    def start(mode, *options):
        before = mpich_segments()
        done = mpirun(2, *options, str(path), mode, timeout_s=20.0)
        pids = [int(text) for text in re.findall(r"pid (\d+)", done.stdout)]
        assert len(pids) == 2
        assert all_gone(pids)
        remove_unused(mpich_segments() - before)
        return done.returncode, done.stdout + done.stderr

    return start


@pytest.mark.parametrize("mode", ["all is well", "forget"])
def test_a_job_ends_well(job, mode):
    code, said = job(mode)
    assert code == 0, said
    assert said.count("sum 3") == 2


@pytest.mark.parametrize("options", [(), ("-m", "mpi4py")], ids=["python", "python -m mpi4py"])
def test_a_rank_that_raises_ends_the_job_with_its_traceback(job, options):
    code, said = job("raise", *options)
    assert code != 0
    assert "ValueError: boom" in said and "script.py" in said


def test_the_end_of_a_child_of_a_fork_does_not_end_mpi(job):
    code, said = job("fork")
    assert code == 0, said
    assert said.count("rank 1: expected the process that made the communicator, got process") == 2
    assert "mpi: expected the process that made the communicator, got process" in said


@pytest.mark.parametrize("mode", ["kill", "killed in the middle", "killed in a message"])
def test_a_killed_rank_ends_the_job(job, mode):
    code, _ = job(mode)
    assert code != 0


@pytest.mark.parametrize(
    "mode, words",
    [
        ("late", "call 1: barrier: expected all 2 ranks within 1.5 s, got ranks [0]: rank 1 last called call 0: all"),
        ("leave", "call 1: barrier: expected all 2 ranks, but rank 1 closed its communicator and last called call 0"),
        ("message left", "rank 1 closed its communicator and last called send(to 0, tag 0) of 3 float64"),
        ("message late", "recv(from 1, tag 3) of 3 float64: expected rank 1 to send it within 1.5 s, got what it sent"),
        ("absent", "in load_mpi"),  # MPI itself waits, and can't say for whom
        ("tardy", "rank 0: mpi: expected 2 ranks within 1.5 s, got nothing from ranks [1]"),
    ],
)
def test_a_rank_that_does_not_come_is_named(job, mode, words):
    code, said = job(mode)
    assert code != 0
    assert words in said


def test_without_mpi4py_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingPackageError, match=r"pip install minigrad\[mpi\]"):
        load_mpi(1.0)


def test_a_world_that_mpi_does_not_see_is_refused():
    done = mpirun(1, "-c", "from minigrad import distributed; distributed.init(backend='mpi', rank=0, world_size=2)")
    assert done.returncode != 0
    assert "expected MPI to see rank 0 of 2, got rank 0 of 1" in done.stderr


class LockedQueue:
    """What a SimpleQueue does up to Python 3.12 for one thread that takes, where no time is left for a wait.

    An item that was there when it was taken leaves the lock open; a get that passes an open lock, and finds nothing,
    counts its time below 0, which is for ever.
    """

    def __init__(self):
        self.items, self.is_open = deque(), False

    def put(self, item):
        self.items.append(item)
        self.is_open = True

    def get_nowait(self):
        if not self.items:
            self.is_open = False
            raise queue.Empty
        return self.items.popleft()

    def get(self, timeout):
        assert self.items or not self.is_open, "waits for ever"
        return self.get_nowait()


def test_a_thread_that_naps_wakes_again():
    posted = LockedQueue()
    for _ in range(2):
        posted.put(1)
        posted.put(None)
        assert [next_of(posted, 1e-9) for _ in range(4)] == [1, None, None, None]
    posted = queue.SimpleQueue()
    posted.put(1)
    assert [next_of(posted, 1e-9) for _ in range(200)] == [1] + [None] * 199
