"""CuPy and NVRTC come with the extra `test` on Linux for x86-64 only: elsewhere nothing compiles kernels."""

import platform
import sys

import pytest

from minigrad.backend.kernels import using_kernels
from minigrad.backend.memory import aligned_zeros
from tests.kernels.cuda_on_cpu import HostKernels

collect_ignore = [] if (sys.platform, platform.machine()) == ("linux", "x86_64") else ["test_compile.py"]

# The threads of a launch take turns breadth first, depth first and backwards, and in two shuffled orders.
ORDERS = (0, 1, 7, 11)
SHAPES = {0: (32, 1), 1: (1024, 2), 7: (96, 3), 11: (256, 2)}  # threads of a block, blocks at most


@pytest.fixture(params=ORDERS, ids=lambda order: f"order{order}")
def order(request):
    """The order in which the threads of a launch take turns."""
    return request.param


@pytest.fixture
def cpu_kernels(order):
    """The kernels run on NumPy arrays, under the launches of the framework; each order has its shape of launches."""
    with using_kernels(HostKernels(order, *SHAPES[order])) as loader:
        yield loader


def aligned_copy(array):
    """A copy that starts on a cache line, as fresh memory of a GPU does."""
    copy = aligned_zeros(array.size, array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@pytest.fixture
def on(cpu_kernels):
    """Moves an array to where the kernels run: a copy of its own, since tests keep what they expect."""
    return aligned_copy
