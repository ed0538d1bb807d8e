"""The cases against the PyTorch that is installed: python -m pytest -m torch tests/parity."""

import numpy as np
import pytest

from minigrad.testing import assert_close
from tests.cases import CASES
from tests.parity.compare import run_ours

TOLERANCE = {np.float64: 1e-10, np.float32: 1e-4}


@pytest.mark.torch
@pytest.mark.parametrize("dtype", TOLERANCE, ids=["float64", "float32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_same_as_torch(case, dtype):
    from tests.parity.theirs import run_theirs

    theirs = run_theirs(case, dtype)
    inputs = [theirs.get(f"input.{i}", value) for i, value in enumerate(case.draw())]
    for name, array in run_ours(case, inputs, theirs.get("cotangent")).items():
        tolerance = TOLERANCE[dtype] if theirs[name].dtype.kind == "f" else 0.0
        assert_close(array, theirs[name], tolerance=tolerance, what=name)
