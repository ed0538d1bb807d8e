"""cuBLAS is called as it must be, by every thread, on every stream, and while a stream is captured."""

import contextlib
import ctypes

import numpy as np
import pytest

import minigrad
from minigrad import Device
from minigrad.backend import cublas
from minigrad.backend.gemm import bmm
from minigrad.backend.thread import new_thread
from minigrad.errors import DeviceError, KernelError
from tests.strict_cupy import CaptureError, StrictError, counted, machine
from tests.strict_cupy.cublas import Library
from tests.strict_cupy.products import HostCublas, StandInCublas

TYPES = {ctypes.c_void_p: "p", ctypes.c_int: "i", ctypes.c_longlong: "q", ctypes.c_size_t: "z"}


@pytest.fixture
def cupy(cuda, strict_cupy):
    """The stand-in, on its second device."""
    return strict_cupy


def matrices(cupy, *shapes):
    rng = np.random.default_rng(0)
    return [cupy.asarray(rng.standard_normal(shape)) for shape in shapes]


def in_thread(body):
    """What body returns in another thread, which ends."""
    found = []
    thread = new_thread(lambda: found.append(body()))
    thread.start()
    thread.join()
    return found[0]


def test_the_types_of_arguments_are_those_of_the_library():
    """By the header of CUDA 12: cublasStatus_t cublasGemmEx(handle, transa, ...) and the others."""
    letters = {name: "".join(TYPES.get(kind, "p") for kind in kinds) for name, kinds in cublas.FUNCTIONS.items()}
    assert letters == {
        "cublasCreate_v2": "p",
        "cublasSetStream_v2": "pp",
        "cublasSetWorkspace_v2": "ppz",
        "cublasSetMathMode": "pi",
        "cublasGemmEx": "piiiiip" + "pii" + "pii" + "p" + "pii" + "ii",
        "cublasGemmEx_64": "piiqqqp" + "piq" + "piq" + "p" + "piq" + "ii",
        "cublasGemmStridedBatchedEx": "piiiiip" + "piiq" + "piiq" + "p" + "piiq" + "i" + "ii",
        "cublasGemmStridedBatchedEx_64": "piiqqqp" + "piqq" + "piqq" + "p" + "piqq" + "q" + "ii",
        "cublasGemmBatchedEx": "piiiiip" + "pii" + "pii" + "p" + "pii" + "i" + "ii",
        "cublasGemmBatchedEx_64": "piiqqqp" + "piq" + "piq" + "p" + "piq" + "q" + "ii",
    }


def test_without_the_library_the_error_says_what_to_install(cupy):
    with pytest.raises(DeviceError, match=r"expected CUDA's libcublas .*: pip install 'minigrad\[cuda12-toolkit\]'"):
        cublas.Cublas().multiply((), *matrices(cupy, (2, 2), (2, 2), (2, 2)))


def test_lengths_beyond_32_bits_go_to_the_functions_that_take_them():
    def operand(leading):
        return cublas.Operand(0, cublas.AS_IT_LIES, leading, 0, 0)

    for sizes, leading, count, name in (
        ((2, 2, 2), 2, 1, "cublasGemmEx"),
        ((2, 2, 2), 2, 3, "cublasGemmStridedBatchedEx"),
        ((1, 1, 2**31), 1, 1, "cublasGemmEx_64"),
        ((2, 2, 2), 2**31, 1, "cublasGemmEx_64"),
        ((2, 2, 2), 2, 2**31, "cublasGemmStridedBatchedEx_64"),
    ):
        gemm = cublas.prepare(*[operand(leading)] * 3, sizes, count, cublas.COMPUTE_32F)
        assert gemm.function == name
        numbers = [part.value for part in (*gemm.head, *gemm.after_a, *gemm.after_b, *gemm.tail)]
        assert set(sizes) <= set(numbers) and leading in numbers
        places = "p" + "".join(TYPES[type(x)] for x in gemm.head) + "p" + "".join(TYPES[type(x)] for x in gemm.after_a)
        places += "p" + "".join(TYPES[type(x)] for x in gemm.after_b) + "p"
        places += "".join(TYPES[type(x)] for x in gemm.tail)
        assert places == "".join(TYPES[kind] for kind in cublas.FUNCTIONS[name])


