"""Lifelines of processes over shared memory: kill -9 at any moment, of any rank, and what the launcher does then."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minigrad
from minigrad.distributed.comm.nccl import communicator
from minigrad.distributed.comm.nccl.communicator import NcclCommunicator
from minigrad.distributed.comm.shm.segment import remove_segments_of
from minigrad.distributed.living.lifeline import OUTSIDE, Death, Letter, Lifeline, ParcelKind
from minigrad.distributed.living.line import LauncherLine, begin_shm, lifeline_here, why_no_shrink
from minigrad.distributed.living.pipes import Frame, frames_in
from minigrad.distributed.living.switchboard import Switchboard
from minigrad.errors import ArgumentError, DistributedError, RankFailedError
from tests.distributed.fake_nccl import FakeNccl
from tests.distributed.processes import all_gone

TIMEOUT_S, ROUNDS, RANKS = 10.0, 6, 3


def run_forked(body: Callable[[Lifeline], Any], world_size: int) -> tuple[list[Any], list[int]]:
    """What body(lifeline) gave, or None, in a process for each rank that this one passes letters for; their pids."""
    pids: list[int] = []
    board = Switchboard(world_size, lambda rank: os.kill(pids[rank], signal.SIGKILL))
    pipes = [os.pipe() for _ in range(world_size)]
    for rank in range(world_size):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # BLAS has threads; they hold nothing that we need
            pid = os.fork()
        if not pid:
            _be_rank(body, rank, world_size, os.dup(board.descriptor_for(rank)), pipes[rank][1])
        pids.append(pid)
    board.start()
    results, deadline, left = [None] * world_size, time.monotonic() + 2 * TIMEOUT_S, set(range(world_size))
    while left and time.monotonic() < deadline:
        for rank in sorted(left):
            ended, status = os.waitpid(pids[rank], os.WNOHANG)
            if ended:
                left.remove(rank)
                remove_segments_of(pids[rank])
                board.tell_death(rank, "was ended by SIGKILL" if status else "exited with status 0")
        time.sleep(1e-3)
    for rank in left:
        os.kill(pids[rank], signal.SIGKILL)
        os.waitpid(pids[rank], 0)
    board.close()
    for rank, (reads, writes) in enumerate(pipes):
        os.close(writes)
        with open(reads, "rb") as file:
            data = file.read()
        results[rank] = json.loads(data) if data else None
    return results, pids


def _be_rank(body: Callable[[Lifeline], Any], rank: int, world_size: int, descriptor: int, result: int) -> None:
    status = 1
    try:
        line = LauncherLine(str(descriptor), rank, world_size)
        lifeline = line.open("test", functools.partial(begin_shm, timeout_s=TIMEOUT_S), TIMEOUT_S)
        os.write(result, json.dumps(body(lifeline)).encode())
        status = 0
    except BaseException as error:
        os.write(result, json.dumps(f"{type(error).__name__}: {error}").encode())
    finally:
        os._exit(status)


def total(comm: Any, count: int) -> float:
    array = np.ones(count)
    comm.all_reduce(array).wait()
    assert len(set(array.tolist())) == 1
    return float(array[0])


def rounds(lifeline: Lifeline) -> list[list[int]]:
    """Sums in rounds, each done again where somebody dies in it: of each how many took part, and the generation."""
    done: list[list[int]] = []
    generation, comm = 0, None
    while len(done) < ROUNDS:
        try:
            if comm is None:
                comm = lifeline.regroup(lifeline.living if generation else range(RANKS), generation)
                shared = comm.empty(10, np.float64)
                del done[min(comm.all_gather_object(len(done))) :]
            shared[...] = 1.0
            comm.all_reduce(shared).wait()
            alive = {int(shared[0]), int(total(comm, 3)), int(total(comm, 40_000))}
            assert alive == {comm.world_size}
            comm.barrier()
            done.append([comm.world_size, generation])
        except RankFailedError:
            heard: Any = None
            while not isinstance(heard, Death):
                heard = lifeline.take(TIMEOUT_S)
                assert heard is not None, f"nobody told rank {lifeline.rank} of a death"
            comm, generation = None, generation + 1
    return done


class KilledAt:
    """Ends this process at the n-th call that any of its threads makes: in Python, or of what is written in C."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        self.left -= 1
        if self.left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def counted() -> int:
    """About how many calls a rank makes."""
    counter = KilledAt(10**9)

    def body(lifeline: Lifeline) -> int:
        sys.setprofile(counter)
        rounds(lifeline)
        sys.setprofile(None)
        return 10**9 - counter.left

    return min(run_forked(body, RANKS)[0])


