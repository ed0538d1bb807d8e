"""cupy.cuda.Stream and Event. As a rule work runs at once; on a `Machine` it runs late, and out of order.

A stream can also be captured as a graph: what it is given then is kept, and runs when the graph is launched. What CUDA
or CuPy refuse meanwhile is refused here: see `refuse_while_capturing` and who calls it.

A machine holds back what streams are given, until somebody waits for it. Then it runs in an order drawn from a seed,
any that the streams and the edges between them allow. So an edge that is missing shows as a wrong result.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.strict_cupy.errors import CaptureError, StrictError
from tests.strict_cupy.work import add, note

_thread = threading.local()
_addresses = itertools.count(4096)
_null: dict[int, Stream] = {}
_machine: Machine | None = None
_events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()
failures: list[int] = []  # codes of errors that the device has met, which stay: a test adds one and removes it


class Item:
    """One piece of work: what it does, and what has to be done before."""

    __slots__ = ("work", "after", "stream", "at", "capture")

    def __init__(self, work: Callable[[], None], after: list[Item], stream: Stream) -> None:
        self.work, self.after, self.stream = work, after, stream
        self.at: float | None = None  # when it ran, on the machine's clock
        self.capture = stream.capture  # in which it was kept; None where it is to run


class Capture:
    """What streams are given while one of them is captured, in order; begun in one thread.

    Attributes:
        pool: Of the memory that may be taken meanwhile; None where nobody set one.
    """

    def __init__(self, origin: Stream) -> None:
        self.origin, self.items, self.streams = origin, list[Item](), list[tuple[Stream, Item | None]]()
        self.take(origin)
        self.thread, self.pool = threading.get_ident(), allocator()

    def take(self, stream: Stream) -> None:
        """From now on a stream is captured too; what it was given before is still before what it is given later."""
        stream.capture = self
        self.streams.append((stream, stream.tail))

    def end(self) -> Graph:
        """The graph of it; the work of every stream must come before the end of the one that was captured."""
        joined = set[int]()
        stack = [item for item in (self.origin.tail,) if item is not None and item.capture is self]
        while stack:
            item = stack.pop()
            if id(item) not in joined:
                joined.add(id(item))
                stack += item.after
        for stream, tail in self.streams:
            stream.capture, stream.tail = None, tail
        if any(id(item) not in joined for item in self.items):
            raise CaptureError("end_capture: cudaErrorStreamCaptureUnjoined: expected an edge from each stream back")
        return Graph(self.items)


class Graph:
    """cupy.cuda.Graph: work that can be launched again and again."""

    def __init__(self, items: list[Item]) -> None:
        self._works = [item.work for item in items]

    def launch(self, stream: Stream | None = None) -> None:
        """Put all of it on a stream."""
        stream = stream if stream is not None else get_current_stream()
        add("graph")
        for work in self._works:
            stream.submit(work)


_captures: list[Capture] = []  # those that are open


def forget_captures() -> None:
    """Leave captures that a test has not ended."""
    _captures.clear()


def refuse_while_capturing(who: str, why: str) -> None:
    """Refuse what must not be done in a thread that captures."""
    if any(capture.thread == threading.get_ident() for capture in _captures):
        raise CaptureError(f"{who}: expected no {why} while a stream is captured, got one")


def check_memory(who: str) -> None:
    """Refuse to take memory in a capture from another pool than its own, which is kept as long as the graph."""
    capture = get_current_stream().capture if _captures else None
    if capture is not None and (capture.pool is None or allocator() is not capture.pool):
        raise CaptureError(f"{who}: expected memory of a pool that was set before the capture began, got a foreign one")


def allocator() -> Any:
    """The pool that `using_allocator` set in this thread; None for the one that all share."""
    return getattr(_thread, "pool", None)


class MemoryPool:
    """cupy.cuda.MemoryPool, as far as it can be told from another one."""

    def malloc(self, size: int) -> None:
        """Stands for the pool; nobody calls it here."""


@contextlib.contextmanager
def using_allocator(malloc: Any = None) -> Iterator[None]:
    """cupy.cuda.using_allocator: the memory of this thread is of that pool inside the block."""
    outer, _thread.pool = allocator(), getattr(malloc, "__self__", None)
    try:
        yield
    finally:
        _thread.pool = outer


class Machine:
    """Runs work late. Each kind of order is drawn for a third of the seeds: only what somebody waits for, anything
    that is ready, and side streams as soon as they can.
    """

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._kind = ("waited for", "anything", "side streams first")[seed % 3]
        self.waiting: list[Item] = []
        self.clock_ms = 0.0
        self._one_by_one = threading.RLock()  # a watchdog looks at events, too

    def add(self, item: Item) -> None:
        """Take over a piece of work."""
        self.waiting.append(item)

    def run_until(self, target: Item | None) -> None:
        """Run until a piece of work is done."""
        while target is not None and target.at is None:
            with self._one_by_one:
                if target.at is None:
                    self._run_one(self._before(target) if self._kind == "waited for" else None)

    def progress(self) -> None:
        """Run one piece of work, as a device does while the host looks at an event."""
        with self._one_by_one:
            if self.waiting:
                self._run_one(None)

    def _run_one(self, among: set[int] | None) -> None:
        ready = [item for item in self.waiting if all(before.at is not None for before in item.after)]
        ready = [item for item in ready if among is None or id(item) in among]
        if self._kind == "side streams first":
            ready = [item for item in ready if not item.stream.is_null] or ready
        item = ready[int(self._draw.integers(len(ready)))]
        self.waiting.remove(item)
        item.work()
        self.clock_ms += 1.0
        item.at, item.after = self.clock_ms, []

    def _before(self, target: Item) -> set[int]:
        found, stack = {id(target)}, [target]
        while stack:
            for item in stack.pop().after:
                if item.at is None and id(item) not in found:
                    found.add(id(item))
                    stack.append(item)
        return found


@contextlib.contextmanager
def machine(seed: int) -> Iterator[Machine]:
    """Let all streams run late inside the block."""
    global _machine
    _machine = Machine(seed)
    _null.clear()
    try:
        yield _machine
        _machine._kind = "anything"
        while _machine.waiting:
            _machine.progress()
    finally:
        _machine = None
        _null.clear()


def is_late() -> bool:
    """Whether what is given to the current stream runs later: a machine holds it back, or it is captured."""
    return _machine is not None or (bool(_captures) and get_current_stream().capture is not None)


def _device() -> int:
    from tests.strict_cupy.device import current_id

    return current_id()


def _note(what: str) -> None:
    from tests.strict_cupy.device import syncs

    syncs.note(what)


class Event:
    """cupy.cuda.Event, of the device that is current when it is made."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.device, self.timed = _device(), not disable_timing
        self.item: Item | None = None
        self.ptr = next(_addresses)
        _events[self.ptr] = self

    def record(self, stream: Stream | None = None) -> None:
        """It happens when the stream has done what it was given so far."""
        stream = stream if stream is not None else get_current_stream()
        if stream.device != self.device:
            raise StrictError(f"Event.record: expected a stream of cuda:{self.device}, got one of cuda:{stream.device}")
        self.item = stream.submit(_nothing)

    @property
    def done(self) -> bool:
        """Whether it has happened; as in CuPy, never where the device has failed. The device goes on meanwhile."""
        return event_query(self.ptr) == 0

    def _has_happened(self) -> bool:
        if self.item is not None and self.item.capture is not None:
            raise CaptureError("Event: cudaErrorCapturedEvent: expected one that is to happen, got a captured one")
        if _machine is not None and self.item is not None and self.item.at is None:
            _machine.progress()
        return self.item is None or self.item.at is not None

    def synchronize(self) -> None:
        """Wait for it."""
        _note("Event.synchronize")
        self._has_happened()
        if _machine is not None:
            _machine.run_until(self.item)


