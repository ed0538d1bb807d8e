"""BesideTraining: one thing at a time that runs in a thread while training goes on, such as writing a checkpoint."""

from __future__ import annotations

import threading
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from minigrad.backend.thread import new_thread


class _Job:
    """Of itself it refers to nothing that may be large, once it is over."""

    thread: threading.Thread | None = None
    error: BaseException | None = None

    def run(self, do: Callable[..., object], *args: Any) -> None:
        try:
            do(*args)
        except BaseException as error:
            self.error = error
            del do, args
            _forget_frames(error)


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


class BesideTraining:
    """One thing at a time in a thread of its own; what it raises is raised by the next `finish`.

    A process that ends waits for it. An error that nobody has heard of by then, or when this is given up, is warned of.
    """

    def __init__(self) -> None:
        self._job = _Job()
        weakref.finalize(self, _tell, self._job)

    def start(self, name: str, do: Callable[..., object], *args: Any) -> None:
        """Call do(*args) in a thread of this name, once what was started before is over; its error is raised here."""
        self.finish()
        self._job.thread = new_thread(self._job.run, do, *args, name=name)
        self._job.thread.start()

    def finish(self) -> None:
        """Wait for what was started last, and raise what it has raised; once."""
        self.wait()
        error, self._job.error = self._job.error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Wait for what was started last; its error is still to be heard of."""
        _wait(self._job)

    def tell(self) -> None:
        """Warn of an error that nobody has heard of."""
        _tell(self._job)


def _wait(job: _Job) -> None:
    thread, job.thread = job.thread, None
    if thread is not None and thread is not threading.current_thread():  # which it is where it was the last to know us
        thread.join()


def _tell(job: _Job) -> None:
    _wait(job)
    error, job.error = job.error, None
    if error is not None:
        warnings.warn(
            f"Checkpoint: expected the last one to be written, got {type(error).__name__}: {error}: the one before "
            "it is whole; join() and close() raise this",
            RuntimeWarning,
            stacklevel=3,
        )
