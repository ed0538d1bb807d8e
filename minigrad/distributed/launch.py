"""Start a script as N ranks on this host: `python -m minigrad.distributed.launch -n 4 script.py --its --arguments`.

Every rank gets MINIGRAD_RANK, MINIGRAD_WORLD_SIZE and their local twins, the same four without the prefix for scripts
that read them as torchrun sets them, MASTER_ADDR, MASTER_PORT and a fresh MINIGRAD_AUTHKEY, and its share of the cores
as BLAS threads. Lines of output are prefixed with the rank. When a rank fails, the others are ended and the last lines
that it wrote to stderr are shown again; no child is left behind.

With --keep-memory each rank keeps freed memory, as `minigrad.keep_freed_memory()` does.
With --on-failure shrink the others are not ended, but told of it, by the lifeline that each can ask for. The exit
status is 0 then where any rank ended well, else that of the first that failed.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import math
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import IO, TextIO

from minigrad.arguments import check_choice, check_switch
from minigrad.backend.memory import can_keep_freed_memory, environment_that_keeps_memory
from minigrad.backend.thread import new_thread
from minigrad.distributed.bootstrap import BLAS_THREADS
from minigrad.distributed.comm.checks import default_timeout_s
from minigrad.distributed.comm.rendezvous import free_port
from minigrad.distributed.comm.shm.segment import remove_segments_of
from minigrad.distributed.living.line import DESCRIPTOR, ON_FAILURE
from minigrad.distributed.living.switchboard import Switchboard
from minigrad.errors import ArgumentError

_GRACE_S = 5.0
_CAUSE_S = 1.0
_POLL_S = 0.02
_TAIL_LINES = 60
_PR_SET_PDEATHSIG = 1


class Rank:
    """One started process, and the threads that pass its output on."""

    def __init__(self, rank: int, command: list[str], environment: dict[str, str], descriptor: int) -> None:
        self.rank = rank
        self.tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=_die_with_parent,
            pass_fds=(descriptor,),
        )
        self.ended_at = math.inf
        self._is_cleared = False
        self._threads: list[threading.Thread] = []

    def watch(self) -> None:
        """Start to pass output on and to wait for the end; after all were started: a fork must not meet a thread."""
        streams = ((self.process.stdout, sys.stdout, None), (self.process.stderr, sys.stderr, self.tail))
        for source, target, tail in streams:
            self._start(_pass_on, source, target, f"[{self.rank}] ", tail)
        self._start(self._note_end, list(self._threads))

    def _start(self, body: Callable[..., None], *arguments: object) -> None:
        thread = new_thread(body, *arguments)
        thread.start()
        self._threads.append(thread)

    def _note_end(self, outputs: list[threading.Thread]) -> None:
        self.process.wait()
        ended_at = time.monotonic()
        for thread in outputs:
            thread.join(_CAUSE_S)  # what it wrote last is to be known as soon as its end is
        self.ended_at = ended_at

    def failed(self) -> bool:
        """Whether it has ended, and not well."""
        return self.ended_at < math.inf and self.process.returncode != 0

    def ended_well(self) -> bool:
        """Whether it has ended with status 0."""
        return self.ended_at < math.inf and self.process.returncode == 0

    def how_it_ended(self, with_error: bool = True) -> str:
        """In words, with the last line that it wrote to stderr where it exited with an error."""
        code = self.process.returncode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        last = next((line.strip() for line in reversed(self.tail) if line.strip()), "") if code > 0 else ""
        return f"{how}: {last}" if last and with_error else how

    def clear_away(self) -> None:
        """End what the process has started and left, and remove what it could not, now that it is gone; once."""
        if not self._is_cleared:
            self._is_cleared = True
            self.signal(signal.SIGKILL)
            remove_segments_of(self.process.pid)

    def follows(self) -> bool:
        """Whether it says that it failed only because another rank did."""
        return any(line.startswith("minigrad.errors.RankFailedError:") for line in self.tail)

    def signal(self, number: int) -> None:
        """Send a signal to the process and everything that it started."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass

    def finish(self) -> None:
        """Wait until all output was passed on; nothing of the rank's process group is left."""
        self.process.wait()
        self.clear_away()
        for thread in self._threads:
            thread.join(_GRACE_S)


