"""The stacks of a process as another one gets them, also while it is held in C: by a signal, and `faulthandler`.

Each process offers a file in memory, or one in the folder of $MINIGRAD_HANG_DIR, and a real-time signal that nobody
else has taken; its handler writes the lines of all threads there, in C. No handler of anybody is replaced: where all
of these signals are taken, nothing is offered.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import re
import signal
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from minigrad.distributed.comm.calls import OURS

FOLDER = "MINIGRAD_HANG_DIR"
_SIGNALS = range(signal.SIGRTMAX - 1, signal.SIGRTMAX - 9, -1)
_CRASHES = signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL
_PATIENCE_S, _POLL_S = 0.5, 0.01
_TAKEN = b"-- another handler has this signal --\n"
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)')


class Offer(NamedTuple):
    """Where a process writes its stacks, and by which signal.

    Attributes:
        process: Its number, and when it was started, in clock ticks since boot.
        signal: 0 where it offers nothing.
        descriptor: Of the file, in that process.
    """

    process: int
    started: int
    signal: int = 0
    descriptor: int = -1


def offer() -> Offer:
    """That of this process."""
    return _offer_of(os.getpid())


@functools.cache
def _offer_of(process: int) -> Offer:
    """Made once for each process: a child of a fork has another."""
    file, ours = _file(process), _ours()
    _kept()[process] = file
    for number in _SIGNALS:
        if number in ours or _is_free(number):
            faulthandler.register(number, file, all_threads=True)
            ours.add(number)
            break
    else:
        return Offer(process, start_time(process))
    if os.environ.get(FOLDER) and not faulthandler.is_enabled():
        if all(_is_free(each) for each in _CRASHES):
            faulthandler.enable(file)  # a crash leaves its stacks there too
    return Offer(process, start_time(process), number, file.fileno())


def keep_offer() -> None:
    """Withdraw the offer of this process where its signal has got another handler since."""
    offered = _offer_of(os.getpid())
    if offered.signal and signal.getsignal(offered.signal) != signal.SIG_DFL:
        _withdraw(offered)


@functools.cache
def _withdraw(offered: Offer) -> None:
    os.write(offered.descriptor, _TAKEN)


def _is_free(number: int) -> bool:
    """Whether a signal has no handler here, of Python or of C, as those of `faulthandler` are."""
    return signal.getsignal(number) == signal.SIG_DFL and not _catches(os.getpid(), number)


@functools.cache
def _ours() -> set[int]:
    """Signals that this process, or the one that it is a fork of, has taken."""
    return set()


@functools.cache
def _kept() -> dict[int, IO[Any]]:
    """Files that have to stay open, by process."""
    return {}


def _file(process: int) -> IO[Any]:
    folder = os.environ.get(FOLDER)
    if folder:
        os.makedirs(folder, exist_ok=True)
        return open(stack_path(folder, process, boot_id()), "wb", buffering=0)
    return open(os.memfd_create("minigrad-stacks"), "wb", buffering=0)


def stack_path(folder: str | Path, process: int, boot: int) -> Path:
    """Where a process writes its stacks, in a folder that hosts may share."""
    return Path(folder, f"{process}-{boot:x}.stack")


@functools.cache
def boot_id() -> int:
    """A number of this host since it was started; 0 where it is not known."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return int(path.read_text().replace("-", "")[:15], 16) if path.exists() else 0


def start_time(process: int) -> int:
    """When a process started, in clock ticks since boot; -1 where it is gone or a zombie.

    Together with its number this names a process for good: numbers are reused.
    """
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


def stacks_of(offered: Offer) -> str:
    """The stacks of another process of this host, as `faulthandler` writes them; empty where they do not come.

    Where the process does not offer them, or has no such handler any more, it is left alone.
    """
    if not offered.signal or start_time(offered.process) != offered.started:
        return ""
    if not _catches(offered.process, offered.signal):
        return ""
    with contextlib.suppress(OSError):
        with open(f"/proc/{offered.process}/fd/{offered.descriptor}", "rb") as file:  # first: it may end soon after
            if _TAKEN in file.read():
                return ""
            before = file.seek(0, os.SEEK_END)
            os.kill(offered.process, offered.signal)
            size, deadline = before, time.monotonic() + _PATIENCE_S
            while time.monotonic() < deadline:
                time.sleep(_POLL_S)
                now = os.fstat(file.fileno()).st_size
                if now == size > before:
                    break
                size = now
            file.seek(before)
            return file.read().decode(errors="replace")
    return ""


def _catches(process: int, number: int) -> bool:
    """Whether a signal has a handler in a process; without one it would end that."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        with open(f"/proc/{process}/status") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    return False


def lines_of(stacks: str, thread: int) -> tuple[str, ...]:
    """The lines of a thread in such a text that are not ours, the innermost first; of the first stack of it.

    Example:
        >>> text = 'Thread 0x0000000000000007 (most recent call first):\\n  File "a.py", line 3 in f\\n'
        >>> lines_of(text, 7)
        ('a.py:3 in f',)
    """
    lines: list[str] = []
    at, seen = -1, set[int]()
    for text in stacks.splitlines():
        head, frame = _THREAD.match(text), _FRAME.match(text)
        if head is not None:
            at = int(head[1], 16)
            at = -1 if at in seen else at
            seen.add(at)
        elif frame is not None and at == thread and not frame[1].startswith(OURS):
            lines.append(f"{frame[1]}:{frame[2]} in {frame[3]}")
    return tuple(lines)
