"""The kinds of world that the contract is run on: run_ranks(kind, fn, world_size) calls fn(comm) on every rank."""

from __future__ import annotations

import contextvars
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from minigrad.backend.device import CPU, Device
from minigrad.backend.random import set_noise_key
from minigrad.distributed import SoloCommunicator, run
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.rendezvous import Rendezvous, free_port
from minigrad.distributed.comm.shm.communicator import ShmCommunicator
from minigrad.distributed.comm.where import words_of
from minigrad.errors import RankFailedError
from tests.distributed.fake_nccl import FakeNccl

KINDS = ["threads", "shm", "nccl"]
MPI_WORLDS = {2: (2,), 4: (1, 3, 4)}  # by number of processes: the sizes of worlds that they form
ROOT = Path(__file__).parents[2]


def run_ranks(kind: str, fn: Callable[..., Any], world_size: int, timeout_s: float = 20.0) -> list[Any]:
    """The results of fn(comm), in order of rank; raises what the first failing rank raised."""
    if kind == "solo":
        assert world_size == 1
        return [fn(SoloCommunicator())]
    if kind == "shm":
        return run_processes(fn, world_size, timeout_s)
    if kind == "nccl":
        return run_nccl(fn, world_size, timeout_s, debug=True)
    return run(fn, world_size, timeout_s=timeout_s)


def run_processes(fn: Callable[..., Any], world_size: int, timeout_s: float = 20.0) -> list[Any]:
    """run_ranks for forked processes over shared memory."""
    port = free_port()
    context = multiprocessing.get_context("fork")
    started = []
    for rank in range(max(world_size, 1)):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(fn, rank, world_size, port, timeout_s, theirs))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has threads; they hold nothing that we need
            process.start()
        theirs.close()
        started.append((process, mine))
    outcomes = [_outcome(process, mine, timeout_s + 40.0) for process, mine in started]
    for process, _ in started:
        process.join(10.0)
        assert not process.is_alive()
    return _results(outcomes)


def _child(
    fn: Callable[..., Any], rank: int, world_size: int, port: int, timeout_s: float, results: Connection
) -> None:
    set_noise_key(rank)
    comm = None
    try:
        meeting = Rendezvous(rank, world_size, "127.0.0.1", port, b"test", timeout_s)
        comm = ShmCommunicator(rank, world_size, meeting.all_gather, timeout_s=timeout_s)
        results.send((True, fn(comm)))
    except BaseException as error:
        if comm is not None:
            comm.abort(f"it raised {words_of(error)}")
        traceback.clear_frames(error.__traceback__)
        results.send((False, error))
    finally:
        if comm is not None:
            comm.close()


def _outcome(process: Any, results: Connection, timeout_s: float) -> tuple[bool, Any]:
    if not wait([results], timeout_s):
        raise TimeoutError("a rank of the test neither returned nor raised")
    try:
        outcome: tuple[bool, Any] = results.recv()
    except EOFError:
        process.join(10.0)
        return False, RankFailedError(f"a rank of the test died, with exit code {process.exitcode}")
    return outcome


def run_nccl(
    fn: Callable[..., Any],
    world_size: int,
    timeout_s: float = 20.0,
    fake: FakeNccl | None = None,
    device: Device = CPU,
    **options: Any,
) -> list[Any]:
    """run_ranks for threads on one device over a stand-in for NCCL, which tells whether all was given back."""
    nccl = fake if fake is not None else FakeNccl(timeout_s=timeout_s + 20.0)
    port = free_port()
    outcomes: list[tuple[bool, Any]] = [(False, RankFailedError("a rank of the test died"))] * max(world_size, 1)

    def body(rank: int) -> None:
        set_noise_key(rank)
        comm = None
        try:
            meeting = Rendezvous(rank, world_size, "127.0.0.1", port, b"test", timeout_s)
            comm = NcclCommunicator(meeting, device, timeout_s=timeout_s, nccl=nccl, share_devices=True, **options)
            outcomes[rank] = True, fn(comm)
        except BaseException as error:
            outcomes[rank] = False, error
            if comm is not None:
                comm.abort(f"it raised {type(error).__name__}: {error}")
        finally:
            if comm is not None:
                comm.close()

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(body, rank), daemon=True)
        for rank in range(len(outcomes))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s + 40.0)
        assert not thread.is_alive()
    nccl.check_all_given_back()
    return _results(outcomes)


def _results(outcomes: list[tuple[bool, Any]]) -> list[Any]:
    errors = [value for good, value in outcomes if not good]
    if errors:
        raise next((e for e in errors if not isinstance(e, RankFailedError)), errors[0])
    return [value for _, value in outcomes]


def mpirun(processes: int, *arguments: str, timeout_s: float = 50.0) -> subprocess.CompletedProcess[str]:
    """python *arguments in so many processes, by the mpirun that was installed beside this Python."""
    folder = Path(sys.prefix) / "bin"
    return subprocess.run(
        [str(folder / "mpirun"), "-n", str(processes), sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@functools.cache
def _mpi_outcomes(processes: int) -> tuple[dict[str, str], str]:
    """The problem of each case of the contract, empty where there is none; and what mpirun said."""
    sizes = map(str, MPI_WORLDS[processes])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes"
        path.touch()
        try:
            done = mpirun(processes, "-m", "mpi4py", "-m", "tests.distributed.mpi_contract", str(path), *sizes)
            said = f"mpirun ended with {done.returncode}: {done.stdout}{done.stderr}"
        except subprocess.TimeoutExpired as error:
            said = f"mpirun was ended: {error}: {error.stderr!r}"
        return dict(json.loads(line) for line in path.read_text().splitlines()), said


def mpi_problem(processes: int, name: str) -> str:
    """What went wrong in a case of the contract, all of which one mpirun runs."""
    outcomes, said = _mpi_outcomes(processes)
    return outcomes.get(name, f"did not come to {name}: {said}")
