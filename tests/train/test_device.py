"""The suite of graphs that train themselves, on the stand-in for CuPy."""

import pytest

from minigrad import Device
from tests.device_suite.trainers import *  # noqa: F401, F403


@pytest.fixture
def cuda(strict_cupy):
    """The first of the stand-in's devices."""
    return Device("cuda:0")
