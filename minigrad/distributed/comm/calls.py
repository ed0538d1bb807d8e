"""The last calls of a rank, each with the line of the user's code that made it.

What is kept while a step runs is as little as can be: the call as its header or envelope has it, and which instruction
of which code made it. All words are made when somebody asks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from minigrad.distributed.comm.protocol import Communicator

KEPT_CALLS = 64  # of a rank
OURS = str(Path(__file__).parents[2]) + os.sep
INSIDE = OURS, contextlib.__file__, threading.__file__  # how the names of files begin that are never those of a user
Kept = tuple[Any, CodeType, int]  # a call, the code that made it, and where in there: `frame.f_lasti`


class Made(NamedTuple):
    """A call that a rank has made.

    Attributes:
        seq: Its number on its communicator; -1 of a message, which has none.
        what: All but the number, in words.
        line: Of the user's code that made it, as "file:line in function"; empty where nobody knows.
        group: The name of the group of ranks that it is of; empty for all.
    """

    seq: int
    what: str
    line: str = ""
    group: str = ""


def user_place() -> tuple[CodeType, int]:
    """The instruction of the user's code that this is called for."""
    frame = sys._getframe(1)
    while (caller := frame.f_back) and frame.f_code.co_filename.startswith(INSIDE):
        frame = caller
    return frame.f_code, frame.f_lasti


def line_of(code: CodeType, at: int) -> str:
    """The line of an instruction, `frame.f_lasti`, as "file:line in function"; empty where it is not a user's."""
    if code.co_filename.startswith(INSIDE):
        return ""
    found = (line for start, end, line in code.co_lines() if start <= at < end and line is not None)
    return f"{code.co_filename}:{next(found, code.co_firstlineno)} in {code.co_name}"


def in_words(kept: Iterable[Kept]) -> list[Made]:
    """Calls with their lines, in the order given."""
    return [
        Made(getattr(call, "seq", -1), getattr(call, "what", None) or str(call), line_of(code, at), call.group)
        for call, code, at in kept
    ]


class Remembering(Communicator):
    """What a `Front` remembers of its calls.

    Attributes:
        calls: The last ones, the latest first.
    """

    calls: deque[Kept]

    def last_calls(self) -> Sequence[str]:
        """The last calls that this rank made, the latest first."""
        return [str(call) for call, _, _ in list(self.calls)]

    def made(self) -> list[Made]:
        """The same, the earliest first, with the lines of the user's code that made them."""
        return list(reversed(in_words(list(self.calls))))