def test_what_cublas_refuses_is_an_error_of_ours():
    host = HostCublas()
    x = np.ones((2, 2), np.float32)
    good = cublas.Operand(0, cublas.AS_IT_LIES, 2, 4, 0)
    for operand, words in (
        (good._replace(leading=1), "cublasGemmEx to succeed, got CUBLAS_STATUS_INVALID_VALUE"),
        (good._replace(data_type=1), "CUBLAS_STATUS_NOT_SUPPORTED"),
    ):
        gemm = cublas.prepare(operand, good, good, (2, 2, 2), 1, cublas.COMPUTE_32F)
        with pytest.raises(KernelError, match=words):
            host.multiply([gemm], x, x, x.copy())
    for operand in (good._replace(at=4), good._replace(leading=3)):
        gemm = cublas.prepare(operand, good, good, (2, 2, 2), 1, cublas.COMPUTE_32F)
        with pytest.raises(StrictError, match="inside the arrays of the call"):
            host.multiply([gemm], x, x, x.copy())


def test_the_stand_in_takes_what_ctypes_takes_and_no_more():
    library = Library(on_host=True)
    handle = ctypes.c_void_p()
    assert library.cublasSetMathMode(handle, 16) == 1  # not initialized
    library.cublasCreate_v2(ctypes.byref(handle))
    assert library.cublasSetMathMode(handle, 16) == 0 and library.cublasSetMathMode(handle, 4) == 7
    for arguments, words in (((handle,), "expected 2 arguments"), ((handle, 2**31), "cut"), ((handle, 1.0), "1.0")):
        with pytest.raises(StrictError, match=words):
            library.cublasSetMathMode(*arguments)


def test_the_handle_follows_the_stream_and_the_workspace_with_it(cupy):
    """To set a stream forgets the workspace, and a captured product without one is refused."""
    a, b = matrices(cupy, (3, 4), (4, 2))
    expected = a.memory @ b.memory
    out, graphs = cupy.zeros((3, 2)), []
    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(2):
        assert np.allclose(bmm(a, b).get(), expected)  # on the null stream
        with stream:
            assert np.allclose(bmm(a, b).get(), expected)
            stream.begin_capture()
            bmm(a, b, out)
            graphs.append(stream.end_capture())
    assert not out.get().any()
    for factor in (1.0, 2.0):
        graphs[0].launch()
        assert np.allclose(out.get(), factor * expected)
        a *= 2.0


@pytest.mark.parametrize("seed", range(3))
def test_late_products_come_in_their_order(cupy, seed):
    with machine(seed):
        a, b = cupy.ones((3, 4)), cupy.ones((4, 2))
        a *= 2.0
        first = bmm(a, b)
        a *= 2.0
        second = bmm(first, cupy.ones((2, 2)) * 3.0)
        del a, b
        assert first.tolist() == [[8.0] * 2] * 3 and second.tolist() == [[48.0] * 2] * 3


def test_a_product_is_one_piece_of_work(cupy):
    a, b = matrices(cupy, (3, 4), (4, 2))
    with counted() as work:
        bmm(a, b)
    assert dict(work.pieces) == {"gemm": 1} and not work.waits and not work.uploads


def test_a_workspace_of_its_own_is_the_graphs(cupy):
    a, b = matrices(cupy, (3, 4), (4, 2))
    bmm(a, b)
    blas = cublas.current_cublas()
    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    told, outer = [], blas.library.cublasSetWorkspace_v2
    with stream:
        bmm(a, b)
        blas._functions["cublasSetWorkspace_v2"] = lambda *args: told.append(args[1:]) or outer(*args)
        with cupy.cuda.using_allocator(pool.malloc), blas.own_workspace() as own:
            stream.begin_capture()
            bmm(a, b, cupy.empty((3, 2)))
            stream.end_capture()
        bmm(a, b)
    assert told[0] == (own.data.ptr, own.nbytes) and told[1] != told[0] and len(told) == 2


