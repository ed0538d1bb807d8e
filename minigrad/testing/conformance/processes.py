"""A runner of processes for any wrapper: the environment of torchrun, a hard timeout, and what became of each rank."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from minigrad.distributed.comm.rendezvous import free_port
from minigrad.testing.conformance.outcome import Outcome


class Processes:
    """The `run` of an adapter whose ranks are processes of this host.

    In each process RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set as torchrun sets
    them, and MINIGRAD_AUTHKEY. What a process writes to stderr is kept, and its end told where the process died.

    Args:
        place: A function of a module without arguments: it joins the world, and gives a context manager whose value
            is the `place` that `Adapter.wrap` gets. A `place` needs an attribute `rank`.
        timeout_s: Of a run, from its start. Processes that live then are stopped, all before the first is killed, so
            that none hears of another's end.
        method: How processes are started: "forkserver", "spawn", or "fork".
        preload: Modules that a fork server imports once for all, large ones.

    Example:
        def world():
            torch.distributed.init_process_group("gloo")
            ...
        run = Processes(world, preload=["torch"])
    """

    def __init__(
        self,
        place: Callable[[], AbstractContextManager[Any]],
        timeout_s: float = 30.0,
        method: str = "forkserver",
        preload: Sequence[str] = (),
    ) -> None:
        self.place = place
        self.timeout_s = timeout_s
        self.method = method
        self.preload = tuple(preload)

    def __call__(self, body: Callable[..., Any], world_size: int, *args: Any) -> list[Outcome]:
        """Run body(place, *args) in so many processes; tell of each how its process ended."""
        context: Any = multiprocessing.get_context(self.method)
        if self.method == "forkserver":
            context.set_forkserver_preload(["__main__", *self.preload])
        shared = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}
        shared |= {"MASTER_PORT": str(free_port()), "MINIGRAD_AUTHKEY": secrets.token_hex(16)}
        processes: list[BaseProcess] = []
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            try:
                for rank in range(world_size):
                    log = str(Path(folder) / str(rank))
                    environment = {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                    process = context.Process(target=_child, args=(environment, log, self.place, body, args))
                    process.start()
                    processes.append(process)
                late = _wait(processes, self.timeout_s)
            finally:
                _kill(processes)
            return [_ended(p, p in late, Path(folder) / str(rank)) for rank, p in enumerate(processes)]


def _child(
    environment: dict[str, str],
    log: str,
    place: Callable[[], AbstractContextManager[Any]],
    body: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    """One rank. What body raises was told by body, and is not told again."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    try:
        with place() as here:
            body(here, *args)
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _wait(processes: Sequence[BaseProcess], timeout_s: float) -> list[BaseProcess]:
    """Wait for all to end; return those that have not."""
    end = time.monotonic() + timeout_s
    late = list(processes)
    while late and (left := end - time.monotonic()) > 0:
        wait([process.sentinel for process in late], left)
        late = [process for process in late if process.is_alive()]
    return late


def _kill(processes: Sequence[BaseProcess]) -> None:
    """End what still lives. A stopped process sees nothing of what happens to the others."""
    living = [process for process in processes if process.is_alive()]
    for signal_number in (signal.SIGSTOP, signal.SIGKILL):
        for process in living:
            with suppress(ProcessLookupError):
                os.kill(int(process.pid or 0), signal_number)
    for process in living:
        process.join()


def _ended(process: BaseProcess, late: bool, log: Path) -> Outcome:
    if late:
        return Outcome("out of time")
    code = process.exitcode or 0
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return Outcome("died", message=f"{how}; its last words: {lines[-1].strip()}" if lines else how)
