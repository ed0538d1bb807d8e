"""What became of each rank of a run: told by the rank itself, so that no runner has to be believed, nor a hang.

Each rank writes down what it returns or raises before the adapter's runner hears of it. What a runner returns or raises
is then of no matter; a rank that wrote nothing is out of time, or died.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn
from unittest import SkipTest

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.turns import let_others_on
from minigrad.testing.conformance.adapter import Adapter

TIMEOUT_S = 60.0  # of a run, where the adapter has no `timeout_s`
POLL_S = 0.002  # between two looks at who has ended
ENDED = ".ended"
Kind = Literal["value", "raised", "out of time", "died"]


class NotOfferedError(NotImplementedError, SkipTest):
    """The wrapper does not have what a check is about. pytest and unittest count the test as skipped, and say why."""


class VerdictError(AssertionError):
    """A check was not passed.

    Args:
        verdict: "fails", "out of time", "died", or "not judged": the steps without the fault went wrong already.
    """

    def __init__(self, verdict: str, message: str) -> None:
        super().__init__(message)
        self.verdict = verdict


@dataclass(frozen=True)
class Outcome:
    """What became of a rank.

    Attributes:
        kind: "value": body returned; "raised"; "out of time": it had done neither when the run was over; "died": its
            process ended without either.
        value: What body returned.
        error, message, frame: Type, words (with the notes) and innermost frame of what was raised; or why it died.
        steps: What body yielded before. What is yielded first comes from the steps without the fault, the control.
        rank: Whose it is.
    """

    kind: Kind
    value: Any = None
    error: str = ""
    message: str = ""
    frame: str = ""
    steps: tuple[Any, ...] = ()
    rank: int = 0

    def __str__(self) -> str:
        if self.kind == "value":
            what = f" {self.value}"
        elif self.kind == "raised":
            what = f" {self.error}: {self.message} ({self.frame})"
        else:
            what = f": {self.message}" if self.message else ""
        return f"rank {self.rank}: {self.kind}{what}"


def outcomes(
    adapter: Adapter, body: Callable[..., Any], world_size: int, *args: Any, stay: bool = False
) -> list[Outcome]:
    """Run body(place, adapter, *args) on each rank by the adapter, and tell what became of each.

    Args:
        body: A function of a module; or a generator function, whose yields are the `steps`.
        stay: Whether a rank that has returned stays until all have come to an end, as where a script goes on; else it
            ends, and what waits for it may hear of that. One that raises ends in any case.

    Raises:
        NotOfferedError: a rank raised NotImplementedError, or `adapter.run` did.
    """
    with _Board() as board:
        stay_for = world_size if stay else 0
        said = _Said(lambda: adapter.run(recorded, world_size, board, stay_for, body, adapter, *args))
        said.wait(float(getattr(adapter, "timeout_s", TIMEOUT_S)))
        found = [_outcome(rank, board.read(str(rank)), said) for rank in range(world_size)]
    for one in found:
        if one.error == "NotImplementedError":
            raise NotOfferedError(str(one))
    return found


def told(found: Sequence[Outcome]) -> str:
    """What became of each rank, in one line."""
    return "; ".join(map(str, found))


def fail(verdict: str, message: str) -> NoReturn:
    """Give a verdict.

    Raises:
        VerdictError: always.
    """
    raise VerdictError(verdict, message)


# ------------------------------------------------------------------------------------------------ on a rank


class _Board:
    """Where ranks write down what becomes of them, each under its name: in memory in this process, else in a folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True)
        self._path, self._process, self._is_over = Path(self._folder.name), os.getpid(), False
        self._here: dict[str, list[bytes]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_process": 0}  # of no process: its copies write into the folder

    def __enter__(self) -> _Board:
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        self._folder.cleanup()

    def write(self, name: str, what: Any, *, for_all: bool = False) -> None:
        """Add something, which ranks in other processes are to see where it is for all."""
        written, is_here = pickle.dumps(what), self._process == os.getpid()
        if is_here:
            self._here.setdefault(name, []).append(written)
        if for_all or not is_here:
            try:
                with open(self._path / name, "ab") as file:
                    file.write(written)
            except FileNotFoundError:  # the run is over, and this thread has outlived it
                pass

    def read(self, name: str) -> list[Any]:
        """What was written under a name."""
        found = [pickle.loads(written) for written in self._here.get(name, ())]
        if not found and (self._path / name).exists():
            with open(self._path / name, "rb") as file:
                try:
                    while True:
                        found.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):  # its end, or half of what a process wrote that was killed
                    pass
        return found

    def have_ended(self, ranks: int) -> bool:
        """Whether so many ranks have, or nobody waits to hear of it."""
        names = [f"{rank}{ENDED}" for rank in range(ranks)]
        if self._process != os.getpid():
            return not self._path.exists() or all((self._path / name).exists() for name in names)
        return self._is_over or all(name in self._here or (self._path / name).exists() for name in names)


def recorded(place: Any, board: _Board, stay_for: int, body: Callable[..., Any], *args: Any) -> None:
    """What each rank runs: body(place, *args), which it writes down; then it waits for the end of so many ranks."""
    name = str(place.rank)
    board.write(name, os.getpid())
    try:
        value = body(place, *args)
        while inspect.isgenerator(value):
            try:
                board.write(name, (next(value),))
            except StopIteration as end:
                value = end.value
        board.write(name, Outcome("value", value))
    except BaseException as error:
        board.write(name, raised(error))
        raise
    finally:
        if stay_for:
            board.write(name + ENDED, True, for_all=True)
    while not board.have_ended(stay_for):
        if not let_others_on(lambda: board.have_ended(stay_for)):
            time.sleep(POLL_S)


def raised(error: BaseException) -> Outcome:
    """The outcome of a rank that raised this."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    kind = "NotImplementedError" if isinstance(error, NotImplementedError) else type(error).__name__
    words = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return Outcome("raised", error=kind, message=words, frame=frame)


# ---------------------------------------------------------------------------------------- where it was started


class _Said:
    """What a call returned or raised; it runs in a thread, which is left to itself when the time is over."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.returned: Any = None
        self.error: BaseException | None = None
        self._call = call
        self._thread = new_thread(self._body)
        self._thread.start()

    def _body(self) -> None:
        try:
            self.returned = self._call()
        except BaseException as error:
            self.error = error

    def wait(self, timeout_s: float) -> None:
        """Wait for it no longer than this."""
        self._thread.join(timeout_s)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()


def _outcome(rank: int, written: list[Any], said: _Said) -> Outcome:
    """What a rank wrote down, else what the runner says of it, else what follows from how the run ended."""
    steps = tuple(one[0] for one in written if isinstance(one, tuple))
    answers = said.returned if isinstance(said.returned, list) else []
    if written and isinstance(written[-1], Outcome):
        end = written[-1]
    elif rank < len(answers) and isinstance(answers[rank], Outcome):
        end = answers[rank]
    elif said.running or isinstance(said.error, TimeoutError) or (written and _lives(written[0])):
        end = Outcome("out of time")
    elif said.error is not None and not written:
        end = raised(said.error)
    else:
        end = Outcome("died", message=f"the runner: {said.error!r}" if said.error else "")
    return replace(end, rank=rank, steps=steps)


def _lives(process: int) -> bool:
    return process == os.getpid() or process in {child.pid for child in multiprocessing.active_children()}
