"""What code gives the device to do: pieces of work, by name and by place; views, which cost nothing there."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np


class Work:
    """Counts of what the device was given.

    Attributes:
        pieces: Array functions, products, copies and kernels, by name; a graph that is launched is one piece.
        places: The same, by the file and function of the framework that asked.
        views: Results that share the memory of an argument.
        uploads: Arrays that went from the host to the device.
        waits: Times that the host waited.
        nbytes: Read and written by the pieces, each array once a piece.
    """

    def __init__(self) -> None:
        self.pieces, self.places = Counter[str](), Counter[str]()
        self.views = self.uploads = self.waits = self.nbytes = 0

    @property
    def total(self) -> int:
        """Pieces of work in all."""
        return sum(self.pieces.values())

    def note(self, who: str, arguments: list[Any], result: Any, out: Any) -> None:
        """Count a call, of which `arguments` and `result` are the plain memory."""
        arrays = [part for part in _flat(arguments) if isinstance(part, np.ndarray)]
        made = [part for part in _flat([result]) if isinstance(part, (np.ndarray, np.generic))]
        if who in _OF_THE_HOST:
            return
        if who == "upload":
            self.uploads += 1
        elif out is None and made and all(any(_shares(part, array) for array in arrays) for part in made):
            self.views += 1
        elif sum(part.size for part in made or arrays):
            self.add(who, sum(part.nbytes for part in {id(part): part for part in [*arrays, *made]}.values()))

    def add(self, who: str, nbytes: int = 0) -> None:
        """Count one piece."""
        self.pieces[who] += 1
        self.places[_place()] += 1
        self.nbytes += nbytes


_OF_THE_HOST = frozenset({"may_share_memory", "shares_memory"})


def _flat(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        found += _flat(value) if isinstance(value, (list, tuple)) else [value]
    return found


def _shares(part: Any, array: Any) -> bool:
    return part is array or (isinstance(part, np.ndarray) and np.may_share_memory(part, array))


def _place() -> str:
    """The innermost function of the framework that is being run."""
    frame: Any = sys._getframe(1)
    while frame is not None and "/minigrad/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is None:
        return "elsewhere"
    return f"{frame.f_code.co_filename.rpartition('/minigrad/')[2]}:{frame.f_code.co_name}"


_open: list[Work] = []


@contextlib.contextmanager
def counted() -> Iterator[Work]:
    """Count what devices are given inside the block, by every thread."""
    from tests.strict_cupy.device import syncs

    work, waits = Work(), syncs.count
    _open.append(work)
    try:
        yield work
    finally:
        _open.remove(work)
        work.waits = syncs.count - waits


def note(who: str, arguments: list[Any], result: Any, out: Any) -> None:
    """Tell every open count of a call."""
    for work in _open:
        work.note(who, arguments, result, out)


def add(who: str, nbytes: int = 0) -> None:
    """Tell every open count of one piece."""
    for work in _open:
        work.add(who, nbytes)