def _die_with_parent() -> None:
    """In the child: end when the launcher is killed, even where it has no time to end its children."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _pass_on(source: IO[str], target: TextIO | None, prefix: str, tail: collections.deque[str] | None) -> None:
    """Read to the end, whoever listens: a rank whose output nobody takes would stand still."""
    for line in source:
        text = line if line.endswith("\n") else line + "\n"
        if tail is not None:
            tail.append(text)
        try:
            _write(target, prefix + text)
        except OSError:  # a reader that is gone, such as `head`
            target = None


def _write(target: TextIO | None, text: str) -> None:
    """Write a line where there is something to write to, in what its encoding knows."""
    if target is not None:
        encoding = target.encoding or "utf-8"
        target.write(text.encode(encoding, "backslashreplace").decode(encoding))
        target.flush()


def environment_of(rank: int, world_size: int, port: int, key: str, base: dict[str, str]) -> dict[str, str]:
    """The environment of a rank: what `distributed.init` reads, and its share of the cores."""
    threads = str(max(1, (os.cpu_count() or 1) // world_size))
    me, all_of_us = str(rank), str(world_size)
    seat = {"RANK": me, "WORLD_SIZE": all_of_us, "LOCAL_RANK": me, "LOCAL_WORLD_SIZE": all_of_us}
    return {
        **{name: threads for name in BLAS_THREADS},
        **base,
        **{f"{prefix}{name}": value for prefix in ("MINIGRAD_", "") for name, value in seat.items()},  # torchrun's too
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "MINIGRAD_AUTHKEY": key,
        "PYTHONUNBUFFERED": "1",
    }


def launch(command: Sequence[str], world_size: int, on_failure: str = "stop", keep_memory: bool = False) -> int:
    """Run a command as world_size ranks.

    Args:
        on_failure: "stop" ends all ranks when one fails; "shrink" lets the others go on.
        keep_memory: Let every rank keep freed memory, as `minigrad.keep_freed_memory` does.

    Returns:
        The exit status of the first that failed, else 0; with "shrink" 0 where any rank ended well.

    Raises:
        ArgumentError: keep_memory where the C library is not glibc.
    """
    check_choice("launch", ("stop", "shrink"), on_failure=on_failure)
    check_switch("launch", keep_memory=keep_memory)
    if keep_memory and not can_keep_freed_memory():
        raise ArgumentError("launch: expected keep_memory where the C library is glibc, got another")
    port, key = free_port(), secrets.token_hex(16)
    ranks: list[Rank] = []
    interrupted: list[int] = []
    board = Switchboard(world_size, lambda rank: ranks[rank].signal(signal.SIGKILL))

    def forward(number: int, frame: FrameType | None) -> None:
        interrupted.append(number)
        for rank in ranks:
            rank.signal(number)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for rank in range(world_size):
            descriptor = board.descriptor_for(rank)
            base = {**os.environ, DESCRIPTOR: str(descriptor), ON_FAILURE: on_failure}
            base |= environment_that_keeps_memory() if keep_memory else {}
            environment = environment_of(rank, world_size, port, key, base)
            ranks.append(Rank(rank, list(command), environment, descriptor))
        for started in ranks:
            started.watch()
        board.start()
        failed = _Watch(ranks, board, interrupted, on_failure).wait()
    finally:
        _end(ranks)
        board.close()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if failed is not None:
        return _report(failed)
    return 128 + interrupted[0] if interrupted else 0


class _Watch:
    """Waits for ranks to end, and tells the others.

    Args:
        interrupted: The signals that the launcher has got.
    """

    def __init__(self, ranks: list[Rank], board: Switchboard, interrupted: list[int], on_failure: str) -> None:
        self._ranks, self._board, self._interrupted, self._shrinks = ranks, board, interrupted, on_failure == "shrink"
        self._told: set[int] = set()
        self._patience_s, self._deadline, self._latest = default_timeout_s(None), math.inf, math.inf

    def wait(self) -> Rank | None:
        """Wait until all ranks have ended, or those that still run are to be ended: the first that failed of itself.

        A rank may hear of another's failure, and end of it, sooner than that other process is gone.
        """
        while any(rank.ended_at == math.inf for rank in self._ranks) and not self._is_enough():
            time.sleep(_POLL_S)
            self._tell_deaths()
        failed = [rank for rank in self._ranks if rank.failed() and not self._interrupted]
        if self._shrinks and any(rank.ended_well() for rank in self._ranks):
            return None
        return min(failed, key=lambda rank: (rank.follows(), rank.ended_at), default=None)

    def _tell_deaths(self) -> None:
        for rank in self._ranks:
            if rank.process.returncode not in (None, 0):
                rank.clear_away()
            if rank.ended_at < math.inf and rank.rank not in self._told:
                self._told.add(rank.rank)
                how = rank.how_it_ended()
                self._board.tell_death(rank.rank, how)
                if self._shrinks and rank.failed():
                    _write(sys.stderr, f"launch: rank {rank.rank} {how}; the others go on\n")

    def _is_enough(self) -> bool:
        """Whether a rank has failed, or the launcher was interrupted, and nobody is left who ends by itself of that."""
        now, failed = time.monotonic(), [rank for rank in self._ranks if rank.failed()]
        if self._shrinks and not self._interrupted or not failed and not self._interrupted:
            return False
        self._deadline, self._latest = min(self._deadline, now + _CAUSE_S), min(self._latest, now + self._patience_s)
        if self._interrupted == [signal.SIGINT] and now < self._latest:
            return False  # a run ends behind its step, and may write a checkpoint; a second Ctrl-C does not wait for it
        told = any(rank.ended_at == math.inf and rank.rank in self._board.opened for rank in self._ranks)
        if told and now < self._latest and not self._interrupted:
            return False
        return bool(self._interrupted) or any(not rank.follows() for rank in failed) or now > self._deadline


def _end(ranks: list[Rank]) -> None:
    """End what still runs: politely at first, then not."""
    deadline = time.monotonic() + _GRACE_S
    for rank in ranks:
        if rank.process.poll() is None:
            rank.signal(signal.SIGTERM)
    for rank in ranks:
        try:
            rank.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.signal(signal.SIGKILL)
        rank.finish()


def _report(failed: Rank) -> int:
    code = failed.process.returncode
    text = f"launch: rank {failed.rank} failed first: it {failed.how_it_ended(with_error=False)}\n"
    if failed.tail:
        text += f"launch: the last that rank {failed.rank} wrote to stderr:\n"
    _write(sys.stderr, text + "".join("  " + line for line in failed.tail))
    return 128 - code if code < 0 else code


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m minigrad.distributed.launch", description=__doc__)
    parser.add_argument("-n", "--nproc-per-node", "--nproc_per_node", type=int, required=True, help="number of ranks")
    parser.add_argument(
        "--on-failure", choices=["stop", "shrink"], default="stop", help="whether the others go on when a rank fails"
    )
    parser.add_argument("--keep-memory", action="store_true", help="let ranks keep freed memory for their next step")
    parser.add_argument("-m", "--module", action="store_true", help="script is the name of a module")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    if options.nproc_per_node < 1:
        parser.error(f"argument -n: expected at least 1 rank, got {options.nproc_per_node}")
    command = [sys.executable, *(["-m"] if options.module else []), options.script, *options.arguments]
    try:
        return launch(command, options.nproc_per_node, options.on_failure, options.keep_memory)
    except ArgumentError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(main())