def test_without_a_workspace_nothing_is_captured(cupy):
    """The stand-in notices, where cuBLAS would take memory of its own; so it does of a handle made meanwhile."""
    a, b = matrices(cupy, (3, 4), (4, 2))
    out = cupy.empty((3, 2))
    bmm(a, b)
    blas = cublas.current_cublas()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        bmm(a, b)
        blas._functions["cublasSetWorkspace_v2"] = lambda *args: 0
        bmm(a, b)
        blas._handle(1).stream = None
        stream.begin_capture()
        with pytest.raises(CaptureError, match="expected a workspace"):
            bmm(a, b, out)
        with pytest.raises(CaptureError, match="handle made"), cublas.using_cublas(StandInCublas()):
            bmm(a, b, out)
        stream.end_capture()


def test_each_thread_has_a_handle_which_the_next_one_takes(cupy):
    a, b = matrices(cupy, (3, 4), (4, 2))
    library = cublas.current_cublas().library
    bmm(a, b)
    assert library.made == 1
    for _ in range(3):
        assert np.allclose(in_thread(lambda: bmm(a, b).get()), a.memory @ b.memory)
        assert library.made == 2
    bmm(a, b)
    with Device("cuda:0").current():
        bmm(*matrices(cupy, (3, 4), (4, 2)))
    assert library.made == 3


def test_a_handle_of_another_stream_or_thread_is_noticed(cupy):
    a, b = matrices(cupy, (3, 4), (4, 2))
    bmm(a, b)
    blas = cublas.current_cublas()
    handle = blas._handle(1)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        handle.stream = stream.ptr  # as if it had been set
        with pytest.raises(StrictError, match="on the current stream"):
            bmm(a, b)

    def elsewhere():
        blas._thread.handles = {1: handle}
        handle.stream = 0
        with pytest.raises(StrictError, match="of this thread"):
            bmm(a, b)
        return True

    assert in_thread(elsewhere)


def test_arrays_of_another_device_are_refused(cupy):
    a, b = matrices(cupy, (3, 4), (4, 2))
    out = cupy.empty((3, 2))
    with Device("cuda:0").current(), pytest.raises(DeviceError, match="current device cuda:0, got one on cuda:1"):
        bmm(a, b, out)


CAPTURED = {
    "matmul": lambda x, y: x @ y,
    "batches": lambda x, y: x.reshape(1, 4, 4) @ y.reshape(4, 1, 4, 1),
    "linear": lambda x, y: minigrad.nn.functional.linear(x, y, y[0]),
    "einsum": lambda x, y: minigrad.einsum("ij,kj->ik", x, y),
    "cov": lambda x, y: minigrad.ops.cov(x) + y,
}


@pytest.mark.parametrize("name", CAPTURED)
def test_products_of_tensors_are_captured_with_their_gradients(cupy, cuda, name):
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((4, 4)) for _ in range(2)]

    def step(device, inside=contextlib.nullcontext):
        x, y = (minigrad.tensor(value, device=device, requires_grad=True) for value in values)
        with inside():
            result = CAPTURED[name](x, y)
            (result * result).sum().backward()
        return result.detach(), x.grad, y.grad

    stream, pool = cupy.cuda.Stream(non_blocking=True), cupy.cuda.MemoryPool()
    graphs = []

    @contextlib.contextmanager
    def captured():
        stream.begin_capture()
        yield
        graphs.append(stream.end_capture())

    with stream, cupy.cuda.using_allocator(pool.malloc):
        step(cuda)
        found = step(cuda, captured)
        graphs[0].launch()
    for got, expected in zip(found, step(Device("cpu"))):
        np.testing.assert_allclose(got.cpu().numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)
