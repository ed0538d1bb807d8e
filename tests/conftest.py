"""What all tests share. The time limit of a test, the markers and "warnings are errors" are in setup.cfg."""

import numpy as np
import pytest
from hypothesis import settings

# The same examples in every run, so that a red run can be repeated; no limit on the time of one, machines differ.
settings.register_profile("minigrad", deadline=None, derandomize=True)
settings.load_profile("minigrad")


@pytest.fixture
def rng():
    """A generator of NumPy, in the same state for each test."""
    return np.random.default_rng(0)