def event_query(address: int) -> int:
    """cupy.cuda.runtime.eventQuery: 0 where it has happened, 600 where it has not, else the device's error."""
    return failures[-1] if failures else 0 if _events[address]._has_happened() else 600


class Stream:
    """cupy.cuda.Stream, of the device that is current when it is made."""

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        self.device, self.is_null, self.priority = _device(), null, priority
        if not null and not non_blocking:
            raise StrictError("Stream: expected non_blocking=True, got a stream that waits for the null stream")
        self.ptr = 0 if null else next(_addresses)
        self.tail: Item | None = None
        self.capture: Capture | None = None
        self._outer: list[Stream | None] = []

    def submit(self, work: Callable[[], None]) -> Item:
        """Put work behind what it was given so far."""
        if self.device != _device():
            raise StrictError(f"stream of cuda:{self.device}: expected its device to be current, got cuda:{_device()}")
        if self.capture is None and work is not _nothing:  # CUDA would do it now, and never again
            refuse_while_capturing(f"stream of cuda:{self.device}", "work for another stream, without an edge to it,")
        self.tail = item = Item(work, [self.tail] if self.tail is not None else [], self)
        if self.capture is not None:
            self.capture.items.append(item)
        elif _machine is None:
            work()
            item.at, item.after = 0.0, []
        else:
            _machine.add(item)
        return item

    def record(self, event: Event | None = None) -> Event:
        """An event behind what it was given so far."""
        event = event if event is not None else Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """What it is given from now on comes after the event as it was last recorded."""
        capture = event.item.capture if event.item is not None else None
        if capture is not None and self.capture is None and capture in _captures:
            capture.take(self)  # by the edge
        if self.capture is not capture and event.item is not None:
            raise CaptureError("wait_event: cudaErrorStreamCaptureIsolation: expected an event of the same capture")
        item = self.submit(_nothing)
        if event.item is not None and event.item.at is None:
            item.after.append(event.item)

    def begin_capture(self, mode: Any = None) -> None:
        """Keep what it is given from now on, instead of running it."""
        if self.is_null:
            raise CaptureError("begin_capture: expected a stream of its own, got the null stream")
        if self.capture is not None:
            raise CaptureError("begin_capture: expected a stream that is not captured, got one that is")
        _captures.append(Capture(self))

    def end_capture(self) -> Graph:
        """What it was given since `begin_capture`."""
        if self.capture is None or self.capture.origin is not self:
            raise CaptureError("end_capture: expected the stream that the capture began on, got another")
        _captures.remove(self.capture)
        return self.capture.end()

    def is_capturing(self) -> bool:
        """Whether it is captured."""
        return self.capture is not None

    def synchronize(self) -> None:
        """Wait for its work."""
        _note("Stream.synchronize")
        self.finish()

    def finish(self) -> None:
        """Let its work be done."""
        if _machine is not None:
            _machine.run_until(self.tail)

    def __enter__(self) -> Stream:
        if self.device != _device():
            raise StrictError(f"with stream: expected cuda:{self.device} to be current, got cuda:{_device()}")
        self._outer.append(_current().get(self.device))
        _current()[self.device] = self
        return self

    def __exit__(self, *error: object) -> None:
        outer = self._outer.pop()
        if outer is None:
            del _current()[self.device]
        else:
            _current()[self.device] = outer


