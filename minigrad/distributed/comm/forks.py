"""A child of a fork inherits what its parent talks to the other ranks with, and must leave it alone.

What would do harm there is told so, in the child and before anything else runs in it: a communicator then refuses
every use, shared memory becomes the child's own, and connections to other ranks are closed, which on the parent's
side they are not.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from multiprocessing.connection import Connection
from typing import Any, Protocol

from minigrad.errors import DistributedError


class Inherited(Protocol):
    """What a child of a fork must not use."""

    def forked(self) -> None:
        """This process is a child of the one that made this."""


_inherited = weakref.WeakSet[Any]()
_closing = threading.RLock()


def tell_children(thing: Inherited) -> None:
    """Let `forked` be called in every child of a fork, as long as the thing lives."""
    _listen()
    _inherited.add(thing)


def close_whole(connection: Connection) -> None:
    """Close what `forked` closes too, with no fork in between.

    A connection closes its descriptor before it forgets the number. A child of a fork between the two would close the
    number once more, and with it what has got it since.
    """
    with _closing:
        connection.close()


@functools.cache
def _listen() -> None:
    os.register_at_fork(before=_closing.acquire, after_in_parent=_closing.release, after_in_child=_tell)


def _tell() -> None:
    _closing.release()
    for thing in list(_inherited):
        thing.forked()
    _inherited.clear()


def never_end(thing: object) -> None:
    """Keep the destructor of an inherited object from running, here or at the end of this process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def in_a_child() -> DistributedError:
    """The error of a rank whose process is not the one that made its communicator."""
    return DistributedError(
        f"expected the process that made the communicator, got process {os.getpid()}, a fork of process "
        f"{os.getppid()}: the child can't stand in for the rank; let it run the model under no_grad() or save it, "
        "or unwrap() the model to train it alone"
    )