def descriptors() -> int:
    """How many this process has open, but for those that only garbage holds."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_the_living_go_on_whenever_a_rank_is_killed():
    drawn, calls, moments = random.Random(16), counted(), set()
    open_before = descriptors()
    for i in range(20):
        victim, moment = i % RANKS, drawn.randrange(calls)

        def body(lifeline: Lifeline) -> Any:
            if lifeline.rank == victim:
                killer = KilledAt(moment)
                threading.setprofile(killer)
                sys.setprofile(killer)
                rounds(lifeline)
                os.kill(os.getpid(), signal.SIGKILL)
            return rounds(lifeline)

        started = time.monotonic()
        results, pids = run_forked(body, RANKS)
        assert time.monotonic() - started < TIMEOUT_S
        lived = [result for rank, result in enumerate(results) if rank != victim]
        assert results[victim] is None and all(isinstance(each, list) for each in lived), (victim, moment, results)
        first, second = lived
        assert first[:-1] == second[:-1] and len(first) == len(second) == ROUNDS  # one alone may know of the last
        together = [size for size, generation in first if generation == 0]
        assert set(together) <= {3} and {size for size, _ in first[len(together) :]} <= {1, 2}
        moments.add(len(together))
        assert all_gone(pids)
        assert [path for pid in pids for path in Path("/dev/shm").glob(f"minigrad-{pid}-*")] == []
    assert len(moments) > 1
    assert descriptors() <= open_before  # what an earlier test left may be closed meanwhile


# ------------------------------------------------------------------------------------------------------- the launcher

SCRIPT = """
import json, os, signal, sys, time
import numpy as np
from minigrad.distributed.living.lifeline import Death
from minigrad.distributed.living.line import lifeline_here
from minigrad.errors import RankFailedError
mode, victims = sys.argv[1], json.loads(sys.argv[2])
lifeline = lifeline_here(on_failure="shrink" if mode == "shrink" else "stop", timeout_s=20.0)
comm, generation, step = lifeline.regroup(range(lifeline.world_size), 0), 0, 0
print("pid", os.getpid(), flush=True)
while step < 40:
    if victims.get(str(lifeline.rank)) == step:
        child = os.fork()
        if not child:
            time.sleep(60)
        print("pid", child, flush=True)  # of what a rank that is killed leaves
        open(sys.argv[3], "w").write(str(child))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        array = np.ones(50_000)
        comm.all_reduce(array).wait()
        step += 1
    except RankFailedError:
        death = None
        while not isinstance(death, Death):
            death = lifeline.take(20.0)
        if mode == "stop":
            print("saved, as", death.rank, death.error, flush=True)
            raise RankFailedError(f"rank {death.rank} {death.error}")
        generation += 1
        comm = lifeline.regroup(lifeline.living, generation)
        step = min(comm.all_gather_object(step))
left = f"/proc/{open(sys.argv[3]).read()}/stat"
print("left", os.path.exists(left) and ") Z " not in open(left).read(), flush=True)
print("sum", int(array[0]), "of", list(comm.global_ranks), flush=True)
lifeline.close()
again = lifeline_here(timeout_s=20.0)
comm = again.regroup(again.living, 0)
comm.barrier()
print("again", comm.world_size, flush=True)
again.close()
"""


def launched(tmp_path: Path, on_failure: str, victims: dict[str, int]) -> tuple[int, str, str, list[int]]:
    """Status, output, errors and the ranks' process numbers of the script above under the launcher."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "minigrad.distributed.launch", "-n", "3", "--on-failure", on_failure]
    environment = {**os.environ, "MINIGRAD_TIMEOUT_S": "20", "PYTHONPATH": str(Path(minigrad.__file__).parents[1])}
    done = subprocess.run(
        [*command, str(path), on_failure, json.dumps(victims), str(tmp_path / "left")],
        capture_output=True,
        text=True,
        timeout=50.0,
        env=environment,
    )
    pids = [int(line.split()[-1]) for line in done.stdout.splitlines() if " pid " in line]
    return done.returncode, done.stdout, done.stderr, pids


def test_under_the_launcher_the_others_go_on_where_it_was_told_so(tmp_path):
    status, output, errors, pids = launched(tmp_path, "shrink", {"0": 5})
    assert status == 0, output + errors
    assert output.count("sum 2 of [1, 2]") == 2 and output.count("again 2") == 2
    assert output.count("left False") == 2, output
    assert "launch: rank 0 was ended by SIGKILL; the others go on" in errors
    assert len(pids) == 4 and all_gone(pids)
    assert [path for pid in pids for path in Path("/dev/shm").glob(f"minigrad-{pid}-*")] == []


def test_under_the_launcher_the_others_may_save_before_all_stop(tmp_path):
    status, output, errors, pids = launched(tmp_path, "stop", {"0": 5})
    assert status == 128 + signal.SIGKILL
    assert output.count("saved, as 0 was ended by SIGKILL") == 2
    assert "launch: rank 0 failed first: it was ended by SIGKILL" in errors
    assert all_gone(pids)


