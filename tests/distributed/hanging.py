"""Ranks that can't go on together, one scenario for each kind of fault: rank 1 is the one that has to be mended.

`tell(name, comm, folder)` runs one, and writes the report that this rank gets; on threads, and in processes that are
started as `python -m tests.distributed.hanging`, under mpirun say.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

import minigrad
from minigrad import nn
from minigrad.distributed import DDP, MpiCommunicator, init
from minigrad.distributed.comm.where import words_of
from minigrad.errors import DistributedError

TIMEOUT_S = 0.6


def left_out(comm):
    array = np.ones(3)
    for step in range(3):
        if comm.rank != 1 or step != 2:
            comm.all_reduce(array).wait()  # missing
        comm.barrier()  # here


def one_too_many(comm):
    array = np.ones(3)
    for step in range(3):
        if comm.rank == 1 and step == 2:
            comm.broadcast(array).wait()  # here
        comm.all_reduce(array).wait()  # missing
        comm.barrier()


def another_order(comm):
    pair = [np.ones(3), np.ones(5)]
    for step in range(3):
        for array in reversed(pair) if comm.rank == 1 and step == 2 else pair:
            comm.all_reduce(array).wait()  # here


def another_shape(comm):
    comm.barrier()
    comm.all_reduce(np.ones(3 + comm.rank)).wait()  # here


def another_dtype(comm):
    comm.barrier()
    comm.all_reduce(np.ones(3, "float32" if comm.rank == 1 else "float64")).wait()  # here


def another_plan(comm):
    ddp = DDP(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), comm)
    if comm.rank == 1:
        ddp.module[0].weight.requires_grad = False
    loss = ddp(minigrad.ones(2, 3)).sum()
    loss.backward()  # here


def another_wrapper(comm):
    pair = [DDP(nn.Linear(3, 1), comm), DDP(nn.Linear(3, 2), comm)]
    for ddp in reversed(pair) if comm.rank == 1 else pair:
        loss = ddp(minigrad.ones(2, 3)).sum()
        loss.backward()  # here


def another_group(comm):
    group = comm.split(0)
    if comm.rank == 1:
        time.sleep(TIMEOUT_S / 3)  # so that rank 0 is tired first
        group.barrier()  # here
    comm.barrier()  # missing


def left_early(comm):
    comm.barrier()  # here
    if comm.rank == 1:
        comm.close()
        return
    comm.barrier()  # missing


def raised(comm):
    comm.barrier()
    if comm.rank == 1:
        raise ZeroDivisionError("boom")  # here
    comm.barrier()


def wait_until_left(barriers):
    """Wait until ranks have left so many calls in the folder for that, where there is one."""
    folder, deadline = os.environ.get("MINIGRAD_HANG_DIR"), time.monotonic() + 20.0
    while folder and time.monotonic() < deadline:
        paths = [Path(folder, f"rank-{rank}.json") for rank in range(len(barriers))]
        if all(path.exists() and path.read_text().count('"barrier"') >= n for path, n in zip(paths, barriers)):
            return
        time.sleep(0.02)


def died(comm):
    comm.barrier()  # here
    if comm.rank == 1:
        wait_until_left([2, 1])
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def late(comm):
    comm.barrier()
    if comm.rank == 1:
        GATE.wait(4 * TIMEOUT_S)  # here
    comm.barrier()  # missing


def held_in_c(comm):
    comm.barrier()
    if comm.rank == 1:
        ctypes.PyDLL(None).sleep(3)  # here
    comm.barrier()  # missing


GATE = threading.Event()  # that nobody opens
KINDS = {
    left_out: "a call left out",
    one_too_many: "one call too many",
    another_order: "another order",
    another_shape: "another array",
    another_dtype: "another array",
    another_plan: "another plan",
    another_wrapper: "another wrapper or group",
    another_group: "another wrapper or group",
    left_early: "left early",
    raised: "raised",
    died: "died",
    late: "late",
    held_in_c: "late",
}
NAMES = {scenario.__name__: scenario for scenario in KINDS}


def line(scenario, word):
    """The place of the line of a scenario that ends with this word as a comment."""
    first = scenario.__code__.co_firstlineno
    lines = list(enumerate(Path(__file__).read_text().splitlines(), 1))[first - 1 :]
    number = next(number for number, text in lines if text.endswith(f"# {word}"))
    return f"{__file__}:{number} in {scenario.__name__}"


def tell(scenario, comm, folder):
    """Run a scenario; the report is in a file of this rank."""
    try:
        scenario(comm)
    except DistributedError as error:
        text = error.report.to_json() if error.report is not None else ""
        Path(folder, f"{comm.rank}.json").write_text(text)


def main(folder, names):
    """Run scenarios one after the other, each on a communicator of its own, under mpirun."""
    from mpi4py import MPI

    for name in names:
        Path(folder, name).mkdir(exist_ok=True)
        comm = MpiCommunicator(MPI.COMM_WORLD, timeout_s=TIMEOUT_S)
        try:
            tell(NAMES[name], comm, Path(folder, name))
        except ZeroDivisionError as error:
            comm.abort(f"it raised {words_of(error)}")
        finally:
            comm.close()
        request = MPI.COMM_WORLD.Ibarrier()
        while not request.Test():
            time.sleep(0.001)


if __name__ == "__main__":
    if sys.argv[1] == "init":
        under_mpirun = "PMI_RANK" in os.environ  # which takes up to a second to start
        NAMES[sys.argv[2]](init(timeout_s=3.0 if under_mpirun else TIMEOUT_S))
    else:
        main(sys.argv[1], sys.argv[2:])
