"""The suite of graphs that train themselves, on the stand-in for CuPy."""

from tests.device_suite.trainers import *  # noqa: F401, F403