@pytest.mark.parametrize(
    "environ, words",
    [
        ({"MINIGRAD_LIFELINE": "3", "MINIGRAD_ON_FAILURE": "stop"}, "was told to stop all ranks where one dies"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "mpirun ends all ranks where one dies"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpirun ends all ranks where one dies"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "torchrun ends all ranks where one dies"),
        ({"MINIGRAD_RANK": "0", "MINIGRAD_WORLD_SIZE": "2"}, "started without our launcher"),
        ({}, "started alone"),
    ],
)
def test_who_started_the_ranks_is_named_where_they_can_not_go_on(environ, words, monkeypatch):
    assert words in why_no_shrink(environ) and "launch --on-failure shrink" in why_no_shrink(environ)
    for name in os.environ:
        if name.startswith(("MINIGRAD_", "OMPI_", "PMI_", "SLURM_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"Trainer.start: expected ranks that hear of deaths.*{words}"):
        lifeline_here("Trainer.start", on_failure="shrink")


def test_a_line_that_is_none_is_refused(monkeypatch):
    monkeypatch.setenv("MINIGRAD_RANK", "0")
    monkeypatch.setenv("MINIGRAD_WORLD_SIZE", "2")
    with open(os.devnull) as file:
        monkeypatch.setenv("MINIGRAD_LIFELINE", str(file.fileno()))
        with pytest.raises(ArgumentError, match="only the processes that the launcher started are ranks"):
            lifeline_here()


def test_the_last_words_of_a_rank_come_before_its_death():
    board = Switchboard(2, lambda rank: None)
    first, second = (socket.socket(fileno=os.dup(board.descriptor_for(rank))) for rank in range(2))
    first.sendall(Frame(0, 1, ParcelKind.LETTER, b"last").packed())
    board.tell_death(0, "was ended")  # before the thread has read anything
    board.start()
    second.settimeout(TIMEOUT_S)
    came = bytearray()
    while len(found := list(frames_in(bytearray(came)))) < 2:
        came += second.recv(1000)
    board.close()
    first.close()
    second.close()
    assert [frame.kind for frame in found] == [ParcelKind.LETTER, ParcelKind.DEATH]


def test_a_process_that_ends_after_it_has_closed_its_lifeline_is_no_death():
    def body(lifeline: Lifeline) -> Any:
        if lifeline.rank == 1:
            lifeline.close()
            return None
        heard = lifeline.take(0.3)
        with pytest.raises(RankFailedError, match="rank 1 has closed its lifeline"):
            lifeline.regroup([0, 1], 0)
        return heard is None, lifeline.living

    assert run_forked(body, 2)[0][0] == [True, [0, 1]]


def test_a_rank_on_a_gpu_begins_nccl(cuda, monkeypatch):
    """Here one alone: the stand-in for NCCL joins no processes."""
    nccl = FakeNccl(timeout_s=TIMEOUT_S)
    monkeypatch.setattr(communicator, "load_nccl", lambda: nccl)
    board = Switchboard(1, lambda rank: None)
    descriptor = os.dup(board.descriptor_for(0))
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "LIFELINE": descriptor, "ON_FAILURE": "shrink"}.items():
        monkeypatch.setenv(f"MINIGRAD_{name}", str(value))
    board.start()
    for _ in range(2):  # one after the other
        lifeline = lifeline_here(on_failure="shrink", device=cuda, timeout_s=TIMEOUT_S)
        with pytest.raises(ArgumentError, match="one lifeline at a time"):
            lifeline_here()
        comm = lifeline.regroup([0], 0)
        assert isinstance(comm, NcclCommunicator) and comm.device == cuda
        lifeline.close()
    board.close()
    nccl.check_all_given_back()


def test_letters_between_processes_and_what_a_rank_may_not_do():
    def body(lifeline: Lifeline) -> Any:
        if lifeline.rank == 1:
            lifeline.post(0, b"x" * 5_000_000)
            lifeline.post(0, {"last": True})
            lifeline.drop(1, "by itself")
            time.sleep(TIMEOUT_S)
        heard = [lifeline.take(TIMEOUT_S) for _ in range(3)]
        assert heard[:2] == [Letter(1, b"x" * 5_000_000), Letter(1, {"last": True})]
        assert heard[2] == Death(1, "rank 1 dropped it: by itself")
        with contextlib.suppress(ArgumentError):
            lifeline.post(OUTSIDE, 1)
            raise AssertionError("nobody is outside")
        reads, writes = os.pipe()
        child = os.fork()
        if not child:
            try:
                lifeline.regroup([0], 0)
            except DistributedError as error:
                os.write(writes, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        lifeline.post(0, "the child has not closed it")
        return os.read(reads, 1000).decode(), lifeline.take(TIMEOUT_S)[1]

    results, _ = run_forked(body, 2)
    assert "rank 0: regroup" in results[0][0] and "a fork of process" in results[0][0], results
    assert results[0][1] == "the child has not closed it" and results[1] is None
