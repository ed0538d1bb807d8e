"""The launcher: one script as several processes, and nothing left of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import minigrad
from minigrad.backend.memory import can_keep_freed_memory, environment_that_keeps_memory
from minigrad.distributed import launch
from minigrad.errors import ArgumentError
from tests.distributed.processes import all_gone

SCRIPT = """
import gc, os, sys, time
import numpy as np
from minigrad import distributed
comm = distributed.init()
array = np.ones(3) * (comm.rank + 1)
comm.all_reduce(array).wait()
print("sum", int(array[0]), "threads", os.environ["OMP_NUM_THREADS"], "of", comm.world_size, flush=True)
mode = sys.argv[1] if len(sys.argv) > 1 else ""
if mode == "raise" and comm.rank == 1:
    raise ValueError("boom")
if mode == "kill" and comm.rank == 1:
    os.kill(os.getpid(), 9)
if mode == "exit" and comm.rank == 1:
    sys.exit(7)
if mode == "much":
    sys.stdout.buffer.write(b"x" * 300_000 + chr(0x3a3).encode() + b"\\n")  # more than a pipe holds
    sys.stdout.flush()
if mode == "fork":
    child = os.fork()
    if not child:
        raise ValueError("of a child that is no rank")
    os.waitpid(child, 0)
if mode == "again":
    gc.disable()
    for _ in range(3):
        parts = [comm.split(0), comm.split(comm.rank), comm.split(0)]
        sent = [part.send(array, 1 - comm.rank) for part in (comm, parts[0])]
        [part.recv(array, 1 - comm.rank).wait() for part in (comm, parts[0])]
        [work.wait() for work in sent]
        comm.reduce(np.ones(9000)).wait()
        parts[2].close()
        del parts, sent
        comm.close()
        comm = distributed.init()
        comm.barrier()
    held = [line for line in open("/proc/self/maps") if "/dev/shm/minigrad" in line or "memfd:minigrad" in line]
    print("held", len(held), "of one world", flush=True)
if mode == "sleep":
    print("pid", os.getpid(), flush=True)
    time.sleep(60)
comm.barrier()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def _command(*arguments):
    return [sys.executable, "-m", "minigrad.distributed.launch", *arguments]


def _environment():
    """With the package under test first, installed or not."""
    return {**os.environ, "MINIGRAD_TIMEOUT_S": "15", "PYTHONPATH": str(Path(minigrad.__file__).parents[1])}


def _launch(*arguments, timeout_s=40.0):
    options = {"capture_output": True, "text": True, "timeout": timeout_s, "env": _environment()}
    return subprocess.run(_command(*arguments), **options)


def test_output_is_prefixed_with_the_rank(script):
    done = _launch("-n", "2", script)
    assert done.returncode == 0, done.stderr
    assert sorted(line[:9] for line in done.stdout.splitlines()) == ["[0] sum 3", "[1] sum 3"]
    assert f"threads {max(1, os.cpu_count() // 2)} of 2" in done.stdout


@pytest.mark.parametrize(
    "mode, code, words",
    [
        ("raise", 1, "ValueError: boom"),
        ("kill", 137, "rank 1 failed first: it was ended by SIGKILL"),
        ("exit", 7, "rank 1 failed first: it exited with status 7"),
    ],
)
def test_first_failing_rank_is_reported_and_the_others_end(script, mode, code, words):
    started = time.monotonic()
    done = _launch("--nproc-per-node", "3", script, mode)
    assert done.returncode == code
    assert "launch: rank 1 failed first" in done.stderr and words in done.stderr
    assert time.monotonic() - started < 15.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_is_left(script, number):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, "env": _environment()}
    with subprocess.Popen(_command("-n", "2", script, "sleep"), **options) as process:
        pids = []
        for line in process.stdout:
            if "pid" in line:
                pids.append(int(line.split()[-1]))
            if len(pids) == 2:
                break
        process.send_signal(number)
        process.wait(20.0)
        assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert all_gone(pids)


def test_two_launches_at_once_do_not_clash(script):
    options = {"stdout": subprocess.PIPE, "text": True, "env": _environment()}
    started = [subprocess.Popen(_command("-n", "2", script), **options) for _ in range(2)]
    for process in started:
        output, _ = process.communicate(timeout=40.0)
        assert process.returncode == 0 and output.count("sum 3") == 2


def test_a_script_finds_its_rank_as_under_torchrun():
    environment = launch.environment_of(1, 2, 29500, "key", {"RANK": "7"})
    assert [environment[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")] == list("1212")


@pytest.mark.skipif(not can_keep_freed_memory(), reason="only glibc keeps freed memory")
@pytest.mark.parametrize("option", [[], ["--keep-memory"]])
def test_ranks_keep_memory_where_that_is_asked_for(tmp_path, option):
    path = tmp_path / "script.py"
    path.write_text("import os\nprint(*[name for name in sorted(os.environ) if name.startswith('MALLOC_')])\n")
    done = _launch("-n", "1", *option, str(path))
    assert done.returncode == 0 and done.stdout.split()[1:] == sorted(environment_that_keeps_memory()) * bool(option)


def test_memory_is_not_kept_in_silence_where_it_can_not_be(monkeypatch):
    monkeypatch.setattr(launch, "can_keep_freed_memory", lambda: False)
    with pytest.raises(ArgumentError, match="expected keep_memory where the C library is glibc"):
        launch.launch(["true"], 1, keep_memory=True)


def test_wrong_number_of_ranks(script):
    done = _launch("-n", "0", script)
    assert done.returncode == 2 and "expected at least 1 rank, got 0" in done.stderr


@pytest.mark.parametrize("how", ["gone", "closed", "ascii"])
def test_a_rank_goes_on_whatever_becomes_of_its_output(script, how):
    """A reader that is gone, no output at all, or one whose encoding lacks a letter."""
    environment = {**_environment(), **({"PYTHONIOENCODING": "ascii"} if how == "ascii" else {})}
    reader, writer = os.pipe()
    if how == "gone":
        os.close(reader)
    command = _command("-n", "2", script, "much")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *command] if how == "closed" else command
    options = {"stdout": subprocess.PIPE if how == "ascii" else writer, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(command, env=environment, timeout=40.0, **options)
    os.close(writer)
    if how != "gone":
        os.close(reader)
        assert done.returncode == 0 and not done.stderr
    if how == "ascii":
        assert done.stdout.count("x\\u03a3\n") == 2
    assert "Traceback" not in done.stderr


def test_a_fork_of_a_rank_that_raises_is_not_that_rank(script):
    done = _launch("-n", "2", script, "fork")
    assert done.returncode == 0 and done.stderr.count("ValueError: of a child") == 2


def test_worlds_that_were_closed_are_given_back(script):
    done = _launch("-n", "2", script, "again")
    assert done.returncode == 0 and done.stdout.count("held 1 of one world") == 2, done.stderr
