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
from minigrad.distributed.comm.turns import hand_over
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
    with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
        stay_for = world_size if stay else 0
        said = _Said(lambda: adapter.run(recorded, world_size, folder, stay_for, body, adapter, *args))
        said.wait(float(getattr(adapter, "timeout_s", TIMEOUT_S)))
        found = [_outcome(rank, _read(Path(folder) / str(rank)), said) for rank in range(world_size)]
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


def recorded(place: Any, folder: str, stay_for: int, body: Callable[..., Any], *args: Any) -> None:
    """What each rank runs: body(place, *args), which it writes down; then it waits for the end of so many ranks."""
    path = Path(folder) / str(place.rank)
    _write(path, os.getpid())
    try:
        value = body(place, *args)
        while inspect.isgenerator(value):
            try:
                _write(path, (next(value),))
            except StopIteration as end:
                value = end.value
        _write(path, Outcome("value", value))
    except BaseException as error:
        _write(path, raised(error))
        raise
    finally:
        _write(path.with_suffix(ENDED), True)
    while Path(folder).exists() and not all((Path(folder) / f"{rank}{ENDED}").exists() for rank in range(stay_for)):
        hand_over()  # where ranks take turns
        time.sleep(POLL_S)


def raised(error: BaseException) -> Outcome:
    """The outcome of a rank that raised this."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    kind = "NotImplementedError" if isinstance(error, NotImplementedError) else type(error).__name__
    words = "\n".join([str(error), *getattr(error, "__notes__", [])])
    return Outcome("raised", error=kind, message=words, frame=frame)


def _write(path: Path, what: Any) -> None:
    written = pickle.dumps(what)
    try:
        with open(path, "ab") as file:
            file.write(written)
    except FileNotFoundError:  # the run is over, and this thread has outlived it
        pass


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


def _read(path: Path) -> list[Any]:
    found: list[Any] = []
    if path.exists():
        with open(path, "rb") as file:
            try:
                while True:
                    found.append(pickle.load(file))
            except (EOFError, pickle.UnpicklingError):  # its end, or half of what a process wrote that was killed
                pass
    return found
