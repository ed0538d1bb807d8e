"""What a process leaves of its rank in a folder, so that somebody can see why a run hung, or died, when it is over.

Where $MINIGRAD_HANG_DIR names a folder, `init` lets each rank write its last calls and its stack there a few times a
second, as long as they change, and how it ended. `python -m minigrad.distributed.inspect hang DIR` reads it.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from minigrad.backend.thread import new_thread
from minigrad.distributed.comm.dumps import FOLDER, boot_id, offer
from minigrad.distributed.comm.sightings import Sighting
from minigrad.distributed.comm.where import stack_of, users, words_of
from minigrad.errors import DistributedError

_TICK_S = 0.2
RUNNING, CLOSED, RAISED = "running", "closed", "raised"


class Traces:
    """A thread that writes what one rank leaves, for as long as its communicator lasts.

    Args:
        comm: Its communicator.
        folder: Where.
    """

    def __init__(self, comm: Any, folder: str) -> None:
        self._comm, self._path = weakref.ref(comm), Path(folder, f"rank-{comm.rank}.json")
        self._watched, self._written, self._over = threading.get_ident(), "", threading.Event()
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._born = time.time() - since_boot_s + offer().started / os.sysconf("SC_CLK_TCK")
        os.makedirs(folder, exist_ok=True)
        self._thread = new_thread(self._serve, name="traces")
        self._thread.start()

    def end(self, error: BaseException | None = None) -> None:
        """Write how the rank ended: by an error, or well."""
        if not self._over.is_set():
            self._over.set()
            self._thread.join(_TICK_S)
            self._write(RAISED if error is not None else CLOSED, error)

    def _serve(self) -> None:
        while not self._over.wait(_TICK_S):
            if self._comm() is None:
                return
            self._write(RUNNING, None)

    def _write(self, state: str, error: BaseException | None) -> None:
        comm = self._comm()
        if comm is None:
            return
        state = CLOSED if state == RUNNING and comm.failure.is_closed else state
        stack, raised, failed = stack_of(self._watched), "", ""
        if isinstance(error, DistributedError):
            failed = str(error)
        elif error is not None:
            raised = words_of(error)
        seen = Sighting(comm.rank, tuple(comm.made()), "", raised, users(stack), stack)
        told = {"world_size": comm.world_size, "process": list(offer()[:2]), "boot": boot_id(), "thread": self._watched}
        told["born"] = self._born
        text = json.dumps({**told, "state": state, "error": failed, "sighting": seen.plain()})
        if text != self._written:
            self._written = text
            part = self._path.with_suffix(".part")
            part.write_text(text)
            part.replace(self._path)


def leave_traces(comm: Any) -> Traces | None:
    """Let a rank leave them, where there is a folder for it."""
    folder = os.environ.get(FOLDER)
    if not folder or comm.world_size == 1:
        return None
    traces = Traces(comm, folder)
    atexit.register(traces.end)
    return traces
