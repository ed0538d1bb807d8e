"""The cases against the PyTorch that is installed: python -m pytest -m torch tests/parity."""

import numpy as np
import pytest

from tests.cases import CASES
from tests.cases.layer_families import LAYERS
from tests.parity.compare import compare, float32_tolerance, run_ours


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:LSTM with projections:UserWarning")  # PyTorch's, of how it computes them
@pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("case", [*CASES, *LAYERS], ids=lambda case: case.id)
def test_same_as_torch(case, dtype):
    from tests.parity.theirs import run_theirs

    theirs = run_theirs(case, dtype)
    inputs = [theirs.get(f"input.{i}", value) for i, value in enumerate(case.draw())]
    tolerance = 1e-10 if dtype is np.float64 else float32_tolerance(inputs)
    if dtype is np.float32 and case.op.startswith("TransformerEncoder"):
        tolerance *= 10  # it normalises rows of two elements, which magnifies what each library rounds
    compare(run_ours(case, inputs, theirs.get("cotangent")), theirs, tolerance)
