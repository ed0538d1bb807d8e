"""Where ranks are: the lines of the user's own code that they are in, for errors about a rank that does not come.

A thread of each process looks after that, for a rank that is late is busy elsewhere by definition; where even this
thread does not get to run, that is said.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType
from typing import Any

from minigrad.distributed.comm.calls import OURS

_OTHERS = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_TICK_S = 0.1
_PATIENCE_S = 1.0
_POLL_S = 0.01


def user_line(thread: int) -> str:
    """The innermost line of a thread that is neither ours nor a library's, as "file:line in function".

    Where there is none it is the innermost one that is not ours; empty where the thread has ended.
    """
    return users(stack_of(thread))


def stack_of(thread: int) -> tuple[str, ...]:
    """The lines of a thread that are not ours, the innermost first; none where the thread has ended."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OURS):
            frames.append(frame)
        frame = frame.f_back
    while len(frames) > 1 and frames[-1].f_code.co_filename == threading.__file__:
        frames.pop()  # how a thread begins
    return tuple(f"{each.f_code.co_filename}:{each.f_lineno} in {each.f_code.co_name}" for each in frames)


def words_of(error: BaseException) -> str:
    """What was raised, and at which line of the user's code."""
    lines: list[str] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(OURS):
            lines.insert(0, f"{code.co_filename}:{trace.tb_lineno} in {code.co_name}")
        trace = trace.tb_next
    line = users(lines)
    return f"{type(error).__name__}: {error}{f' at {line}' if line else ''}"


def users(lines: Sequence[str]) -> str:
    """The first that is no library's, else the first."""
    return next((line for line in lines if not line.startswith((*_OTHERS, "<frozen"))), lines[0] if lines else "")


def whereabouts(lines: Mapping[int, str], absent: Collection[int]) -> str:
    """What the end of a message says of each rank: where those that are missing are, and where the others wait.

    Args:
        lines: Of each rank; empty where it did not say.
        absent: The ranks that are missing.
    """
    places: dict[str, list[int]] = {}
    for rank in [*absent, *(rank for rank in lines if rank not in absent)]:
        line = lines.get(rank, "")
        seen = "at" if rank in absent else "waiting at"
        places.setdefault(f"{seen} {line}" if line else "it did not say in time where it is", []).append(rank)
    return "".join(f"; rank {', '.join(map(str, ranks))}: {place}" for place, ranks in places.items())


def ask(whether: Callable[[], bool]) -> None:
    """Wait until all have answered, or for a moment."""
    deadline = time.monotonic() + _PATIENCE_S
    while not whether() and time.monotonic() < deadline:
        time.sleep(_POLL_S)


class Watcher:
    """A thread that answers, a few times a second, where the thread that made it is.

    Args:
        owner: It ends with this object, or by `stop`.
        answer: Called with a function that gives the line.

    Attributes:
        thread: Its thread.
    """

    def __init__(self, owner: Any, answer: Callable[[Callable[[], str]], None]) -> None:
        self._over, self._answer, self._watched = threading.Event(), answer, threading.get_ident()
        self.thread = threading.Thread(target=self._serve, name="where", daemon=True)
        self.thread.start()
        weakref.finalize(owner, self._over.set).atexit = False

    def stop(self) -> None:
        """Answer no more."""
        self._over.set()

    def _serve(self) -> None:
        while not self._over.wait(_TICK_S):
            self._answer(lambda: user_line(self._watched))
