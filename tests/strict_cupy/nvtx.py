"""cupy.cuda.nvtx: keeps the ranges of each thread, and refuses to end one that has not begun."""

from __future__ import annotations

import threading

from tests.strict_cupy.errors import StrictError

available = True
_thread = threading.local()


def RangePush(message: str, id_color: int = -1) -> int:  # noqa: N802
    """A range begins, inside of those that are open."""
    told().append((len(_open()), message))
    _open().append(message)
    return len(_open()) - 1


def RangePop() -> int:  # noqa: N802
    """The innermost range ends."""
    if not _open():
        raise StrictError("RangePop: expected a range that has begun, got none")
    _open().pop()
    return len(_open())


def told() -> list[tuple[int, str]]:
    """The ranges of this thread so far, in the order in which they began: in how many others, and the name.

    A test takes them by `forget`.
    """
    if not hasattr(_thread, "told"):
        _thread.told = []
    found: list[tuple[int, str]] = _thread.told
    return found


def _open() -> list[str]:
    if not hasattr(_thread, "open"):
        _thread.open = []
    found: list[str] = _thread.open
    return found


def forget() -> list[tuple[int, str]]:
    """Those so far, of which none is open; begin anew."""
    if _open():
        raise StrictError(f"forget: expected ranges that have ended, got {_open()}")
    found = list(told())
    told().clear()
    return found
