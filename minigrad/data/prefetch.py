"""Running an iterator in a context of its own, and ahead of its consumer in a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, TypeVar

from minigrad.backend.thread import new_thread
from minigrad.errors import ArgumentError

T = TypeVar("T")
_END = object()


def in_own_context(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield the items of an iterator that runs in a copy of the context: what it sets there stays there."""
    context = copy_context()
    while (item := context.run(next, items, _END)) is not _END:
        yield item  # type: ignore[misc]


def ahead(items: Iterator[T], depth: int) -> Generator[T, None, None]:
    """Yield the items of an iterator that runs in a thread, in a copy of the context, up to `depth` items ahead.

    An exception in the iterator is raised here, with its traceback, in the place of the item that failed. When this
    generator ends, is closed or is dropped, the thread ends first.

    Args:
        depth: Items made before they are asked for, >= 1.
    """
    producer = _Producer(items, depth)
    try:
        while (item := producer.take()) is not _END:
            yield item
    finally:
        producer.close()


class _Failure:
    """An exception on its way from the producer to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Producer:
    """A thread and two queues: finished items go out on one, permissions to make another come in on the other.

    Neither side waits with a timeout: the producer always ends its stream with _END or a _Failure, and closing gives it
    a last permission that it must not use.
    """

    def __init__(self, items: Iterator[Any], depth: int) -> None:
        self.items, self.closed = items, False
        self.finished: SimpleQueue[Any] = SimpleQueue()
        self.permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(depth):
            self.permits.put(None)
        self.thread = new_thread(self._run, name="minigrad-prefetch")
        self.thread.start()

    def _run(self) -> None:
        try:
            while self._permitted() and (item := next(self.items, _END)) is not _END:
                self.finished.put(item)
            self.finished.put(_END)
        except BaseException as error:
            self.finished.put(_Failure(error))

    def _permitted(self) -> bool:
        self.permits.get()
        return not self.closed

    def take(self) -> Any:
        """The next item, or _END.

        Raises:
            ArgumentError: in a child of a fork, which does not have the thread, once what was finished is taken.
        """
        if not self.thread.is_alive() and self.finished.empty():
            raise ArgumentError(
                "DataLoader: expected the process that began this epoch, got a fork of it: begin another one there"
            )
        item = self.finished.get()
        if isinstance(item, _Failure):
            try:
                raise item.error
            finally:
                del item  # or the error would hold, by way of its traceback, itself
        self.permits.put(None)
        return item

    def close(self) -> None:
        """End the thread; one item that it is just making is finished and thrown away."""
        self.closed = True
        self.permits.put(None)
        if self.thread is not threading.current_thread():  # where the garbage collector runs in the producer
            self.thread.join()
