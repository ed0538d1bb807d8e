"""Loading: a file is compiled once, at its first kernel; errors carry the compiler's lines; who gets which kernels."""

import sys
import threading
from contextvars import copy_context
from types import SimpleNamespace

import numpy as np
import pytest

from minigrad.backend import kernels
from minigrad.backend.kernels import KernelLoader, get_kernel, kernel_source, kernels_for, using_kernels
from minigrad.errors import KernelError
from tests.kernels.cuda_on_cpu import HostKernels


class FakeModule:
    """Answers each name with the file and the name."""

    def __init__(self, file, source):
        self.file = file
        assert source == kernel_source(file)

    def get_function(self, name):
        return self.file, name


def test_a_file_is_compiled_once_whichever_thread_asks():
    compiled = []

    def compile(file, source):
        compiled.append(file)
        return FakeModule(file, source)

    loader = KernelLoader(compile)
    found = []
    threads = [threading.Thread(target=lambda: found.append(loader.get("norm", "squares_f32"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [("norm", "squares_f32")] * 8
    assert loader.get("norm", "largest_f32") == ("norm", "largest_f32")
    assert compiled == ["norm"]


def test_a_failed_compilation_is_tried_again():
    answers = [KernelError("norm.cu: no"), FakeModule("norm", kernel_source("norm"))]

    def compile(file, source):
        answer = answers.pop(0)
        if isinstance(answer, KernelError):
            raise answer
        return answer

    loader = KernelLoader(compile)
    with pytest.raises(KernelError, match="norm.cu: no"):
        loader.get("norm", "squares_f32")
    assert loader.get("norm", "squares_f32") == ("norm", "squares_f32")


def test_a_missing_file():
    with pytest.raises(KernelError, match=r"expected kernels/gone\.cu for the kernel 'gone', got no such file"):
        KernelLoader(FakeModule).get("gone", "f")


def test_numpy_arrays_have_no_kernels_unless_a_loader_is_for_them():
    x = np.zeros(3)
    assert kernels_for(x) is None
    with using_kernels(HostKernels()) as loader:
        assert kernels_for(x) is loader
        inside = copy_context()
    assert kernels_for(x) is None
    assert inside.run(kernels_for, x) is loader
    with using_kernels(KernelLoader(FakeModule)):
        assert kernels_for(x) is None
        assert get_kernel("norm", "finish_sum") == ("norm", "finish_sum")


@pytest.mark.parametrize("threads, blocks", [(256, 2048), (32, 2)])
def test_blocks_of_a_launch(threads, blocks):
    loader = KernelLoader(FakeModule, threads, blocks)
    assert [loader.blocks(work) for work in (0, 1, threads, threads + 1)] == [1, 1, 1, 2]
    assert loader.blocks(10**12) == blocks


class CompileException(Exception):
    """CuPy's, with the compiler's log as its text."""


class FakeRawModule:
    """RawModule as far as the loader uses it."""

    made: list = []

    def __init__(self, *, code, options):
        self.code, self.options = code, options
        self.made.append(self)

    def compile(self):
        if "broken" in self.code:
            raise CompileException('broken.cu(3): error: identifier "nothing" is undefined')

    def get_function(self, name):
        return lambda grid, block, args: (name, grid, block, args)


@pytest.fixture
def fake_cupy(monkeypatch):
    """A module in the place of CuPy that has a compiler only."""
    compiler = SimpleNamespace(CompileException=CompileException)
    fake = SimpleNamespace(RawModule=FakeRawModule, cuda=SimpleNamespace(compiler=compiler))
    monkeypatch.setitem(sys.modules, "cupy", fake)
    monkeypatch.setattr(FakeRawModule, "made", [])
    return FakeRawModule


def test_a_raw_module_gets_the_text_with_its_headers(fake_cupy):
    module = kernels._cuda_module("norm", kernel_source("norm"))
    [made] = fake_cupy.made
    assert "block_reduce" in made.code and made.options == kernels.OPTIONS
    assert module.get_function("f")((1,), (2,), ()) == ("f", (1,), (2,), ())


def test_an_error_of_nvrtc_carries_its_lines(fake_cupy):
    with pytest.raises(KernelError, match=r"broken\.cu: expected NVRTC to compile it, got:\nbroken\.cu\(3\): error"):
        kernels._cuda_module("broken", "broken")


def test_the_exception_of_cupy_is_where_the_loader_looks_for_it():
    import cupy.cuda.compiler

    log = 'k.cu(1): error: identifier "nothing" is undefined'
    assert log in str(cupy.cuda.compiler.CompileException(log, "code", "k.cu", ()))