def _nothing() -> None:
    pass


def _current() -> dict[int, Stream]:
    if not hasattr(_thread, "streams"):
        _thread.streams = {}
    streams: dict[int, Stream] = _thread.streams
    return streams


def get_current_stream(device_id: int | None = None) -> Stream:
    """The stream of this thread on the current device: the null stream unless another was entered."""
    device = _device()
    if device not in _current():
        return _null.setdefault(device, Stream(null=True))
    return _current()[device]


def get_elapsed_time(begin: Event, end: Event) -> float:
    """Milliseconds between two events, which must have happened."""
    if not begin.timed or not end.timed:
        raise StrictError("get_elapsed_time: expected events made with timing")
    if begin.device != end.device:
        raise StrictError("get_elapsed_time: expected events of one device")
    if begin.item is None or end.item is None or begin.item.at is None or end.item.at is None:
        raise StrictError("get_elapsed_time: cudaErrorNotReady: expected events that have happened")
    return end.item.at - begin.item.at


def perform(work: Callable[[], Any], who: str, arguments: list[Any], out: Any) -> Any:
    """Do a computation on the current stream: at once, or later.

    Args:
        work: The computation, on plain memory.
        who: What it is called.
        arguments: What it reads, for telling views from new memory.
        out: The memory that it writes and that was named by the caller, if any.
    """
    named = out if out is None or isinstance(out, list) else [out]
    if not is_late():
        result = work()
    elif named is not None or who in _IN_PLACE or who.endswith(".at"):
        get_current_stream().submit(lambda: _forget(work()))
        result = out
    else:
        result = _late(who, work(), work, arguments, get_current_stream())
    note(who, arguments, result, _written(who, arguments, named))
    return result


def _written(who: str, arguments: list[Any], named: Any) -> Any:
    """The memory that a call writes and did not make; None where it made what it returns."""
    return arguments if who in _IN_PLACE or who.endswith(".at") else named


_IN_PLACE = frozenset({"setitem", "copyto", "fill", "sort", "put", "fill_diagonal"})


def _forget(result: Any) -> None:
    """The result lies where it belongs."""


def _late(who: str, preview: Any, work: Callable[[], Any], arguments: list[Any], stream: Stream) -> Any:
    """New memory of the right shape, to be filled when the stream comes to it; views and Python values as they are."""
    if isinstance(preview, (tuple, list)):
        raise StrictError("machine: expected a computation with one result, got several")
    if not isinstance(preview, (np.ndarray, np.generic)):
        return preview
    if any(preview is a or (isinstance(a, np.ndarray) and np.may_share_memory(preview, a)) for a in arguments):
        return preview
    check_memory(who)
    fresh = np.empty(preview.shape, preview.dtype)
    fresh.fill(np.nan if fresh.dtype.kind in "fc" else 0)

    def fill() -> None:
        fresh[...] = work()

    stream.submit(fill)
    return fresh
