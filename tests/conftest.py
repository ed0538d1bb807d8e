"""What all tests share. The time limit of a test, the markers and "warnings are errors" are in setup.cfg."""

import gc
import sys

import numpy as np
import pytest
from hypothesis import settings

import minigrad
from minigrad.backend.ranks import ranks_here, set_ranks_here

pytest.register_assert_rewrite("tests.device_suite", "tests.kernel_suite")  # tests that others import

# The same examples in every run, so that a red run can be repeated; no limit on the time of one, machines differ.
settings.register_profile("minigrad", deadline=None, derandomize=True)
settings.load_profile("minigrad")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """What is collected stays until the end: the garbage collector need not walk through it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture
def rng():
    """A generator of NumPy, in the same state for each test."""
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def context_of_one_test():
    """A communicator that `init` makes in a test is that test's: no later one finds it in its context."""
    before = ranks_here()
    yield
    set_ranks_here(before)


@pytest.fixture
def strict_cupy(monkeypatch):
    """The stand-in for CuPy in its place: `cuda:0` and `cuda:1` are there, on NumPy memory; see tests/strict_cupy.

    Kernels run on it by the runner of tests/kernels/cuda_on_cpu, products by tests/strict_cupy/products.py. A thread
    begins on cuda:0, as in CUDA, so that what lives there may be right by chance: a test that makes arrays makes some
    on cuda:1. See the fixture `cuda`.
    """
    from minigrad.backend import device
    from minigrad.backend.cublas import using_cublas
    from minigrad.backend.flags import forget_found
    from minigrad.backend.kernels import using_kernels
    from minigrad.ops import operands
    from tests.kernels.cuda_on_cpu import StandInKernels
    from tests.strict_cupy import MODULES, cupy
    from tests.strict_cupy.device import used
    from tests.strict_cupy.products import StandInCublas
    from tests.strict_cupy.streams import forget_captures

    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    cupy.syncs.count = 0
    forget_found()
    used.clear()
    with using_kernels(StandInKernels()), using_cublas(StandInCublas()):
        yield cupy
    cupy.cuda.Device(0).use()
    forget_captures()
    device._MODULES.pop(cupy.ndarray, None)
    operands._kept_constant.cache_clear()
    forget_found()
    if used == {0}:
        pytest.fail("expected a test on cuda:1, got one on cuda:0 alone: take the fixture `cuda`", pytrace=False)


@pytest.fixture
def cuda(strict_cupy):
    """The device of the rank that a test is on the stand-in: the second one, which `init` has made current."""
    return minigrad.distributed.init(backend="solo", device="cuda:1").device
