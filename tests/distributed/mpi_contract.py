"""The contract in one set of MPI processes: mpirun -n 4 python -m tests.distributed.mpi_contract FILE 1 3 4

The numbers are sizes of worlds, each made of the first ranks. A line of JSON in FILE for each case: its name, and its
problem or an empty text.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator

from mpi4py import MPI

from minigrad.distributed import MpiCommunicator
from tests.distributed.contract import CASES


def outcome(base: MPI.Comm, body: Callable[[MpiCommunicator], None], timeout_s: float) -> str:
    """What went wrong on this rank, in a world of its own for the body."""
    comm = MpiCommunicator(base, timeout_s=timeout_s)
    try:
        body(comm)
        return ""
    except BaseException as error:
        comm.abort(f"it raised {error}")
        return f"rank {comm.rank}: {traceback.format_exc()}"
    finally:
        comm.close()


def fifty_worlds(base: MPI.Comm) -> str:
    """Make and close fifty worlds; what is left of them."""
    counted = []
    for number in range(50):
        comm = MpiCommunicator(base, timeout_s=20.0)
        ranks = comm.all_gather_object(comm.rank)
        comm.close()
        assert ranks == list(range(base.size))
        if number in (0, 49):
            counted.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
    return "" if counted[0] == counted[1] else f"threads and descriptors after one world and after fifty: {counted}"


def cases(sizes: list[int]) -> Iterator[tuple[str, str]]:
    """The name of each case and what went wrong on this rank."""
    everyone = MPI.COMM_WORLD
    for size in sizes:
        part = everyone.Split(int(everyone.rank < size), everyone.rank)
        for name, case in CASES.items():
            if size in case.sizes:
                problem = outcome(part, case.body, case.timeout_s) if everyone.rank < size else ""
                yield f"{name} on {size}", problem
    yield "fifty worlds", fifty_worlds(everyone)


def _meet(everyone: MPI.Comm) -> None:
    """Wait for all, without taking the cores from those that are not there yet, as MPI's own waiting does."""
    request = everyone.Ibarrier()
    while not request.Test():
        time.sleep(0.001)


def main(path: str, sizes: list[int]) -> None:
    """Run all cases, and write each outcome as soon as all ranks have it."""
    with open(path, "a") as file:
        for name, problem in cases(sizes):
            _meet(MPI.COMM_WORLD)
            problems = MPI.COMM_WORLD.gather(problem)
            if MPI.COMM_WORLD.rank == 0:
                file.write(json.dumps([name, "\n".join(filter(None, problems))]) + "\n")
                file.flush()


if __name__ == "__main__":
    main(sys.argv[1], [int(text) for text in sys.argv[2:]])
