"""What all tests share. The time limit of a test, the markers and "warnings are errors" are in setup.cfg."""

import sys

import numpy as np
import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.device_suite", "tests.kernel_suite")  # tests that others import

# The same examples in every run, so that a red run can be repeated; no limit on the time of one, machines differ.
settings.register_profile("minigrad", deadline=None, derandomize=True)
settings.load_profile("minigrad")


@pytest.fixture
def rng():
    """A generator of NumPy, in the same state for each test."""
    return np.random.default_rng(0)


@pytest.fixture
def strict_cupy(monkeypatch):
    """The stand-in for CuPy in its place: `cuda:0` and `cuda:1` are there, on NumPy memory; see tests/strict_cupy.

    Kernels run on it by the runner of tests/kernels/cuda_on_cpu.
    """
    from minigrad.backend import device
    from minigrad.backend.flags import forget_found
    from minigrad.backend.kernels import using_kernels
    from minigrad.ops import operands
    from tests.kernels.cuda_on_cpu import StandInKernels
    from tests.strict_cupy import MODULES, cupy

    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    cupy.syncs.count = 0
    cupy.cuda.Device(0).use()  # a rank of the test before may have made its own device current
    forget_found()
    with using_kernels(StandInKernels()):
        yield cupy
    device._MODULES.pop(cupy.ndarray, None)
    operands._kept_constant.cache_clear()
    forget_found()
