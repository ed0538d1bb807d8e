"""Tests on a real device, by `pytest -m gpu`. Without one they fail: a skip would hide that nothing was tested."""

import contextlib

import pytest

from minigrad import Device, available_devices
from minigrad.backend.device import load_cupy
from minigrad.distributed import init
from minigrad.errors import DeviceError


@pytest.fixture(scope="session")
def present():
    """The last GPU, which a rank is least likely to be on by chance, or an exception that says why there is none."""
    try:
        Device("cuda:0").xp
    except DeviceError as error:
        return error
    return available_devices()[-1]


@pytest.fixture(autouse=True)
def cuda(present):
    """The device of the rank that a test is: the last GPU, which `init` has made current."""
    if isinstance(present, DeviceError):
        listed = ", ".join(str(found) for found in available_devices())
        pytest.fail(f"tests marked gpu need a GPU, found only {listed}: {present}", pytrace=False)
    return init(backend="solo", device=present).device


@pytest.fixture
def unnoticed(cuda):
    """A block in which nothing notices an index out of range; CuPy never does."""
    return lambda waits=False: contextlib.nullcontext()


@pytest.fixture
def cupy(cuda):
    """CuPy, for what no function of ours tells."""
    return load_cupy()
