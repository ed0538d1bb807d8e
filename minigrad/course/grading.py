"""A check of what a student wrote, by a process that can be killed, and the mark for it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, NamedTuple

import minigrad
from minigrad.arguments import as_real
from minigrad.backend.thread import new_thread
from minigrad.course import catalogue, marks
from minigrad.course.judge import FILE
from minigrad.course.marks import Mark
from minigrad.errors import ArgumentError

START_S = 120.0  # for a Python that loads minigrad, on a busy machine
SHOWN_CHARACTERS = 4000


class Checked(NamedTuple):
    """A mark, and what the student's code printed meanwhile; of much, the end."""

    mark: Mark
    printed: str


class _Verdict(NamedTuple):
    kind: str  # passed, wrong, not written
    words: str
    printed: str


def check(folder: Path, number: int, k: int, timeout_s: float = 60.0) -> Checked:
    """Check a task of a student's folder, and write the mark.

    What is not written yet is no try.

    Args:
        folder: Has the student's adapters.py.
        k: Task k of the lesson, from 1.
        timeout_s: What the check may take, once minigrad and the lesson are loaded; > 0.

    Raises:
        ArgumentError: no such task, no such file, or a timeout out of range.
    """
    as_real("course", "timeout_s", timeout_s, above=0.0)
    check_folder(folder)
    exercise = catalogue.task(number, k)
    verdict = _in_a_process(folder, number, k, timeout_s)
    passed, tried = verdict.kind == "passed", verdict.kind != "not written"

    def how(old: Mark) -> Mark:
        points, tries = exercise.points if passed else 0, old.tries + tried
        here = marks.this_minigrad()
        return replace(old, passed=passed, points=points, words=verdict.words, tries=tries, minigrad=here)

    return Checked(marks.change(folder, marks.task_id(number, k), how), verdict.printed)


def check_folder(folder: Path) -> None:
    """Refuse a folder without the student's file.

    Raises:
        ArgumentError: it has none.
    """
    if not (folder / FILE).is_file():
        raise ArgumentError(
            f"course: expected {FILE} in {folder}, got none: python -m minigrad.course start LESSON {folder}"
        )


def _in_a_process(folder: Path, number: int, k: int, timeout_s: float) -> _Verdict:
    """Run the judge, and kill it with all that it started where it does not answer in time."""
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "minigrad.course.judge", str(folder), str(number), str(k), str(writing)]
    with os.fdopen(reading, "rb", buffering=0) as answers:
        process = subprocess.Popen(
            command,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            start_new_session=True,
        )
        os.close(writing)
        output = _Output(process)
        try:
            kind, words = _followed(process, _Lines(answers), output, timeout_s)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _Verdict(kind, words, output.end())


class _Output:
    """The end of what a process prints, which may be without one: all of it is read, and the last is kept."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._source, self._kept, self._many = process.stdout, b"", 0
        self._reader = new_thread(self._read)
        self._reader.start()

    def _read(self) -> None:
        with self._source:
            while more := os.read(self._source.fileno(), 65536):
                self._many += len(more)
                self._kept = (self._kept + more)[-SHOWN_CHARACTERS:]

    def end(self) -> str:
        """It, once the process is gone; a child of it that left its group may hold the pipe, and is not waited for."""
        self._reader.join(1.0)
        return ("... " if self._many > SHOWN_CHARACTERS else "") + self._kept.decode("utf-8", "replace")


def _followed(
    process: subprocess.Popen[bytes], answers: _Lines, output: _Output, timeout_s: float
) -> tuple[str, str]:
    """What becomes of the process, in words."""
    try:
        begun = answers.next(START_S)
    except TimeoutError:
        raise ArgumentError(f"course: expected a check that begins within {START_S:g} s, got none") from None
    if begun is None:
        raise ArgumentError(
            f"course: expected a check that begins, got a process that {_ended(process)}: does a file beside "
            f"{FILE} have the name of a module of Python's? It printed: {output.end()[-300:].strip()}"
        )
    try:
        answer = answers.next(timeout_s)
        if answer is not None:
            return str(answer["verdict"]), str(answer["words"])
    except (ValueError, TypeError, KeyError):
        return "wrong", "something else than the check wrote into its pipe: only open files of your own"
    except TimeoutError:
        return "wrong", f"it was not over after {timeout_s:g} s and was stopped: does it wait for something, or loop?"
    return "wrong", f"the process {_ended(process)} before the check was over: os._exit, or a crash?"


class _Lines:
    """Lines of JSON from a pipe, each waited for with a timeout."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._rest = source, b""

    def next(self, timeout_s: float) -> dict[str, Any] | None:
        """The next one; None where the other end was closed.

        Raises:
            TimeoutError: none came.
        """
        end = time.monotonic() + timeout_s
        while b"\n" not in self._rest:
            if not select.select([self._source], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError
            more = self._source.read(65536)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def _ended(process: subprocess.Popen[bytes]) -> str:
    """How a process ended whose pipe is closed."""
    try:
        code = process.wait(1.0)
    except subprocess.TimeoutExpired:
        return "went on without an answer"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"


def _environment() -> dict[str, str]:
    """That of the judge: this minigrad, one order of sets, one thread a product, so that marks are alike everywhere."""
    place = str(Path(minigrad.__file__).parents[1])
    path = os.pathsep.join(filter(None, [place, os.environ.get("PYTHONPATH", "")]))
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    # nothing that a launcher said to this process: ranks of a check are threads
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINIGRAD_")}
    return {**kept, **threads, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
