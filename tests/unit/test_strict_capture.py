"""What the stand-in keeps of a stream that is captured as a graph, and what it refuses meanwhile, as CuPy does."""

import contextlib

import numpy as np
import pytest

import minigrad
from minigrad import ops
from tests.strict_cupy import CaptureError, machine


@pytest.fixture
def cupy(cuda, strict_cupy):
    """The stand-in, on its second device."""
    return strict_cupy


@contextlib.contextmanager
def capturing(cupy, graphs=None):
    """Capture what is done inside, with memory of a pool of its own; the graph is added to a list."""
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    with cupy.cuda.using_allocator(pool.malloc), stream:
        stream.begin_capture()
        yield stream
        graph = stream.end_capture()
    if graphs is not None:
        graphs.append(graph)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_what_was_captured_runs_at_each_launch(cupy, seed):
    with contextlib.nullcontext() if seed is None else machine(seed):
        x, total, graphs = cupy.ones(3), cupy.zeros(3), []
        with capturing(cupy, graphs) as stream:
            assert stream.is_capturing()
            y = x * 2.0
            total += y[cupy.arange(3)]
            total[0] = 7.0
        assert not stream.is_capturing() and total.tolist() == [0.0] * 3
        for expected in ([7.0, 2.0, 2.0], [7.0, 12.0, 12.0]):
            graphs[0].launch()
            assert total.tolist() == expected
            x[...] = 5.0


def test_kernels_are_captured_too(cupy, cuda):
    x, labels, graphs = cupy.zeros((2, 3)), minigrad.tensor([0, 2], device=cuda), []
    ops.cross_entropy(minigrad.Tensor(x), labels)  # what is made at the first call
    with capturing(cupy, graphs):
        loss = ops.cross_entropy(minigrad.Tensor(x), labels)
    for values in (0.0, 1.0):
        x[:, 0] = values
        graphs[0].launch()
        assert np.allclose(loss.item(), np.log(2 + np.exp(values)) - values / 2)


REFUSED = {
    "dot": (lambda cupy, x: x.dot(x), "no call of cuBLAS"),
    "matmul": (lambda cupy, x: x @ x, "no call of cuBLAS"),
    "tensordot": (lambda cupy, x: cupy.tensordot(x, x), "no call of cuBLAS"),
    "solve": (lambda cupy, x: cupy.linalg.solve(x, x), "no call of cuBLAS"),
    "asarray": (lambda cupy, x: cupy.asarray(np.ones(3)), "no upload"),
    "set": (lambda cupy, x: x.set(np.ones((3, 3))), "no upload"),
    "item": (lambda cupy, x: x[0, 0].item(), "no wait"),
    "get": (lambda cupy, x: x.get(), "no wait"),
    "nonzero": (lambda cupy, x: cupy.nonzero(x), "no wait"),
    "synchronize": (lambda cupy, x: cupy.cuda.get_current_stream().synchronize(), "no wait"),
    "an event's done": (lambda cupy, x: cupy.cuda.get_current_stream().record().done, "cudaErrorCapturedEvent"),
    "begin twice": (lambda cupy, x: cupy.cuda.get_current_stream().begin_capture(), "not captured"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_meanwhile(cupy, name):
    call, words = REFUSED[name]
    x = cupy.ones((3, 3)) + cupy.eye(3)
    call(cupy, x) if name != "begin twice" else None  # which is allowed before
    with capturing(cupy), pytest.raises(CaptureError, match=words):
        call(cupy, x)


@pytest.mark.parametrize("pool", ["of all", "another"])
def test_memory_of_another_pool(cupy, pool):
    x = cupy.ones(3)
    with capturing(cupy), cupy.cuda.using_allocator(None if pool == "of all" else cupy.cuda.MemoryPool().malloc):
        for call in (lambda: x * 2.0, lambda: cupy.empty(3), lambda: x.copy()):
            with pytest.raises(CaptureError, match="got a foreign one"):
                call()
        x *= 2.0  # takes none


def test_edges_lead_into_a_capture_and_back(cupy):
    side, event, back = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(), cupy.cuda.Event()
    x, graphs = cupy.ones(3), []
    with capturing(cupy, graphs) as stream:
        event.record()
        side.wait_event(event)
        with side:
            x *= 3.0
        back.record(side)
        stream.wait_event(back)
    graphs[0].launch()
    assert x.tolist() == [3.0] * 3
    with pytest.raises(CaptureError, match="Unjoined"), capturing(cupy):
        event.record()
        side.wait_event(event)
        with side:
            x *= 3.0
    outside = cupy.cuda.get_current_stream().record()
    with capturing(cupy) as stream, pytest.raises(CaptureError, match="Isolation"):
        stream.wait_event(outside)


def test_what_can_not_be_captured(cupy):
    with pytest.raises(CaptureError, match="the null stream"):
        cupy.cuda.get_current_stream().begin_capture()
    with pytest.raises(CaptureError, match="the stream that the capture began on"):
        cupy.cuda.Stream(non_blocking=True).end_capture()
