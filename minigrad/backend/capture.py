"""Work for a GPU that is captured as one CUDA graph, on a stream and with memory of its own, and launched at will."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from minigrad.backend.capturing import Capture, _current
from minigrad.backend.cublas import current_cublas
from minigrad.backend.device import Device
from minigrad.backend.fused.dropout import LIVE_WORDS, move_live, position_of, set_live
from minigrad.backend.fused.optimizer import move_clock
from minigrad.backend.kernels import loader_for
from minigrad.backend.random import noise_generator
from minigrad.backend.stream import CommStream
from minigrad.errors import CaptureError, MinigradError

Result = TypeVar("Result")


class DeviceGraph:
    """A graph with the memory pool that its addresses point into, which is kept as long as it is.

    What was allocated by a run of `beside`, or while it was captured, lies in that pool, and nobody else takes memory
    from it: what the graph reads and writes stays where it is, though its arrays are gone.

    Args:
        device: A GPU.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._side = CommStream(device, priority=0)
        with device.current() as cupy:
            self._cupy, self._pool = cupy, cupy.cuda.MemoryPool()
        self._graph: Any = None
        self._workspace: Any = None  # of the products in the graph

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """On the stream and with the memory that it is captured with; after what the caller's stream was given."""
        self._side.follow()
        try:
            with self._memory(), self._side.current(), current_cublas().own_workspace() as self._workspace:
                yield
        finally:
            self._side.join()

    @contextlib.contextmanager
    def _memory(self) -> Iterator[None]:
        with self._device.current(), self._cupy.cuda.using_allocator(self._pool.malloc):
            yield

    def prepare(self) -> None:
        """Launch once what only graphs have, where the step needs it: a kernel's first launch may load it, and wait."""
        loader = loader_for(self._workspace)
        if loader.is_in_use("optimizer"):
            move_clock(self._cupy.zeros(2, np.float64), 1)
        if loader.is_in_use("dropout"):
            live = self._cupy.zeros(LIVE_WORDS, np.uint64)
            set_live(live, position_of(noise_generator()))
            move_live(live, 1)

    def record(self, capture: Capture, body: Callable[[], Result]) -> Result:
        """Capture what body gives the device to do, none of which is done yet; to be called inside of `beside`.

        Where body raises, what it gave before that is done, as if nothing had been captured, and nothing is captured
        any more.

        Raises:
            CaptureError: CuPy or CUDA refuse something.
        """
        stream = self._cupy.cuda.get_current_stream()
        stream.begin_capture()
        token = _current.set(capture)
        try:
            result = body()
            for end in capture.ends:
                end()
        except BaseException as error:
            capture.is_open = False
            lost = self._end_early(stream, capture)
            if not isinstance(error, MinigradError) and (lost or _is_of_cupy(error)):
                raise CaptureError(
                    f"captured step: expected work that CuPy can capture, got {type(error).__name__}: {error}{lost}"
                ) from error
            raise
        finally:
            capture.is_open = False
            _current.reset(token)
        try:
            self._graph = stream.end_capture()
        except Exception as error:
            raise CaptureError(f"captured step: expected work that CUDA can capture, got {error}") from error
        return result

    def _end_early(self, stream: Any, capture: Capture) -> str:
        """End the capture, and let what was captured be done; what to say where that can't be."""
        try:
            self._graph = stream.end_capture()
        except Exception:  # CUDA has ended it, or a stream that it led to does not lead back
            return ": what it had given the GPU to do in this run is lost"
        for write in capture.writes:
            write()
        self._graph.launch(stream)
        return ""

    def launch(self) -> None:
        """Put it on the caller's stream.

        Raises:
            CaptureError: it was dropped.
        """
        if self._graph is None:
            raise CaptureError("captured step: expected one that is there, got one whose communicator was closed")
        with self._device.current():
            self._graph.launch()

    def drop(self) -> None:
        """Give the graph back: NCCL does not end while one has its collectives."""
        self._graph = None


def _is_of_cupy(error: BaseException) -> bool:
    """Whether CuPy raised an error, its name for one of CUDA's among them."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = trace.tb_frame.f_code.co_filename if trace is not None else ""
    return type(error).__module__.startswith("cupy") or ("cupy" in file and isinstance(error, RuntimeError))
