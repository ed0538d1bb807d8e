"""Tests on a real device, by `pytest -m gpu`. Without one they fail: a skip would hide that nothing was tested."""

import contextlib

import pytest

from minigrad import Device, available_devices
from minigrad.backend.device import load_cupy
from minigrad.errors import DeviceError


@pytest.fixture(scope="session")
def present():
    """The first GPU and its array module, or an exception that says why there is none."""
    device = Device("cuda:0")
    try:
        return device, device.xp
    except DeviceError as error:
        return error, None


@pytest.fixture(autouse=True)
def cuda(present):
    """The first GPU."""
    device, _ = present
    if isinstance(device, DeviceError):
        listed = ", ".join(str(found) for found in available_devices())
        pytest.fail(f"tests marked gpu need a GPU, found only {listed}: {device}", pytrace=False)
    return device


@pytest.fixture
def unnoticed(cuda):
    """A block in which nothing notices an index out of range; CuPy never does."""
    return lambda waits=False: contextlib.nullcontext()


@pytest.fixture
def cupy(cuda):
    """CuPy, for what no function of ours tells."""
    return load_cupy()
