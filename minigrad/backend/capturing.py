"""What a step does while it is captured as a CUDA graph: nothing of it runs yet, and much of it must not be done.

A graph repeats work of the device, with the same numbers and the same memory. What changes from step to step has to lie
in device memory; what the host keeps of it has to be done in each replay too. Whoever keeps such a thing asks
`current_capture()` while it works, and adds to its lists what is to be done. What can't be repeated is refused by
`refuse_in_capture`. Where nothing is captured both cost one look at a context variable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from minigrad.errors import CaptureError

_HERE = str(Path(__file__).parent)
_OURS = str(Path(__file__).parents[1])

Part = TypeVar("Part")


class Capture:
    """A step that is being captured: what its replays have to do, as those add it who take part.

    Args:
        device: Its GPU.
        began: A number of the tape's: what was recorded before has a lower one.

    Attributes:
        is_open: Whether it is still captured.
        checks: Before a replay: each raises where that would not be the step as it would be done now.
        counts: Then, on the host, in this order: what the step has done there when it was captured.
        writes: Then, and before the first launch: each writes to device memory what the graph reads there, if it is
            not there already.
        ends: When the step is over, still captured.
        launched: After each launch.
        dropped: The ids of the leaves whose gradients it has set to None, or to zeros.
        users: Whoever must not end before the graph does: each is told how to end that.
    """

    def __init__(self, device: Any, began: int) -> None:
        self.device, self.began, self.is_open = device, began, True
        self.checks, self.counts = list[Callable[[], object]](), list[Callable[[], object]]()
        self.writes = list[Callable[[], object]]()
        self.ends, self.launched = list[Callable[[], object]](), list[Callable[[], object]]()
        self.dropped = set[int]()
        self.users = list[Callable[[Callable[[], None]], None]]()
        self._parts: dict[Any, Any] = {}

    def part(self, key: Any, make: Callable[[], Part]) -> Part:
        """What was made for a key at the first call, and kept."""
        if key not in self._parts:
            self._parts[key] = make()
        return self._parts[key]  # type: ignore[no-any-return]


_current: ContextVar[Capture | None] = ContextVar("minigrad_capture", default=None)


def current_capture() -> Capture | None:
    """The step that is captured in this context; None where none is."""
    capture = _current.get()
    return capture if capture is not None and capture.is_open else None


def each_replay(count: Callable[[], object]) -> None:
    """Where a step is captured, do this in each of its replays; else nothing."""
    capture = current_capture()
    if capture is not None:
        capture.counts.append(count)


def stays_in_replays(who: str, options: Callable[[], Mapping[str, object]]) -> None:
    """Where a step is captured, refuse its replays once options read otherwise that its graph has as numbers."""
    capture = current_capture()
    if capture is not None:
        kept = dict(options())

        def check() -> None:
            for name, value in options().items():
                if value != kept[name]:
                    raise CaptureError(
                        f"{who}: expected {name} as it was when a step was captured, got {value!r} in place of "
                        f"{kept[name]!r}: capture it again"
                    )

        capture.checks.append(check)


def refuse_in_capture(who: str, got: str, advice: str = "") -> None:
    """Refuse, where a step is captured, what a graph can't repeat; elsewhere nothing.

    Args:
        who: What does it; empty for the innermost public function of ours that is called.
        got: What it does, in words.
        advice: What to do instead.

    Raises:
        CaptureError: it names `who`, and the line of the user's that came to it.
    """
    if current_capture() is not None:
        found, line = _who_and_where()
        raise CaptureError(
            f"{who or found}: expected a captured step to do what a graph can repeat, got {got}{line}"
            f"{': ' if advice else ''}{advice}"
        )


def _who_and_where() -> tuple[str, str]:
    """The innermost public function of ours outside of this folder, and the line of the user's that called it."""
    frame, who = sys._getframe(2), ""
    while frame.f_code.co_filename.startswith(_OURS):
        code = frame.f_code
        if not who and not code.co_filename.startswith(_HERE) and not code.co_name.startswith(("_", "<")):
            who = code.co_name
        if frame.f_back is None:
            return who or "captured step", ""
        frame = frame.f_back
    return who or "captured step", f" in line {frame.f_lineno} of {Path(frame.f_code.co_filename).name}"
